"""Spark through a coordinator: the same options, another URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_log
from spark_log.server.tokens import parse_tokens
from tests.processes import Process, free_port
from tests.services import Services
from tests.spark.builders import Batches, started, wait_until

TOKEN = "a-token-of-the-tests"
ADMINS = "a-token-of-the-admins"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a coordinator that wants a token."""
    services = Services()
    running = services.start(
        tmp_path / "log", tokens=parse_tokens({"spark": f"write {TOKEN}", "admin": f"admin {ADMINS}"})
    )
    yield running.coordinator.address
    services.close()


def test_a_batch_and_a_stream_go_through_a_coordinator(spark: SparkSession, address: str, tmp_path: Path) -> None:
    """Tasks use the storage that the coordinator names; the driver's commits go through it, with the token."""
    url = f"pylog://{address}"
    frame = spark.createDataFrame([(b"1",), (b"2",)], "value binary")
    frame.write.format("pylog").mode("append").option("topic", "t").option("token", TOKEN).save(url)
    read = spark.read.format("pylog").option("subscribe", "t").option("token", TOKEN)
    found = read.option("kafka.bootstrap.servers", address).load().select("value").collect()
    assert sorted(bytes(row.value) for row in found) == [b"1", b"2"]

    stream = spark.readStream.format("pylog").option("subscribe", "t").option("startingOffsets", "earliest")
    stream = stream.option("token", TOKEN).option("group.id", "copies")
    query = (
        stream.load(url)
        .select("value")
        .writeStream.format("pylog")
        .option("topic", "copy")
        .option("token", TOKEN)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination(120)
    assert query.exception() is None
    with spark_log.connect(url, token=TOKEN) as log:
        assert sorted(log.read("copy", columns=["value"]).column("value").to_pylist()) == [b"1", b"2"]
        assert log.journal.state.coordinator.address == address
        at = log.admin.list_consumer_group_offsets("copies")[spark_log.TopicPartition("t", 0)]
        assert at.offset == 2


def test_spark_is_told_that_the_token_is_wrong(spark: SparkSession, address: str) -> None:
    """One sentence, before anything runs."""
    read = spark.read.format("pylog").option("subscribe", "t").option("token", "another-token-than-that")
    with pytest.raises(Exception, match="does not know this token"):
        read.load(f"pylog://{address}").collect()


def test_where_groups_stand_is_read_through_a_coordinator(spark: SparkSession, address: str) -> None:
    """`__consumer_offsets` has what a member of a shared group committed, in the partition that Kafka's rule names."""
    url = f"pylog://{address}"
    with spark_log.connect(url, token=TOKEN) as log:
        log.append("t", [{"value": b"1"}, {"value": b"2"}])
        with log.consumer("t", group_id="test-group", auto_offset_reset="earliest") as consumer:
            assert len(list(consumer.poll(10_000).values())) == 1
    read = spark.read.format("pylog").option("subscribe", "__consumer_offsets").option("token", TOKEN)
    (row,) = read.load(url).collect()
    assert (row.partition, json.loads(row.key)) == (12, {"group": "test-group", "topic": "t", "partition": 0})
    assert json.loads(row.value)["offset"] == 2


def test_a_frame_is_planned_once_through_a_coordinator(spark: SparkSession, address: str) -> None:
    """Used again it has what came later, from the start that it had at load(), and nothing that is trimmed."""
    url = f"pylog://{address}"
    with spark_log.connect(url, token=ADMINS) as log:
        log.append("t", [{"value": b"%d" % number} for number in range(6)])
        read = {"subscribe": "t", "token": TOKEN}
        fixed = spark.read.format("pylog").options(**read, endingOffsets=4).load(url)
        late = spark.read.format("pylog").options(**read, startingOffsets="latest-2").load(url)
        assert (fixed.count(), late.count()) == (4, 2)
        log.append("t", [{"value": b"6"}])
        log.admin.delete_records({spark_log.TopicPartition("t", 0): 3})
        union = late.union(late).groupBy("offset").count().collect()
    assert {row.offset for row in union} == {4, 5, 6} and {row["count"] for row in union} == {2}
    assert [row.offset for row in fixed.collect()] == [3]


@pytest.fixture
def open_address(tmp_path: Path) -> Iterator[str]:
    """Of a coordinator without tokens."""
    services = Services()
    yield services.start(tmp_path / "log").coordinator.address
    services.close()


@pytest.mark.tasks
def test_a_stream_of_a_pattern_reads_3000_topics_through_a_coordinator(
    spark: SparkSession, open_address: str, tmp_path: Path
) -> None:
    """It waits for records of all of them, and gets those of each."""
    url = f"pylog://{open_address}"
    with spark_log.connect(url) as log:
        log.admin.create_topics([spark_log.NewTopic(f"wide{number}") for number in range(3000)])
        log.append("wide7", [{"value": b"1"}])
        frame = spark.readStream.format("pylog").option("subscribePattern", "wide.*")
        frame = frame.option("startingOffsets", "earliest").load(url)
        batches = Batches()
        query = started(batches.writer(frame).option("checkpointLocation", str(tmp_path / "checkpoint")))
        try:
            assert wait_until(lambda: batches.rows == [1])
            log.append("wide2999", [{"value": b"2"}])
            assert wait_until(lambda: batches.rows == [1, 2])
        finally:
            query.stop()


# Promise: service.md#failover
@pytest.mark.tasks
def test_a_stream_goes_on_when_its_coordinator_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """With SIGSTOP, while it reads and writes through both addresses; a standby leads; each record is copied once."""
    first = Process(tmp_path / "log", free_port())
    assert wait_until(lambda: first.leads)
    standby = Process(tmp_path / "log", free_port())
    url = f"pylog://{first.address},{standby.address}"
    try:
        with spark_log.connect(url) as log:
            log.append("t", [{"value": b"1"}])
            stream = spark.readStream.format("pylog").option("subscribe", "t").option("startingOffsets", "earliest")
            writer = stream.load(url).select("value").writeStream.format("pylog").option("topic", "copy")
            query = started(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", url))
            assert wait_until(lambda: copied(log) == [b"1"])
            first.stop()
            for number in range(2, 5):
                log.append("t", [{"value": b"%d" % number}])
            assert wait_until(lambda: copied(log) == [b"1", b"2", b"3", b"4"])
            assert standby.leads
            first.go_on()
            log.append("t", [{"value": b"5"}])
            assert wait_until(lambda: copied(log) == [b"1", b"2", b"3", b"4", b"5"])
            assert query.exception() is None
            query.stop()
    finally:
        first.kill()
        standby.kill()


def copied(log: spark_log.Log) -> list[bytes]:
    if "copy" not in log.admin.list_topics():
        return []
    return sorted(log.read("copy", columns=["value"]).column("value").to_pylist())
