"""Spark through a coordinator: the same options, another URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_log
from spark_log.net.tokens import parse_tokens
from tests.services import Services

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a coordinator that wants a token."""
    services = Services()
    running = services.start(tmp_path / "log", tokens=parse_tokens({"spark": f"write {TOKEN}"}))
    yield running.coordinator.address
    services.close()


def test_a_batch_and_a_stream_go_through_a_coordinator(spark: SparkSession, address: str, tmp_path: Path) -> None:
    """Tasks write and read the storage that the coordinator names; the driver's commits go through it, with the token."""
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
