"""A frame that is used again, and the tasks of one query: planned once as of `load()`, and the rest at one version.
Without Spark.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_pylog.source.growth import FIXED, Basis, Planned
from pyspark_pylog.source.splits import decode_reads, encode_reads, split_growth

import spark_log
from simulation.harness.slow_store import SlowStore
from simulation.harness.stores import Wrapper
from spark_log import NewTopic, TopicPartition
from spark_log.client.reader.plan import SliceRead
from spark_log.errors import DataLoss, UnknownTopicOrPartition
from spark_log.maintenance.maintain import maintain_once, merge
from spark_log.model import Slice
from spark_log.store.base import ObjectStore
from tests.spark.driver import Frame, rows
from tests.spark.lossy import losses, put, recreate, trim

T0 = TopicPartition("t", 0)


@pytest.fixture
def log(url: str) -> spark_log.Log:
    """Topic t, of one partition with ten records."""
    log = spark_log.connect(url, durability="os")
    put(log, 10)
    return log


class Meddling(Wrapper):
    """A store in which something happens just before a pin is put."""

    def __init__(self, inner: ObjectStore, meddle: Callable[[], object]) -> None:
        super().__init__(inner)
        self._meddle: list[Callable[[], object]] = [meddle]

    def put_new(self, key: str, data: bytes) -> bool:
        if key.startswith("meta/pin/") and self._meddle:
            self._meddle.pop()()
        return self.inner.put_new(key, data)


# ---------------------------------------------------------------------------------------------------- starts and ends


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize(
    "start", ["latest-2", "8", {"t": {"0": 8}}, "group:g", "@2026-01-31T10:00Z"], ids=lambda start: str(start)
)
def test_a_start_is_settled_at_load(url: str, start: Any) -> None:
    """And the end when the query runs: a frame that is used again only grows, wherever its start would be by now."""
    log = spark_log.connect(url, durability="os")
    times = [1_769_000_000_000] * 8 + [1_769_900_000_000] * 2
    log.append("t", [{"value": "v", "timestamp": time} for time in times])
    seek(log, 8)
    frame = Frame(url, startingOffsets=start)
    assert frame.run("1") == rows("t-0", 8, 10)
    log.append("t", [{"value": "v", "timestamp": 1_769_950_000_000}] * 5)
    seek(log, 12)
    assert frame.run("2") == rows("t-0", 8, 15)
    seek(log, 1)
    assert frame.run("3") == rows("t-0", 8, 15)


def seek(log: spark_log.Log, offset: int) -> None:
    log.admin.alter_consumer_group_offsets("g", {T0: offset})


# Promise: spark-read.md#options-of-a-read
def test_an_end_that_is_relative_follows_the_log(url: str, log: spark_log.Log) -> None:
    """Of each query, at its version."""
    frame = Frame(url, endingOffsets="latest-4")
    assert frame.run("1") == rows("t-0", 0, 6)
    put(log, 3)
    assert frame.run("2") == rows("t-0", 0, 9)


def test_an_end_of_a_group_goes_both_ways(url: str, log: spark_log.Log) -> None:
    """Ranges that the driver planned are cut where the group was set back; all tasks agree on its position."""
    seek(log, 6)
    frame = Frame(url, endingOffsets="group:g", maxRecordsPerPartition=2)
    assert len(frame.tasks) >= 3
    assert frame.run("1") == rows("t-0", 0, 6)
    seek(log, 3)
    assert frame.run("2") == rows("t-0", 0, 3)
    first = frame.task(len(frame.tasks) - 1, "3")
    seek(log, 10)
    assert sorted(first + [row for number in range(len(frame.tasks) - 1) for row in frame.task(number, "3")]) == rows(
        "t-0", 0, 3
    )
    assert frame.run("4") == rows("t-0", 0, 10)


def test_some_ends_may_be_fixed(url: str, log: spark_log.Log) -> None:
    """By partition: the others grow."""
    log.admin.create_partitions({"t": 2})
    put(log, 10, partition=1)
    frame = Frame(url, endingOffsets={"t": {"0": 5}})
    put(log, 1)
    put(log, 1, partition=1)
    assert frame.run() == rows("t-0", 0, 5) + rows("t-1", 0, 11)


# Promise: spark-read.md#options-of-a-read
def test_new_partitions_and_topics_are_added_in_full(url: str, log: spark_log.Log) -> None:
    """As if they had been there at load(), empty."""
    frame = Frame(url, None, subscribePattern="^[tu]$", startingOffsets="latest-1")
    log.admin.create_partitions({"t": 2})
    put(log, 3, partition=1)
    put(log, 2, topic="u")
    assert frame.run() == [("t-0", 9), *rows("t-1", 0, 3), *rows("u-0", 0, 2)]


def test_a_pattern_that_found_nothing_finds_what_comes(url: str, log: spark_log.Log) -> None:
    """Its frame has tasks for it."""
    frame, fixed = (Frame(url, None, subscribePattern="^u$", **end) for end in ({}, {"endingOffsets": "5"}))
    assert frame.run("1") == [] and fixed.tasks == []
    put(log, 3, topic="u")
    assert frame.run("2") == rows("u-0", 0, 3)


def test_ends_for_all_partitions_leave_out_new_ones(url: str, log: spark_log.Log) -> None:
    """As a bookmark has them: what comes later belongs to its next run."""
    frame = Frame(url, endingOffsets={"t": {"0": 5}})
    log.admin.create_partitions({"t": 2})
    put(log, 3, partition=1)
    assert frame.run() == rows("t-0", 0, 5)


# ------------------------------------------------------------------------------------------- trims and topics that go


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize("end", ["7", "latest"])
def test_trimmed_records_are_not_returned_by_a_later_run(url: str, log: spark_log.Log, end: str) -> None:
    """From `earliest` on it is what is there, whatever the end."""
    frame = Frame(url, endingOffsets=end)
    last = 7 if end == "7" else 10
    assert frame.run("1") == rows("t-0", 0, last)
    trim(log, 4)
    assert frame.run("2") == rows("t-0", 4, last)
    trim(log, 9)
    assert frame.run("3") == rows("t-0", 9, last)


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize("start", ["2", "latest-8"])
@pytest.mark.parametrize("end", ["7", "latest"])
def test_trimmed_records_that_were_to_be_read_are_a_loss(
    url: str, log: spark_log.Log, start: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Which the error names; with failOnDataLoss=false it is a warning, and the rest is read."""
    if (start, end) == ("latest-8", "7"):
        start = "2"
    options = {"startingOffsets": start, "endingOffsets": end}
    frame, lenient = Frame(url, **options), Frame(url, **options, failOnDataLoss="false")
    trim(log, 4)
    with pytest.raises(DataLoss, match=r"offsets \[2, 4\) of t-0 are gone, 2 records"):
        frame.run()
    assert lenient.run() == rows("t-0", 4, 7 if end == "7" else 10)
    assert len(losses(caplog)) == 1


def test_what_was_added_and_trimmed_between_two_runs_is_a_loss(url: str, log: spark_log.Log) -> None:
    """Nobody has read it."""
    frame = Frame(url, startingOffsets="latest-0")
    put(log, 5)
    trim(log, 12)
    with pytest.raises(DataLoss, match=r"offsets \[10, 12\) of t-0 are gone"):
        frame.run()
    assert Frame(url).run() == rows("t-0", 12, 15)


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize("options", [{}, {"endingOffsets": "10"}], ids=["open", "fixed"])
def test_records_of_a_topic_that_was_created_again_are_not_the_old_ones(
    url: str, log: spark_log.Log, options: dict[str, str]
) -> None:
    """A frame from `earliest` to an open end reads the new topic; a range that was planned is a loss."""
    frame = Frame(url, **options)
    recreate(log, 3)
    if options:
        with pytest.raises(DataLoss, match=r"\[0, 10\) of t-0 .* deleted and created again after this frame"):
            frame.run()
    else:
        assert frame.run() == rows("t-0", 0, 3)


@pytest.mark.parametrize("options", [{}, {"endingOffsets": "10"}], ids=["open", "fixed"])
def test_a_topic_that_was_deleted_is_not_read_any_more(url: str, log: spark_log.Log, options: dict[str, str]) -> None:
    """By its name it is an error, as at load(), and a loss where the end was fixed; a pattern does not find it any
    more.
    """
    put(log, 2, topic="u")
    named, found = Frame(url, **options), Frame(url, None, subscribePattern="^[tu]$")
    log.admin.delete_topics(["t"])
    with pytest.raises(DataLoss if options else UnknownTopicOrPartition, match="'t' was deleted after this frame"):
        named.run()
    assert found.run() == rows("u-0", 0, 2)


# ------------------------------------------------------------------------------------------------------ one version


def test_the_task_that_loses_the_race_for_the_pin_reads_what_the_winner_pinned(url: str, log: spark_log.Log) -> None:
    """It had seen an older state, in which the winner's records are not."""
    frame = Frame(url, parallelism=2)

    def win() -> None:
        put(log, 20_000)
        won.append(frame.task(0))

    won: list[list[tuple[str, int]]] = []
    lost = frame.task(1, store=Meddling(frame.store, win))
    assert sorted(won[0] + lost) == rows("t-0", 0, 20_010) and lost


# Promise: spark-read.md#options-of-a-read
def test_another_scan_of_the_query_reads_the_version_that_the_first_pinned(url: str, log: spark_log.Log) -> None:
    """Its own records are planned on a newer state, of which nothing shows; starts and ends are of one version."""
    first, second = Frame(url), Frame(url, startingOffsets="latest-3", endingOffsets="latest-1")
    put(log, 5)
    assert first.run("q") == rows("t-0", 0, 15)
    put(log, 5)
    trim(log, 13)
    assert second.run("q") == rows("t-0", 7, 14)
    assert first.run("q") == rows("t-0", 0, 15)


def test_a_scan_whose_plan_is_younger_than_the_pin_is_cut(url: str, log: spark_log.Log) -> None:
    """Two loads in one query agree, in whichever order they were planned."""
    first = Frame(url)
    assert first.run("q") == rows("t-0", 0, 10)
    put(log, 5)
    assert Frame(url).run("q") == rows("t-0", 0, 10)
    assert Frame(url, endingOffsets="15").run("q") == rows("t-0", 0, 10)


def test_of_two_pins_of_a_race_one_holds(url: str, log: spark_log.Log) -> None:
    """Each of the tasks made one, of another version."""
    frames = [Frame(url), Frame(url)]

    def second() -> None:
        put(log, 1)
        found.append(frames[1].run("q"))

    found: list[list[tuple[str, int]]] = []
    found.append(frames[0].run("q", Meddling(frames[0].store, second)))
    assert found == [rows("t-0", 0, 11)] * 2


def test_a_frame_is_read_where_nothing_is_as_it_was(url: str, log: spark_log.Log) -> None:
    """Objects that were merged into others, collected and sealed: the records are the same."""
    for _ in range(5):
        put(log, 10)
    frames = [Frame(url), Frame(url, endingOffsets="60", startingOffsets="3")]
    merge(log)
    put(log, 10)
    maintain_once(log)
    assert frames[0].run() == rows("t-0", 0, 70) and frames[1].run() == rows("t-0", 3, 60)


# ------------------------------------------------------------------------------------------------------------- tasks


# Promise: spark-read.md#options-of-a-read
def test_a_frame_of_an_empty_topic_shares_what_comes(url: str) -> None:
    """Its number of tasks is settled at load(): as many as run at the same time."""
    log = spark_log.connect(url, durability="os")
    log.admin.create_topics([NewTopic("t", 1)])
    frame = Frame(url, parallelism=4)
    assert len(frame.tasks) == 4
    put(log, 100_000)
    parts = [frame.task(number) for number in range(4)]
    assert all(10_000 <= len(part) <= 30_000 for part in parts)
    assert sorted(row for part in parts for row in part) == rows("t-0", 0, 100_000)


def test_what_ends_early_has_no_more_tasks_than_it_needs(url: str, log: spark_log.Log) -> None:
    """Nothing can be added to it."""
    assert len(Frame(url, parallelism=4, endingOffsets="10").tasks) == 1


def test_the_first_task_of_a_process_tells_what_the_query_sees(url: str, log: spark_log.Log) -> None:
    """Later tasks of the process do not ask.  Nothing is written at load(), and nothing is planned twice."""
    for partition in range(1, 4):
        log.admin.create_partitions({"t": partition + 1})
        put(log, 10_000, partition=partition)
    store = SlowStore(Frame(url).store, get_ms=0, put_ms=0)
    for options in ({}, {"endingOffsets": "10000"}):
        frame = Frame(url, maxRecordsPerPartition=2000, **options)
        pins = len(store.list("meta/pin/"))
        put(log, 20_000)
        frame.task(0, f"q{len(options)}", store)
        assert len(store.list("meta/pin/")) == pins + 1
        with store.watched() as requests:
            for number in range(1, len(frame.tasks)):
                frame.task(number, f"q{len(options)}", store)
        asked = [request for request in requests if request.key.startswith("meta/")]
        assert asked == []


def slice_read(partition: int, start: int, rows: int) -> SliceRead:
    piece = Slice(start, start + rows, f"data/1/{uuid.uuid4().hex}.seg", 8, rows * 9, 2**32 - 1, 1, 2**50, 2**50 + 9, 1)
    return SliceRead("orders", "id", partition, start, start + rows, piece, 77, rows * 10)


def test_what_tasks_carry_is_small() -> None:
    """A tenth of a million slices: 70 bytes each, as they travel through the driver; as pickle would have them, 130."""
    reads = [slice_read(number % 8, number * 100, 100) for number in range(100_000)]
    data = encode_reads(reads)
    assert len(data) < 7_000_000 and len(data) < 0.6 * len(pickle.dumps(reads))
    assert decode_reads(data) == tuple(reads)


def test_what_tasks_know_of_the_plan_is_small() -> None:
    """Of a thousand partitions, 8 bytes each."""
    basis = Basis({"t": Planned(uuid.uuid4().hex, [10_000_000 + 7919 * n for n in range(1000)], [3] * 1000)}, 16)
    assert len(basis.encode()) < 8_000


sizes = st.lists(st.integers(1, 200_000), min_size=1, max_size=6)


@given(sizes, st.integers(1, 9), st.lists(st.integers(1, 400_000), min_size=2, max_size=3), st.integers(0, 8))
def test_a_task_keeps_its_records_when_more_are_added(
    more: list[int], tasks: int, growth: list[int], turn: int
) -> None:
    """Whatever is read later: each record goes to one task, and always to the same, known partition or new."""
    basis = Basis({"orders": Planned("id", [100, FIXED], [turn % tasks, 0])}, tasks)
    known: list[list[tuple[int, int, int]]] = []
    for size in sorted(growth):
        for partition, first in ((0, 100), (2, 0)):
            reads = [slice_read(partition, first, size), slice_read(partition, first + size, more[0])]
            shared = split_growth(reads, basis)
            assert len(shared) == tasks
            cuts = sorted((read.start, read.end, task) for task, part in enumerate(shared) for read in part)
            assert cuts[0][0] == first and cuts[-1][1] == first + size + more[0]
            assert all(one[1] == two[0] for one, two in pairwise(cuts))
            known.append([(partition, *cut) for cut in cuts])
    for one in known:
        for other in known:
            if one[0][0] == other[0][0]:
                assert owners(one, other)


def owners(one: list[tuple[int, int, int, int]], other: list[tuple[int, int, int, int]]) -> bool:
    """Whether two ways to share agree wherever both have a record."""
    return all(a[3] == b[3] for a in one for b in other if max(a[1], b[1]) < min(a[2], b[2]))


def test_one_large_addition_is_shared_by_all_tasks() -> None:
    """In a few chunks for each."""
    shared = split_growth([slice_read(0, 0, 100_000_000)], Basis({}, 8))
    sizes = [sum(read.end - read.start for read in part) for part in shared]
    assert max(sizes) < 1.2 * min(sizes) and max(map(len, shared)) < 20
