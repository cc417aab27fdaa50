"""Spark reads before, during and after an erasure."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import spark_log
from spark_log import NewTopic
from spark_log.node.maintain import maintain_once
from tests.spark.builders import Batches, load, load_stream, to_sink


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
