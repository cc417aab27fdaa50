"""Merging: fewer objects, the same records, whatever others do meanwhile."""

from __future__ import annotations

import io
from collections import deque
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.client.reader.scan_batches import SCAN_SCHEMA, scan_batches
from spark_log.journal.context import Context
from spark_log.journal.store_operations import Op, Put, Steps
from spark_log.maintenance.maintain import checkpoint, expire, maintain_once, merge
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import decide_delete_topic, decide_set_configs, decide_trim
from spark_log.model import APPEND_TIME_IN_ROWS, CREATE_TIME, Slice
from spark_log.recovery.verify import verify
from spark_log.rewriting.merge import Tally
from spark_log.rewriting.merge import merge as merge_steps
from spark_log.rewriting.rewrite import Rewriting, rewrite
from spark_log.rewriting.rewrite_packs import PARALLEL_PACKS, Stretch, take_packs
from spark_log.rewriting.slice_reads import WHOLE_BYTES_MAX
from spark_log.segment.compression import Compression
from tests.maintenance.logs import append_small, maintenance, new_log, pass_the_fence, rows, slices
from tests.thinning import thin


def test_small_commits_become_one_object_a_partition(tmp_path: Path) -> None:
    """Many small commits to several partitions are one segment each afterwards, in one object, with the same records
    at the same offsets.
    """
    log = new_log(tmp_path, partitions=3)
    append_small(log, 40, partitions=3)
    before = log.read("t")
    report = maintain_once(log)
    assert (report.merged_slices, report.segments) == (120, 3)
    assert [len(slices(log, p)) for p in range(3)] == [1, 1, 1]
    assert len(log.journal.state.objects) == 1
    assert log.read("t").equals(before)
    assert verify(log, deep=True) == []


def test_a_second_round_has_nothing_to_do(tmp_path: Path) -> None:
    """Merged data is left alone."""
    log = new_log(tmp_path, partitions=2)
    append_small(log, 10, partitions=2)
    first, second = maintain_once(log), maintain_once(log)
    assert first.segments == 2
    assert (second.merged_slices, second.version) == (0, first.version)


def test_sealed_slices_are_merged_too(tmp_path: Path) -> None:
    """Slices that went into an index object are found there, and the index goes with them."""
    log = new_log(tmp_path)
    append_small(log, 300)
    checkpoint(log)
    topic = log.journal.refresh().names["t"]
    assert any(isinstance(entry, Piece) for entry in log.journal.state.partitions[topic, 0].entries)
    before = log.read("t")
    maintain_once(log)
    assert len(slices(log)) == 1
    assert len(log.journal.refresh().objects) == 1
    assert log.read("t").equals(before)


def test_the_name_of_a_segment_tells_topic_partition_and_offset(tmp_path: Path) -> None:
    """data/<epoch>/<topic id>-<partition>-<base offset>-<unique>.seg"""
    log = new_log(tmp_path)
    append_small(log, 2)
    merge(log)
    topic = log.journal.refresh().names["t"]
    assert slices(log)[0].object.split("/")[2].startswith(f"{topic}-0-{0:020}-")


def test_segments_stay_below_segment_bytes(tmp_path: Path) -> None:
    """A topic may want smaller segments than 128 MiB."""
    log = new_log(tmp_path, segment_bytes=str(1 << 20), compression_type="none")
    for number in range(30):
        log.append("t", rows(100 * number, 100, width=1000))
    before = log.read("t")
    merge(log)
    sizes = [piece.length for piece in slices(log)]
    assert len(sizes) in (3, 4)
    assert max(sizes) <= 1 << 20
    assert log.read("t").equals(before)


def test_large_slices_are_read_by_ranges(tmp_path: Path) -> None:
    """Slices too large to be read whole are merged batch by batch."""
    log = new_log(tmp_path, compression_type="none")
    for number in range(3):
        log.append("t", rows(6000 * number, 6000, width=1000))
    before = log.read("t")
    assert slices(log)[0].length > WHOLE_BYTES_MAX
    tally = merge(log)
    assert tally == merge_of(log, 3)
    assert log.read("t").equals(before)


def test_append_time_goes_into_the_rows(tmp_path: Path) -> None:
    """Records whose time is the log's keep it, and are not merged with records that have their own."""
    log = new_log(tmp_path)
    append_small(log, 3)
    log.journal.propose(lambda s, now: decide_set_configs(s, "t", {"message.timestamp.type": "LogAppendTime"}))
    append_small(log, 3, first=3)
    log.journal.propose(lambda s, now: decide_set_configs(s, "t", {"message.timestamp.type": None}))
    append_small(log, 3, first=6)
    before = log.read("t")
    merge(log)
    assert [piece.time_kind for piece in slices(log)] == [CREATE_TIME, APPEND_TIME_IN_ROWS, CREATE_TIME]
    assert log.read("t").equals(before)
    assert verify(log, deep=True) == []


def test_late_headers_are_kept(tmp_path: Path) -> None:
    """Slices with and without headers are merged."""
    log = new_log(tmp_path)
    log.append("t", [{"value": b"1"}])
    log.append("t", [{"value": b"2", "headers": [{"key": "h", "value": b"x"}]}])
    before = log.read("t")
    merge(log)
    assert log.read("t").equals(before)
    assert len(slices(log)) == 1


# ------------------------------------------------------------------------------------------------ several at a time


MIB = 1 << 20


def watched(steps: Steps[Tally], requests: list[list[Op]]) -> Steps[Tally]:
    """The same steps; their requests are recorded."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as stop:
            return cast(Tally, stop.value)
        requests.append(request if isinstance(request, list) else [request])
        answer = yield request


def test_segments_of_several_partitions_are_written_together(tmp_path: Path) -> None:
    """Four at a time, also if each partition gets several; they have the same records as before."""
    log = new_log(tmp_path, partitions=6, segment_bytes=str(MIB), compression_type="none")
    for number in range(6):
        for first in range(0, 48, 8):
            log.append("t", rows(first, 8, partition=number, width=50_000))
    before = log.read("t")
    requests: list[list[Op]] = []

    def duty(state: State, context: Context) -> Steps[Tally]:
        return watched(merge_steps(state, context, io.BytesIO), requests)

    tally = maintenance(log.journal, duty)
    assert (tally.planned, tally.slices, tally.segments) == (36, 36, 18)
    puts = [sum(isinstance(op, Put) for op in request) for request in requests]
    assert max(puts) == PARALLEL_PACKS and sum(puts) == 18
    assert sum(count > 0 for count in puts) <= 6
    assert log.read("t").equals(before)
    assert verify(log, deep=True) == []


def pack(*sizes: int) -> list[Stretch]:
    """A stretch for each size in MiB."""
    return [Stretch(("t", n), [Slice(0, 1, "x", 0, size * MIB, 0, 1, 0, 0)]) for n, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("waiting", "taken"),
    [
        ([pack(500)] * 6, 4),
        ([pack(1, 1)] * 6, 4),
        ([pack(30, 30), pack(3, 1), pack(1, 1)], 2),
        ([pack(40, 40), pack(1, 1)], 1),
        ([pack(10, 10), pack(900), pack(900), pack(900)], 3),
        ([pack(1)], 1),
    ],
)
def test_objects_that_are_written_together_hold_as_much_as_one_may(waiting: list[list[Stretch]], taken: int) -> None:
    """64 MiB of slices: all slices of a shared object, 16 MiB of another one."""
    left = deque(waiting)
    assert take_packs(left) == waiting[:taken]
    assert list(left) == waiting[taken:]


# ----------------------------------------------------------------------------------------------- others, meanwhile


class Meanwhile:
    """Does something once, when the first segment is written and not yet swapped in."""

    def __init__(self, action: object) -> None:
        self.action = action

    def __call__(self, what: str, at: int, total: int) -> None:
        action, self.action = self.action, None
        if callable(action):
            action()


def test_appends_meanwhile_are_kept(tmp_path: Path) -> None:
    """A writer that commits while segments are written loses nothing, and the merge still lands."""
    log, other = new_log(tmp_path), connect(str(tmp_path))
    append_small(log, 10)
    assert merge(log, progress=Meanwhile(lambda: append_small(other, 5, first=10))).slices == 10
    values = log.read("t", columns=["value"])["value"].to_pylist()
    assert values == [b"%d" % n for n in range(45)]


def test_a_seal_meanwhile_costs_no_data(tmp_path: Path) -> None:
    """When others moved the slices into an index, the swap is prepared again; the segment is not written again."""
    log, other = new_log(tmp_path), connect(str(tmp_path))
    append_small(log, 300)
    before = log.read("t")
    tally = merge(log, progress=Meanwhile(lambda: checkpoint(other)))
    assert tally == merge_of(log, 300)
    assert log.read("t").equals(before)
    assert len(list(tmp_path.glob("data/*/*-0-*.seg"))) == 1


def merge_of(log: Log, count: int) -> Tally:
    """The tally of a merge of so many slices into the one object that there is."""
    state = log.journal.refresh()
    (row,) = state.objects.values()
    return Tally(count, 1, row.size, planned=count)


# Promise: cli.md#pylog-maintain
def test_two_maintainers_merge_once(tmp_path: Path) -> None:
    """The one that comes second gives up; its segment is garbage."""
    log, other = new_log(tmp_path), connect(str(tmp_path))
    append_small(log, 10)
    before = log.read("t")
    assert merge(log, progress=Meanwhile(lambda: merge(other))).slices == 0
    assert log.read("t").equals(before)
    assert verify(log, deep=True) == []


def test_records_trimmed_meanwhile_stay_trimmed(tmp_path: Path) -> None:
    """Slices that were pruned are not brought back."""
    log, other = new_log(tmp_path), connect(str(tmp_path))
    append_small(log, 10)

    def trim() -> None:
        topic = other.journal.refresh().names["t"]
        other.journal.propose(lambda s, now: decide_trim(s, {(topic, 0): 12}))
        expire(other)

    assert merge(log, progress=Meanwhile(trim)).slices == 0
    assert log.read("t")["offset"].to_pylist() == list(range(12, 30))
    assert merge(log).slices == 6


def test_a_topic_deleted_meanwhile_stays_deleted(tmp_path: Path) -> None:
    """Nothing of it comes back."""
    log, other = new_log(tmp_path), connect(str(tmp_path))
    append_small(log, 10)
    merge(log, progress=Meanwhile(lambda: delete(other)))
    maintain_once(log)
    assert not log.journal.refresh().partitions
    assert not log.journal.state.objects


def test_stretches_of_a_topic_that_was_forgotten_since_they_were_planned_are_left_out(tmp_path: Path) -> None:
    """An erasure moves on to a newer state between its plan and its rewrites."""
    log = new_log(tmp_path)
    append_small(log, 4)
    key = (log.journal.state.names["t"], 0)
    stretches = [Stretch(key, tuple(slices(log)))]
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    delete(log)
    log.create_topic(NewTopic("other", 1))
    pass_the_fence(log)
    assert key[0] not in log.journal.refresh().topics

    def duty(state: State, context: Context) -> Steps[list[Any]]:
        how = Rewriting(name="erase", activity="erasing from", open_spool=io.BytesIO)
        return (yield from rewrite(state, context, stretches, how))[1]

    assert maintenance(log.journal, duty) == []


def delete(log: Log) -> None:
    log.journal.propose(lambda s, now: decide_delete_topic(s, "t"))


# Promise: storage.md#how-long-a-write-or-a-read-may-take
def test_readers_that_planned_before_still_read(tmp_path: Path) -> None:
    """The objects that were merged stay until the fence has passed; after that a reader plans again by offset."""
    log = new_log(tmp_path)
    append_small(log, 20)
    before, reads = log.read("t"), log.plan("t")
    maintain_once(log)
    old = tmp_path / reads[0].slice.object
    assert old.exists()
    assert pa.Table.from_batches(scan_batches(log.journal, reads, SCAN_SCHEMA)).equals(before)
    log.journal.propose(lambda s, now: decide_set_configs(s, None, {"gc.fence.age.ms": "1"}))
    pass_the_fence(log)
    assert not old.exists()
    assert pa.Table.from_batches(scan_batches(log.journal, reads, SCAN_SCHEMA)).equals(before)


def test_an_object_less_than_half_alive_is_rewritten(tmp_path: Path) -> None:
    """When most of an object's records are trimmed, the rest moves, so that the object can go."""
    log = new_log(tmp_path, partitions=4)
    log.append("t", pa.concat_tables([rows(0, 1000, partition=p) for p in range(4)]))
    (shared,) = log.journal.refresh().objects
    topic = log.journal.state.names["t"]
    log.journal.propose(lambda s, now: decide_trim(s, {(topic, p): 1000 for p in range(3)}))
    before = log.read("t")
    maintain_once(log)
    assert shared not in log.journal.refresh().objects
    assert log.read("t").equals(before)
    assert log.append("t", rows(0, 1, partition=3)) == {TopicPartition("t", 3): range(1000, 1001)}


def test_holes_are_kept(tmp_path: Path) -> None:
    """In an object that several partitions share, with a partition without records and one without holes."""
    log = new_log(tmp_path, partitions=3)
    append_small(log, 6, partitions=3)
    for partition, left in enumerate(({0, 5, 6, 11}, set[int](), set(range(18)))):
        thin(log, "t", left.__contains__, partition=partition, first=1, last=5)
    before = log.read("t")
    merge(log)
    assert [len(slices(log, partition)) for partition in range(3)] == [1, 1, 1]
    assert len({slices(log, partition)[0].object for partition in range(3)}) == 1
    assert log.read("t").equals(before)
    assert [piece.end for partition in range(3) for piece in slices(log, partition)] == [18, 18, 18]


def test_large_slices_with_holes_are_merged_by_ranges(tmp_path: Path) -> None:
    """The offsets of their batches come from the index."""
    log = new_log(tmp_path, compression_type="none")
    for number in range(2):
        log.append("t", rows(6000 * number, 6000, width=1000))
        thin(log, "t", lambda offset: offset % 10 != 3, first=number, last=number + 1, compression=Compression("none"))
    before = log.read("t")
    assert all(piece.length > WHOLE_BYTES_MAX for piece in slices(log))
    merge(log)
    assert len(slices(log)) == 1
    assert log.read("t").equals(before)
    assert log.read("t").column("offset").to_pylist() == [offset for offset in range(12_000) if offset % 10 != 3]
