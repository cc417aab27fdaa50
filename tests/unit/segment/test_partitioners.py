"""Which partition a record goes to, in Kafka's order of decisions."""

from __future__ import annotations

import random
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from spark_log.errors import InvalidRecord, InvalidRequest
from spark_log.segment.keys.murmur2 import partition_for_key
from spark_log.segment.partitioners import (
    Murmur2Partitioner,
    Partitions,
    RoundRobinPartitioner,
    StickyPartitioner,
    assign_partitions,
    make_partitioner,
)
from tests.unit.segment.builders import numbered, records, shuffled


class ByLength:
    """A user's own class."""

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> Partitions:
        return np.array([len(value.as_py()) for value in values])


class Halves(ByLength):
    """One that gives no integers."""

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> Partitions:
        return np.full(len(keys), 0.5)


class Nothing:
    """Not a partitioner."""


def values(sizes: list[int]) -> pa.RecordBatch:
    return records([(None, bytes(size), 0) for size in sizes])


def test_a_partition_that_the_record_names_comes_first() -> None:
    """Rows that name one get it; only the others reach the partitioner."""
    rows = numbered(6)
    wanted = pa.array([4, None, 0, 1, None, 2])

    found = assign_partitions(rows, wanted, 5, RoundRobinPartitioner(), topic="t")

    assert found.tolist() == [4, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("partition", [-1, 3, 2**40])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    """The sentence names the partition and how many there are."""
    wanted = pa.array([0, partition], pa.int64())

    with pytest.raises(InvalidRecord, match=f"partition {partition} of topic 'orders', which has 3 partitions"):
        assign_partitions(numbered(2), wanted, 3, RoundRobinPartitioner(), topic="orders")


def test_keys_go_by_their_hash_and_others_stick() -> None:
    """The default: murmur2 for keys, and one partition for a while for records without."""
    keys = [b"a", None, b"b", None, b"", None]
    rows = records([(key, b"v", 0) for key in keys])

    found = assign_partitions(rows, None, 7, make_partitioner("default", random.Random(1)), topic="t")

    hashed = partition_for_key(rows.column("key"), 7)
    assert [found[i] for i in (0, 2, 4)] == [hashed[i] for i in (0, 2, 4)]
    assert len({found[i] for i in (1, 3, 5)}) == 1


def test_a_column_of_nulls_names_no_partition() -> None:
    """It is as if it were not there."""
    wanted = pa.nulls(3, pa.int64())

    assert assign_partitions(numbered(3), wanted, 2, RoundRobinPartitioner(), topic="t").tolist() == [0, 1, 0]


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=5),
    st.integers(1, 50),
)
def test_sticky_changes_where_the_rule_for_single_records_does(batches: list[list[int]], batch_bytes: int) -> None:
    """Over several batches, against the rule applied record by record (KIP-794)."""
    partitioner, rng = StickyPartitioner(random.Random(3), batch_bytes), random.Random(3)
    found: list[int] = []
    expected: list[int] = []
    current, produced = None, 0
    for sizes in batches:
        rows = values(sizes)
        found += partitioner.partition(rows.column("key"), rows.column("value"), 10).tolist()
        for size in sizes:
            if current is None:
                current, produced = rng.randrange(10), 0
            expected.append(current)
            produced += max(size, 1)
            if produced >= batch_bytes:
                current = None

    assert found == expected


def test_sticky_spreads_bytes_evenly() -> None:
    """Over many batches each of four partitions gets about a quarter."""
    partitioner = StickyPartitioner(random.Random(5))
    rows = values([100] * 10_000)

    counts = Counter[int]()
    for _ in range(40):
        counts.update(partitioner.partition(rows.column("key"), rows.column("value"), 4).tolist())

    assert all(85_000 < counts[partition] < 115_000 for partition in range(4))


def test_round_robin_goes_on_where_the_last_batch_ended() -> None:
    """From 0, whatever the keys."""
    partitioner = make_partitioner("round-robin", random.Random(1))
    rows = numbered(4)

    found = [partitioner.partition(rows.column("key"), rows.column("value"), 3).tolist() for _ in range(2)]

    assert found == [[0, 1, 2, 0], [1, 2, 0, 1]]


def test_a_users_class_decides_and_is_checked() -> None:
    """`module:Class` is loaded; what it gives must be integers in range."""
    rows, rng = records([(None, b"abc", 0), (None, b"a", 0)]), random.Random(1)
    mine = make_partitioner(f"{__name__}:ByLength", rng)
    halves = make_partitioner(f"{__name__}:Halves", rng)

    assert assign_partitions(rows, None, 4, mine, topic="t").tolist() == [3, 1]
    with pytest.raises(InvalidRecord, match="partitioner ByLength gave partition 3 of topic 't', which has 3"):
        assign_partitions(rows, None, 3, mine, topic="t")
    with pytest.raises(InvalidRecord, match="Halves gave float64 of shape"):
        assign_partitions(rows, None, 3, halves, topic="t")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("random", "default, murmur2, round-robin, sticky"),
        ("no_such_module:X", "ModuleNotFoundError"),
        (f"{__name__}:Missing", "AttributeError"),
        (f"{__name__}:Nothing", "no method partition"),
    ],
)
def test_a_partitioner_that_cannot_be_is_refused(name: str, words: str) -> None:
    """The sentence names what was asked for and what is possible, or what went wrong."""
    with pytest.raises(InvalidRequest, match=words):
        make_partitioner(name, random.Random(1))


# Promise: clients.md#producer
def test_names_stand_for_kafkas_partitioners() -> None:
    """default is murmur2."""
    rng = random.Random(1)
    kinds = [type(make_partitioner(name, rng)) for name in ("default", "murmur2", "sticky")]

    assert kinds == [Murmur2Partitioner, Murmur2Partitioner, StickyPartitioner]


@pytest.mark.parametrize("name", ["default", "sticky"])
def test_one_partition_needs_no_choice(name: str) -> None:
    """Keys are not hashed, and no random number is drawn."""
    rng = random.Random(1)
    before = rng.getstate()

    found = assign_partitions(shuffled(50, seed=2), None, 1, make_partitioner(name, rng), topic="t")

    assert found.tolist() == [0] * 50
    assert rng.getstate() == before
