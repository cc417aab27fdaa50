"""The map of a mirror: runs of offsets, kept in the log beside what was copied."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_log
from spark_log import TopicPartition
from spark_log.client import mirror_map
from spark_log.client.mirror_map import (
    Copied,
    CopiedRuns,
    MapEntry,
    MirroredTopic,
    MirrorMap,
    OffsetRun,
    runs_of,
    with_map,
)
from spark_log.errors import InvalidRequest
from spark_log.store.memory import MemoryStore
from tests.client.logs import log_on, new_log
from tests.thinning import thin

ORDERS_0 = TopicPartition("orders", 0)
ascending = st.sets(st.integers(0, 300), max_size=60).map(sorted)


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    return new_log(tmp_path, orders=2)


@pytest.fixture
def offsets(log: spark_log.Log) -> MirrorMap:
    made = MirrorMap(log, "map")
    made.create()
    return made


def records(found: Sequence[int], partition: int = 0, keys: Sequence[bytes | None] | None = None) -> pa.RecordBatch:
    """The records that a task reads, with these offsets."""
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["orders"] * len(found),
            "partition": pa.array([partition] * len(found), pa.int32()),
            "offset": pa.array(found, pa.int64()),
            "key": pa.array([b"k"] * len(found) if keys is None else keys, pa.binary()),
            "value": [b"%d" % offset for offset in found],
        }
    )


def mirrored(log: spark_log.Log, *batches: pa.RecordBatch, compacted: bool = False) -> None:
    """One task's batches, copied as a micro-batch is: all in one commit."""
    copy = MirroredTopic("orders", log.journal.refresh().names["orders"], "there", "map", compacted)
    with log.transaction("mirror") as txn:
        for batch in with_map(copy, batches):
            for topic in pc.unique(batch.column("topic")).to_pylist():
                txn.append(topic, batch.filter(pc.equal(batch.column("topic"), topic)))


@given(ascending)
def test_runs_are_the_offsets(found: list[int]) -> None:
    """Each offset is in exactly one run, and runs do not touch."""
    runs = runs_of(np.array(found, np.int64))
    assert [offset for run in runs for offset in range(run.start, run.end)] == found
    assert all(before.end < after.start for before, after in itertools.pairwise(runs))


# Promise: from-kafka.md#taking-topics-along
@given(st.lists(ascending, max_size=4), st.lists(st.integers(0, 320), max_size=10))
def test_an_offset_there_becomes_the_number_of_records_before_it(parts: list[list[int]], asked: list[int]) -> None:
    """However the copying was cut into tasks and batches, and in gaps as well."""
    known = sorted({offset for part in parts for offset in part})
    batches = [records(known[n : n + 7]) for n in range(0, len(known), 7)]
    written = [batch for batch in with_map(MirroredTopic("orders", "id", "there", "map"), batches) if batch.num_rows]
    runs = CopiedRuns()
    for batch in written:
        for topic, value in zip(batch.column("topic"), batch.column("value"), strict=True):
            if topic.as_py() == "map":
                runs.add(mirror_map.parse_entry(value.as_py()))
    assert [runs.offset_here(offset) for offset in asked] == [sum(one < offset for one in known) for offset in asked]


def test_runs_that_meet_are_one(log: spark_log.Log, offsets: MirrorMap) -> None:
    """A task's batches end anywhere; the map does not grow with their number."""
    mirrored(log, records([3, 4]), records([5, 6, 9]), records([10]))
    ((_, entry),) = offsets.entries()
    assert entry.runs == (OffsetRun(3, 4), OffsetRun(9, 2))


def test_an_entry_holds_so_many_runs(log: spark_log.Log, offsets: MirrorMap) -> None:
    """A partition of which compaction left every other record makes entries of a bounded size."""
    mirrored(log, records(range(0, 2 * mirror_map.RUNS_MAX + 2, 2)))
    assert [len(entry.runs) for _, entry in offsets.entries()] == [mirror_map.RUNS_MAX, 1]


def test_the_map_goes_on_from_commit_to_commit(log: spark_log.Log, offsets: MirrorMap) -> None:
    """By partition: how many records, and where to continue."""
    mirrored(log, records([0, 2]), records([7], partition=1))
    mirrored(log, records([5, 6]))
    assert offsets.copied() == {ORDERS_0: Copied(4, 7, "there"), TopicPartition("orders", 1): Copied(1, 8, "there")}
    assert offsets.translate([(ORDERS_0, 3), (ORDERS_0, 6)]) == {(ORDERS_0, 3): 2, (ORDERS_0, 6): 3}


def test_each_look_at_the_map_reads_what_was_added(log: spark_log.Log, offsets: MirrorMap) -> None:
    """From the end of the last look on; a map that was deleted and made again is read whole."""
    mirrored(log, records([0, 2]))
    offsets.copied()
    read = list[int]()

    class Counted(MirrorMap):
        def entries(self, start: int = 0) -> Iterator[tuple[int, MapEntry]]:
            read.append(start)
            return super().entries(start)

    counted = Counted(log, "map")
    for _ in range(2):
        assert counted.copied() == offsets.copied()
    mirrored(log, records([3]), records([5], partition=1))
    assert counted.translate([(ORDERS_0, 3)]) == {(ORDERS_0, 3): 2} and counted.copied() == offsets.copied()
    assert read == [0, 1]
    log.admin.delete_topics(["map"])
    counted.create()
    assert counted.copied() == {} and read == [0, 1]
    mirrored(log, records([9]))
    assert counted.copied() == {ORDERS_0: Copied(1, 10, "there")} and read == [0, 1, 0]


def test_a_task_without_records_writes_nothing(log: spark_log.Log, offsets: MirrorMap) -> None:
    """No entry says nothing."""
    mirrored(log)
    assert offsets.copied() == {} and log.read("map").num_rows == 0


# Promise: tasks/mirror-topics.md#mirror-topics-to-another-log
def test_records_that_were_copied_twice_are_noticed(log: spark_log.Log, offsets: MirrorMap) -> None:
    """Two mirrors began at the same offset.  A topic that was created again in the source begins again, too."""
    mirrored(log, records([0, 1]), records([0], partition=1))
    mirrored(log, records([1, 2]))
    with pytest.raises(InvalidRequest, match=r"orders-0 from offset 1 of the source on were copied twice: two mirrors"):
        offsets.check(["orders"])
    entry = MirroredTopic("orders", log.journal.state.names["orders"], "another", "other")
    MirrorMap(log, "other").create()
    for copy in entry._replace(source="there"), entry:
        log.append("other", mirror_map.entry_rows(copy, {0: [(0, 2)]}))
    assert MirrorMap(log, "other").copied()[ORDERS_0].source == "another"


def test_the_map_is_kept_whatever_the_defaults_of_the_log_are(log: spark_log.Log, offsets: MirrorMap) -> None:
    assert log.admin.describe_topics(["map"])["map"].configs == mirror_map.KEPT


def test_a_record_of_somebody_else_is_noticed(log: spark_log.Log, offsets: MirrorMap) -> None:
    """Offsets after it would be wrong by one, so that it is an error, with the partition and both counts."""
    mirrored(log, records([0, 1]))
    offsets.check(["orders"])
    log.append("orders", [{"value": "mine", "partition": 0}])
    with pytest.raises(InvalidRequest, match="orders-0 ends at 3, but the map 'map' knows of 2 copied records"):
        offsets.check(["orders"])


def test_a_topic_that_was_deleted_starts_afresh(log: spark_log.Log, offsets: MirrorMap) -> None:
    """Its entries count no more."""
    mirrored(log, records([0, 1]))
    log.admin.delete_topics(["orders"])
    log.admin.create_topics([spark_log.NewTopic("orders", 1)])
    offsets.check(["orders"])
    assert offsets.copied() == {}


def test_a_map_that_is_not_there_is_empty(log: spark_log.Log) -> None:
    """A dry run asks before anything was made."""
    assert MirrorMap(log, "none").copied() == {}


# Promise: tasks/keep-the-latest.md#topics-from-kafka
def test_records_without_a_key_are_left_out_of_a_compacted_copy(log: spark_log.Log, offsets: MirrorMap) -> None:
    """Kafka has them until its next cleaning, and the copy would refuse them.  Their offsets are gaps in the map."""
    log.admin.incremental_alter_configs({"orders": {"cleanup.policy": "compact"}})
    mirrored(log, records([3, 4, 5, 8], keys=[None, b"a", None, b"b"]), records([9], keys=[None]), compacted=True)
    mirrored(log, records([12], keys=[b"a"]), compacted=True)
    assert log.read("orders", columns=["value"]).column("value").to_pylist() == [b"4", b"8", b"12"]
    asked = [(ORDERS_0, offset) for offset in (3, 4, 5, 8, 9, 12, 13)]
    assert list(offsets.translate(asked).values()) == [0, 0, 1, 1, 2, 2, 3]
    offsets.check(["orders"])


# Promise: tasks/keep-the-latest.md#topics-from-kafka
@settings(max_examples=25, deadline=None)
@given(ascending, st.sets(st.integers(0, 60)), st.integers(0, 320))
def test_the_map_holds_when_the_copy_is_compacted(known: list[int], gone: set[int], asked: int) -> None:
    """Holes in the source and holes here: a position leads to the first record that is left at or after it."""
    log = log_on(MemoryStore(uuid.uuid4().hex))
    log.create_topic(spark_log.NewTopic("orders", 1))
    offsets = MirrorMap(log, "map")
    offsets.create()
    for first in range(0, len(known), 7):
        mirrored(log, records(known[first : first + 7]))
    if known:
        assert thin(log, "orders", lambda offset: offset not in gone)
    offsets.check(["orders"])
    left = [offset for place, offset in enumerate(known) if place not in gone and offset >= asked]
    at = offsets.translate([(ORDERS_0, asked)])[ORDERS_0, asked]
    found = log.read("orders", start=at, columns=["value"]).column("value").to_pylist()
    assert found == [b"%d" % offset for offset in left]
