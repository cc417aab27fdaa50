"""Batch and stream reads of a log that compaction has thinned."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_log
from spark_log import NewTopic
from tests.spark.builders import Batches, load, load_stream, texts, to_sink
from tests.spark.driver import Stream
from tests.thinning import thin

COUNT = 60
LEFT = [offset for offset in range(COUNT) if offset % 3 == 0 and not 20 <= offset < 40]
"""The offsets that stay; the third and fourth commit of ten have no record left."""


@pytest.fixture
def thinned(log: spark_log.Log) -> spark_log.Log:
    """A topic of six commits, two of which are slices without a record, and the last one has no holes."""
    fill(log)
    thin(log, "t", LEFT.__contains__, first=0, last=2, batch_rows=3)
    for number in (1, 2):
        thin(log, "t", LEFT.__contains__, first=number, last=number + 1)
    return log


def fill(log: spark_log.Log) -> None:
    log.create_topic(NewTopic("t", 1))
    for first in range(0, COUNT, 10):
        log.append("t", texts(10, first=first))


def between(start: int, end: int) -> list[int]:
    """The offsets that are left: no record after offset 40 was removed."""
    return [offset for offset in range(start, end) if offset in LEFT or offset >= 40]


@pytest.mark.parametrize("bounds", [(0, COUNT), (1, 41), (22, 38), (25, 45), (59, 60)])
@pytest.mark.parametrize("options", [{}, {"minPartitions": 7}, {"maxRecordsPerPartition": 4}], ids=["", "min", "max"])
def test_a_batch_read_has_the_records_that_are_left(
    spark: SparkSession, url: str, thinned: spark_log.Log, bounds: tuple[int, int], options: dict[str, int]
) -> None:
    """With bounds within holes, and tasks of which some have none."""
    start, end = bounds
    frame = load(
        spark, url, startingOffsets=f'{{"t":{{"0":{start}}}}}', endingOffsets=f'{{"t":{{"0":{end}}}}}', **options
    )
    rows = sorted((row.offset, int(row.value)) for row in frame.select("offset", "value").collect())
    assert rows == [(offset, offset) for offset in between(start, end)]
    assert frame.count() == len(rows)


def test_a_frame_that_was_planned_before_reads_what_is_left(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Also after the objects of its plan were deleted."""
    fill(log)
    frame = load(spark, url, endingOffsets=f'{{"t":{{"0":{COUNT}}}}}').select("offset")
    planned = {read.slice.object for read in log.plan("t")}
    thin(log, "t", LEFT.__contains__)
    log.journal.objects.delete(planned)
    assert sorted(row.offset for row in frame.collect()) == LEFT


@pytest.mark.parametrize("limit", [1, 4, 10, 1000])
def test_a_stream_passes_holes(url: str, thinned: spark_log.Log, limit: int) -> None:
    """A micro-batch may have no record, and the next one follows it."""
    stream = Stream(url, maxOffsetsPerTrigger=limit)
    assert [offset for _, offset in stream.run()] == between(0, COUNT)
    assert len(stream.batches) >= COUNT // limit
    thinned.append("t", texts(1))
    assert stream.run() == [("t-0", COUNT)]


# Promise: tasks/keep-the-latest.md#what-is-kept
def test_records_removed_between_micro_batches_are_not_read_twice(url: str, log: spark_log.Log) -> None:
    """A stream sees each record once, or not at all if it was removed first."""
    fill(log)
    stream = Stream(url, maxOffsetsPerTrigger=15)
    before = [offset for _, offset in stream.batch() or ()]
    thin(log, "t", LEFT.__contains__, first=0, last=4)
    assert before + [offset for _, offset in stream.run()] == [*range(15), *between(15, COUNT)]


def test_a_planned_micro_batch_reads_what_is_left(url: str, log: spark_log.Log) -> None:
    """If compaction removes records and objects after its plan, its tasks continue at their offsets."""
    fill(log)
    stream = Stream(url)
    stream.plan()
    tasks, planned = stream.tasks(), {read.slice.object for read in log.plan("t")}
    thin(log, "t", LEFT.__contains__)
    log.journal.objects.delete(planned)
    assert [offset for _, offset in stream.read(tasks)] == LEFT


def test_spark_streams_across_holes(spark: SparkSession, url: str, thinned: spark_log.Log, tmp_path: Path) -> None:
    """An available-now query writes each record that is left once."""
    sink = Batches()
    to_sink(load_stream(spark, url, maxOffsetsPerTrigger=7), sink, tmp_path / "checkpoint")
    assert sorted(sink.rows) == between(0, COUNT)
