"""Batches that Spark runs again because it had not noted their end, after records that they read were removed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_log
from spark_log.maintenance.maintain import compact
from spark_log.model import TopicPartition
from tests.spark.builders import copy, load_stream, to_sink
from tests.spark.small_slices import COMPACT

Run = Callable[[SparkSession, str, Path], None]


def source(spark: SparkSession, url: str) -> DataFrame:
    return load_stream(spark, url, "src", failOnDataLoss="false").select("key", "value")


def stream(spark: SparkSession, url: str, checkpoint: Path) -> None:
    copy(source(spark, url), url, "dst", checkpoint)


def sink(spark: SparkSession, url: str, checkpoint: Path) -> None:
    to_sink(source(spark, url), spark_log.sink(url, topic="dst", checkpoint=str(checkpoint)), checkpoint)


def version(spark: SparkSession, url: str, checkpoint: Path) -> None:
    """A plain write in `foreachBatch`."""

    def append(frame: DataFrame, batch_id: int) -> None:
        write = frame.write.format("pylog").mode("append").option("topic", "dst").option("txnAppId", "copy")
        write.option("txnVersion", batch_id).option("checkpointLocation", str(checkpoint)).save(url)

    to_sink(source(spark, url), append, checkpoint)


def compaction(log: spark_log.Log) -> None:
    compact(log)
    assert log.read("src").num_rows == 5


def trim(log: spark_log.Log) -> None:
    log.admin.delete_records({TopicPartition("src", 0): 30})


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
@pytest.mark.parametrize("run", [stream, sink, version])
@pytest.mark.parametrize("remove", [compaction, trim])
def test_a_replayed_batch_with_fewer_records_is_a_repeat(
    classic: SparkSession,
    url: str,
    log: spark_log.Log,
    tmp_path: Path,
    run: Run,
    remove: Callable[[spark_log.Log], None],
) -> None:
    """The rows of its first run stay, and the query continues after them."""
    log.admin.create_topics([spark_log.NewTopic("src", 1, COMPACT), spark_log.NewTopic("dst", 1)])
    checkpoint, old_ms = tmp_path / "checkpoint", int(time.time() * 1000) - 7_200_000
    for letter in "ab":
        log.append("src", [{"key": f"k{n % 5}", "value": f"{letter}{n}", "timestamp": old_ms} for n in range(20)])
        run(classic, url, checkpoint)
    before = log.read("dst").column("value").to_pylist()
    assert len(before) == 40
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    remove(log)
    log.append("src", [{"key": "x", "value": "later"}])
    run(classic, url, checkpoint)
    after = log.read("dst").column("value").to_pylist()
    assert after == [*before, b"later"]
