"""Spark reads before, during and after an erasure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark_pylog import DefaultSource
from pyspark_pylog.source.latest_view import LatestReader
from pyspark_pylog.source.task_erasures import LOOK_MS

import spark_log
from spark_log import NewTopic
from spark_log.errors import ConcurrentChange
from spark_log.maintenance.maintain import maintain_once
from tests.spark.builders import Batches, load, load_stream, to_sink
from tests.spark.driver import SCHEMA, Stream, read_task


def append(log: spark_log.Log, first: int, count: int) -> None:
    log.append("t", [{"key": b"k%d" % (n % 3), "value": b"%d" % n} for n in range(first, first + count)])


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_batch_reads_and_a_stream_across_an_erasure(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """A new frame has no erased record, and an older one none when the old objects are gone.  A query continues, and
    reads no record twice."""
    log.create_topic(NewTopic("t", 1))
    for first in range(0, 30, 10):
        append(log, first, 10)
    before, sink = load(spark, url), Batches()
    to_sink(load_stream(spark, url, maxOffsetsPerTrigger=7), sink, tmp_path / "checkpoint")
    assert offsets(before) == list(range(30))
    append(log, 30, 10)
    assert log.admin.erase_records("t", ["k1"]).records == 13
    left = [n for n in range(40) if n % 3 != 1]
    assert offsets(load(spark, url)) == left
    append(log, 40, 5)
    to_sink(load_stream(spark, url, maxOffsetsPerTrigger=7), sink, tmp_path / "checkpoint")
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for number in (45, 46):
        append(log, number, 1)
        maintain_once(log)
    assert offsets(before) == [*left, *range(40, 47)]
    assert sorted(sink.rows) == [n for n in range(45) if n < 30 or n % 3 != 1 or n >= 40]


# Promise: tasks/erase.md#when-the-records-are-gone
def test_a_frame_and_a_temporary_view_of_before_have_no_erased_record(
    spark: SparkSession, url: str, log: spark_log.Log
) -> None:
    """The erasure has ended; ends are open and fixed.  A copy that is written from them has no such record either."""
    log.create_topic(NewTopic("t", 1))
    for first in range(0, 30, 10):
        append(log, first, 10)
    frame, fixed = load(spark, url), load(spark, url, endingOffsets='{"t": {"0": 25}}')
    frame.createOrReplaceTempView("before")
    for one in (frame, fixed, spark.table("before")):
        one.count()
    assert log.admin.erase_records("t", ["k1"]).records == 10
    append(log, 30, 2)
    left = [n for n in range(30) if n % 3 != 1]
    assert offsets(frame) == [*left, 30, 31]
    assert offsets(fixed) == [n for n in left if n < 25]
    assert offsets(spark.table("before")) == [*left, 30, 31]
    log.create_topic(NewTopic("copy", 1))
    frame.select("key", "value").write.format("pylog").options(path=url, topic="copy").mode("append").save()
    values = log.read("copy").column("value").to_pylist()
    assert sorted(map(int, values)) == [*left, 30, 31]


def test_a_view_of_the_latest_records_of_before_is_planned_again(
    spark: SparkSession, url: str, log: spark_log.Log
) -> None:
    """Each query plans it by the version that it pins."""
    log.create_topic(NewTopic("t", 1))
    append(log, 0, 30)
    frame = load(spark, url, view="latest")
    assert offsets(frame) == [27, 28, 29]
    log.admin.erase_records("t", ["k1"])
    assert offsets(frame) == [27, 29]


# Promise: tasks/erase.md#when-the-records-are-gone
def test_tasks_that_begin_after_an_erasure_do_not_return_what_their_query_has_planned(
    spark: SparkSession, url: str, log: spark_log.Log
) -> None:
    """The query pinned its version before: its first task holds the others back until the records are erased."""
    log.create_topic(NewTopic("t", 1))
    for first in range(0, 30, 10):
        append(log, first, 10)
    slots = spark.sparkContext.defaultParallelism
    frame = load(spark, url, maxRecordsPerPartition=2)
    assert frame.rdd.getNumPartitions() > 2 * slots
    gate = Path(url.removeprefix("file://") if url.startswith("file://") else url).parent / "gate"

    def hold(rows: Iterator[Row]) -> Iterator[int]:
        found = [row.offset for row in rows]
        until = time.monotonic() + 60
        while not gate.exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield from found

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: frame.rdd.mapPartitions(hold).collect())
        time.sleep(3)
        log.admin.erase_records("t", ["k1"])
        gate.touch()
        found = sorted(running.result())
    assert {n for n in range(30) if n % 3 != 1} <= set(found)
    assert len([n for n in found if n % 3 == 1]) <= slots * 2


# Promise: tasks/erase.md#when-the-records-are-gone
def test_tasks_of_a_micro_batch_that_was_planned_before(tmp_path: Path) -> None:
    """Also those that Spark runs a second time, as a retry or a speculative copy, and a batch of a view."""
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        log.create_topic(NewTopic("t", 1))
        append(log, 0, 30)
        stream = Stream(log.url)
        assert stream.plan()
        tasks = stream.tasks()
        assert [offset for _, offset in stream.read(tasks)] == list(range(30))
        log.admin.erase_records("t", ["k1"])
        time.sleep(LOOK_MS / 1000 + 0.01)
        left = [n for n in range(30) if n % 3 != 1]
        for _ in range(2):
            assert [offset for _, offset in stream.read(tasks)] == left
        assert stream.plan() is False


def test_a_view_of_the_latest_records_that_has_begun(tmp_path: Path) -> None:
    """Its tasks are of one version: those that read after the erasure fail with a sentence, and a new query works."""
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        log.create_topic(NewTopic("t", 1))
        append(log, 0, 30)
        source = DefaultSource({"path": log.url, "subscribe": "t", "view": "latest"})
        reader = source.reader(from_arrow_schema(SCHEMA))
        assert isinstance(reader, LatestReader)

        def count(query: str) -> int:
            return sum(batch.num_rows for task in reader.partitions() for batch in read_task(reader, task, query))

        assert count("begun") == 3
        log.admin.erase_records("t", ["k1"])
        time.sleep(LOOK_MS / 1000 + 0.01)
        with pytest.raises(ConcurrentChange, match="were erased"):
            count("begun")
        assert count("new") == 2
