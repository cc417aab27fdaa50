"""Which brokers hold the replicas of a partition: a ring of brokers, as Kafka's striped placer has it.  Pure.

Neighbours on the ring are in different racks as far as possible.  Each list of replicas begins with another broker, the
preferred leader, and continues with the brokers after it.  So there are as many lists, and placement groups, as active
brokers.  Brokers without a rack share the rack "".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import is_active
from spark_log.metadata.state import State

Replicas = tuple[int, ...]
"""Broker ids; the first is the preferred leader."""


class Usable(NamedTuple):
    """A broker that can hold replicas."""

    broker: int
    rack: str = ""
    fenced: bool = False


def usable_brokers(state: State) -> list[Usable]:
    """The brokers that get replicas automatically, by id: all but the asynchronous ones and those that were drained."""
    return [one for one in synchronous_brokers(state) if not is_drained(state, one.broker)]


def is_drained(state: State, broker: int) -> bool:
    """Whether a broker gets no replicas automatically any more."""
    known = state.brokers.get(broker)
    return known is not None and known.drained


def synchronous_brokers(state: State) -> list[Usable]:
    """All brokers but the asynchronous ones, by id."""
    found = []
    for broker in sorted({OWN_BROKER, *state.brokers}):
        known = state.brokers.get(broker)
        if known is None or not known.is_async:
            found.append(Usable(broker, "" if known is None else known.rack, not is_active(state, broker)))
    return found


def topic_shift(topic_id: str) -> int:
    """Where on the ring a topic begins, so that not all topics begin at the same broker."""
    return crc32(topic_id.encode())


class Ring(NamedTuple):
    """Brokers, so that neighbours are in different racks as far as possible."""

    active: list[Usable]
    fenced: list[Usable]

    @staticmethod
    def of(brokers: Sequence[Usable]) -> Ring:
        """The ring of some brokers, at least one of which is active."""
        return Ring(_striped(one for one in brokers if not one.fenced), _striped(one for one in brokers if one.fenced))

    def replicas(self, at: int, factor: int) -> Replicas:
        """The list that an active broker leads: each rack once before any twice.

        Fenced brokers are in it only if there are too few active ones.
        """
        return _nearest([*self.active[at:], *self.active[:at], *self.fenced], factor)


def _striped(brokers: Iterable[Usable]) -> list[Usable]:
    """The first broker of each rack, then the second of each, and so on."""
    racks: dict[str, list[Usable]] = {}
    for one in sorted(brokers):
        racks.setdefault(one.rack, []).append(one)
    turns = max(map(len, racks.values()), default=0)
    return [some[turn] for turn in range(turns) for _, some in sorted(racks.items()) if turn < len(some)]


def _nearest(order: Sequence[Usable], factor: int) -> Replicas:
    """The first broker, and for each place after it the first one of a rack that has the fewest replicas yet."""
    left, used, found = list(order), Counter[str](), list[int]()
    for _ in range(factor):
        best = min(left, key=lambda one: (one.fenced, used[one.rack]))
        left.remove(best)
        used[best.rack] += 1
        found.append(best.broker)
    return tuple(found)


def place(brokers: Sequence[Usable], factor: int, numbers: Iterable[int]) -> list[Replicas]:
    """The replicas of new partitions: list by list around the ring.

    brokers:  at least `factor`.
    numbers:  one for each partition, in steps of 1; topics begin at different numbers.
    """
    ring = Ring.of(brokers)
    places = [number % len(ring.active) for number in numbers]
    lists = {at: ring.replicas(at, factor) for at in set(places)}
    return [lists[at] for at in places]


def spread(current: Sequence[Replicas], brokers: Sequence[Usable], factor: int, shift: int) -> list[Replicas]:
    """The lists of a ring for partitions that have replicas already, with few changes.

    Each list gets the same number of partitions, one more or less.  A partition gets the list with most of the brokers
    that it has, as far as that number allows.

    current:  the replicas of each partition of a topic.
    shift:    of the topic.
    """
    ring = Ring.of(brokers)
    lists = [ring.replicas(at, factor) for at in range(len(ring.active))]
    room = Counter((shift + number) % len(lists) for number in range(len(current)))
    wishes = {one: _by_likeness(one, lists) for one in set(current)}
    stay = wishes.keys() & set(lists)
    found = dict[int, Replicas]()
    for number in sorted(range(len(current)), key=lambda at: (current[at] not in stay, at)):
        chosen = next(at for at in wishes[current[number]] if room[at])
        room[chosen] -= 1
        found[number] = lists[chosen]
    return [found[number] for number in range(len(current))]


def _by_likeness(replicas: Replicas, lists: Sequence[Replicas]) -> list[int]:
    """Numbers of lists: those with most brokers of `replicas` first, of these those with its leader."""
    return sorted(range(len(lists)), key=lambda at: (-len({*replicas} & {*lists[at]}), lists[at][0] != replicas[0]))


class Drained(NamedTuple):
    """New lists for the partitions of a broker that goes."""

    lists: dict[Replicas, Replicas]
    """The lists that have the broker, and those in their place."""
    stuck: list[Replicas]
    """Lists for which no other broker is left."""


def without(broker: int, current: Iterable[Replicas], brokers: Sequence[Usable]) -> Drained:
    """Lists in which another broker has the place of one that goes.

    It is active if any such is left; then in a rack that the list has least often; then the one that has the fewest
    replicas.  An asynchronous broker gets no other in its place, and a single replica goes to the log's own root.

    current:  the replicas of each partition, also of those that have no replica on the broker.
    brokers:  all that get replicas automatically, and this one unless it is asynchronous.
    """
    partitions, load = Counter(current), Counter[int]()
    for one, count in partitions.items():
        load.update(dict.fromkeys(one, count))
    found = Drained({}, [])
    for one, count in sorted(partitions.items()):
        if broker in one:
            kept = tuple(other for other in one if other != broker)
            new = _substitute(broker, kept, brokers, load)
            if new is not None:
                load[new.broker] += count
                found.lists[one] = (
                    (*kept, new.broker) if new.fenced else tuple(new.broker if x == broker else x for x in one)
                )
            elif all(other.broker != broker for other in brokers):
                found.lists[one] = kept
            else:
                found.stuck.append(one)
    return found


def _substitute(broker: int, kept: Replicas, brokers: Sequence[Usable], load: Counter[int]) -> Usable | None:
    """The best broker in place of one that goes; None if there is none, or none is needed."""
    if not kept:
        return Usable(OWN_BROKER)
    racks = {one.broker: one.rack for one in brokers}
    if broker not in racks:
        return None
    used = Counter(racks.get(other) for other in kept)
    fit = [one for one in brokers if one.broker not in (broker, *kept)]
    return min(fit, key=lambda one: (one.fenced, used[one.rack], load[one.broker], one.broker), default=None)
