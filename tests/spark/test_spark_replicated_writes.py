"""Spark's writes to topics with replicas: executors put to all roots, and the driver commits who has what."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_log
from simulation.harness.broker_roots import register_broker
from spark_log.metadata.replicas.replicas import copies_of


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    """Brokers 0, 1 and 2, and a topic "t" with four partitions and a replica of each on each."""
    with spark_log.connect(tmp_path / "log") as log:
        for broker in (1, 2):
            register_broker(log, broker, str(tmp_path / f"broker{broker}"))
        log.admin.create_topics([spark_log.NewTopic("t", 4, replica_assignment=dict.fromkeys(range(4), (0, 1, 2)))])
        yield log


def held(log: spark_log.Log) -> list[tuple[int, ...]]:
    """The holders of each object of the topic."""
    state = log.journal.refresh()
    return [copies.brokers for row in state.objects.values() if (copies := copies_of(state, row)) is not None]


def values(log: spark_log.Log) -> list[int]:
    return sorted(int(value) for value in log.read("t", columns=["value"]).column("value").to_pylist())


def write(frame: DataFrame, log: spark_log.Log, **options: str) -> None:
    (
        frame.selectExpr("cast(cast(id as string) as binary) as value")
        .write.format("pylog")
        .mode("append")
        .options(topic="t", **options)
        .save(log.url)
    )


def test_the_tasks_of_a_batch_put_to_all_roots(spark: SparkSession, log: spark_log.Log, tmp_path: Path) -> None:
    write(spark.range(0, 100, 1, 4), log)
    assert values(log) == list(range(100))
    assert held(log) == [(0, 1, 2)] * 4
    shutil.rmtree(tmp_path / "log" / "data")
    assert values(log) == list(range(100)), "the other roots have them"


def test_a_batch_succeeds_without_a_root(spark: SparkSession, log: spark_log.Log, tmp_path: Path) -> None:
    """With a version of an application: it is written once, on the roots that are left."""
    (tmp_path / "broker2").rename(tmp_path / "unmounted")
    for _ in range(2):
        write(spark.range(0, 10, 1, 2), log, txnAppId="app", txnVersion="1")
    assert values(log) == list(range(10))
    assert held(log) == [(0, 1)] * 2
    assert log.journal.state.placement_groups[1].isr == (0, 1)


def test_the_driver_completes_what_its_tasks_missed(spark: SparkSession, log: spark_log.Log, tmp_path: Path) -> None:
    """All three roots are required, and one was there for no task: it is back before the commit."""
    log.admin.incremental_alter_configs({"t": {"min.insync.replicas": "3"}})
    root, away = tmp_path / "broker2", tmp_path / "unmounted"
    root.rename(away)
    back = threading.Timer(6, lambda: away.rename(root))
    back.start()
    write(spark.range(0, 10, 1, 2), log)
    back.join()
    assert values(log) == list(range(10))
    assert held(log) == [(0, 1, 2)] * 2
    assert log.journal.state.placement_groups[1].isr == (0, 1, 2)


@pytest.mark.parametrize("way", ["sink", "foreachBatch"])
def test_a_stream_writes_to_all_roots(spark: SparkSession, log: spark_log.Log, tmp_path: Path, way: str) -> None:
    log.append("in", [{"value": b"%d" % number} for number in range(20)])
    stream = spark.readStream.format("pylog").option("subscribe", "in").option("startingOffsets", "earliest")
    frame = stream.load(log.url).select("value")
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    if way == "sink":
        query = writer.format("pylog").option("topic", "t").start(log.url)
    else:
        sink: Callable[[DataFrame, int], None] = spark_log.sink(
            log.url, topic="t", checkpoint=str(tmp_path / "checkpoint")
        )
        query = writer.foreachBatch(sink).start()
    query.awaitTermination(120)
    assert query.exception() is None
    assert values(log) == list(range(20))
    assert set(held(log)) == {(0, 1, 2)}
