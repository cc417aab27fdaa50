"""The invariants of Kafka's striped placer, on a ring with few lists; and how lists change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from spark_log.metadata.replicas.placement import Usable, place, spread, usable_brokers, without
from tests.unit.metadata.replica_history import ReplicaHistory


def clusters(count: int = 150) -> Iterator[tuple[list[Usable], int, Random]]:
    """Brokers with and without racks, some fenced, at least one active; and a replication factor that they allow."""
    for seed in range(count):
        chance = Random(seed)
        racks = [f"r{number}" for number in range(chance.randint(1, 4))] + [""] * chance.randint(0, 1)
        brokers = [
            Usable(broker, chance.choice(racks), broker > 0 and chance.random() < 0.2)
            for broker in range(chance.randint(1, 9))
        ]
        yield brokers, chance.randint(1, len(brokers)), chance


def names(brokers: Sequence[Usable]) -> set[int]:
    return {one.broker for one in brokers}


def test_no_broker_has_two_replicas_of_a_partition() -> None:
    for brokers, factor, _ in clusters():
        for one in place(brokers, factor, range(20)):
            assert len(one) == len(set(one)) == factor and set(one) <= names(brokers)


def test_leaders_are_even_and_never_fenced() -> None:
    """Each active broker leads the same number of partitions, one more or less, whatever the sizes of the racks are."""
    for brokers, factor, chance in clusters():
        active = names([one for one in brokers if not one.fenced])
        first = chance.randrange(100)
        leaders = Counter(one[0] for one in place(brokers, factor, range(first, first + 20)))
        assert leaders.keys() <= active
        counts = [leaders[broker] for broker in active]
        assert max(counts) - min(counts) <= 1


# Promise: replicas.md#change-brokers
def test_each_rack_is_used_before_any_is_used_again() -> None:
    """A rack has two replicas more than another only if the other has no active broker left."""
    for brokers, factor, _ in clusters():
        active = [one for one in brokers if not one.fenced]
        sizes, racks = Counter(one.rack for one in active), {one.broker: one.rack for one in active}
        for one in place(brokers, factor, range(20)):
            used = Counter(racks[broker] for broker in one if broker in racks)
            full = max(used.values())
            assert all(used[rack] >= min(full - 1, size) for rack, size in sizes.items()), (brokers, one)


# Promise: replicas.md#change-brokers
def test_fenced_brokers_are_used_only_if_there_are_too_few_others() -> None:
    for brokers, factor, _ in clusters():
        active = names([one for one in brokers if not one.fenced])
        for one in place(brokers, factor, range(20)):
            assert len(active.intersection(one)) == min(factor, len(active))
            assert set(one[: len(active)]) <= active, "and they come last"


def test_replicas_are_even_if_racks_have_the_same_size() -> None:
    for racks in range(1, 5):
        brokers = [Usable(broker, f"r{broker % racks}") for broker in range(racks * 3)]
        for factor in range(1, len(brokers) + 1):
            lists = place(brokers, factor, range(len(brokers) * 2))
            assert set(Counter(broker for one in lists for broker in one).values()) == {factor * 2}


def test_there_are_as_many_lists_as_active_brokers() -> None:
    """So there are few placement groups: a broker's followers are the same in all partitions that it leads."""
    for brokers, factor, _ in clusters():
        active = [one for one in brokers if not one.fenced]
        assert len(set(place(brokers, factor, range(100)))) <= len(active)


def test_asynchronous_brokers_are_not_usable() -> None:
    log = ReplicaHistory()
    log.add(1, rack="a")
    log.add(2, is_async=True)
    log.add(3)
    log.fence(3)
    assert usable_brokers(log.state) == [Usable(0), Usable(1, "a"), Usable(3, fenced=True)]


# ----------------------------------------------------------------------------------------------------------------- changes


def test_a_spread_over_the_same_brokers_changes_nothing() -> None:
    """Also after partitions were added, which continue around the ring."""
    for brokers, factor, chance in clusters():
        shift = chance.randrange(100)
        lists = [
            *place(brokers, factor, range(shift, shift + 5)),
            *place(brokers, factor, range(shift + 5, shift + 12)),
        ]
        assert spread(lists, brokers, factor, shift) == lists


# Promise: replicas.md#move-partitions
def test_a_spread_has_the_invariants_of_a_placement() -> None:
    """From any lists: of other brokers, of another factor."""
    for brokers, factor, chance in clusters():
        before = [tuple(chance.sample(range(12), chance.randint(1, 4))) for _ in range(chance.randint(1, 20))]
        shift = chance.randrange(100)
        found = spread(before, brokers, factor, shift)
        assert Counter(found) == Counter(place(brokers, factor, range(shift, shift + len(before))))


# Promise: replicas.md#move-partitions
def test_a_spread_moves_little() -> None:
    """A fourth broker gets its share, and one partition in four stays as it is."""
    three, four = [Usable(broker) for broker in range(3)], [Usable(broker) for broker in range(4)]
    before = place(three, 2, range(12))
    after = spread(before, four, 2, 0)
    assert Counter(one[0] for one in after) == dict.fromkeys(range(4), 3)
    new = [set(one) - set(old) for old, one in zip(before, after, strict=True)]
    assert Counter(len(one) for one in new) == {0: 6, 1: 6}
    assert all(one <= {3} for one in new), "no replica moves between the old brokers"


# Promise: replicas.md#move-partitions
def test_a_broker_that_goes_is_replaced_where_it_was() -> None:
    """In its place in the list, within its rack if the others have replicas already; other lists stay."""
    brokers = [Usable(0), Usable(1, "a"), Usable(2, "a"), Usable(3, "b"), Usable(4, "b")]
    drained = without(1, [(0, 1, 3), (1, 3, 0), (0, 2, 4)], brokers)
    assert drained.lists == {(0, 1, 3): (0, 2, 3), (1, 3, 0): (2, 3, 0)} and not drained.stuck


def test_replacements_are_spread_over_the_brokers() -> None:
    """The one with the fewest replicas is the next."""
    brokers = [Usable(broker) for broker in range(5)]
    lists = without(1, [(1, 0), (1, 2), (1, 3), (1, 4), (0, 1)], brokers).lists
    assert all(1 not in one and len(set(one)) == 2 for one in lists.values())
    loads = Counter(broker for one in lists.values() for broker in one)
    assert max(loads.values()) - min(loads.values()) <= 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1,), (0,)),  # a single replica is in the log's own root
        ((0, 1, 9), (0, 2, 9)),
        ((1, 0, 2), (0, 2, 3)),  # a fenced one never leads, and comes last
    ],
)
def test_special_replacements(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Broker 9 is asynchronous, 3 is fenced."""
    brokers = [Usable(0), Usable(1), Usable(2), Usable(3, fenced=True)]
    assert without(1, [before], brokers).lists == {before: after}


def test_an_asynchronous_broker_goes_without_a_replacement() -> None:
    assert without(9, [(0, 1, 9)], [Usable(0), Usable(1), Usable(2)]).lists == {(0, 1, 9): (0, 1)}


def test_lists_for_which_no_broker_is_left_are_named() -> None:
    drained = without(1, [(0, 1), (0, 1, 2)], [Usable(0), Usable(1), Usable(2)])
    assert drained.lists == {(0, 1): (0, 2)} and drained.stuck == [(0, 1, 2)]
