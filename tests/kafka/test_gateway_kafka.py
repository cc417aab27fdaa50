"""Spark's Kafka connector and Kafka's tools read and write through a gateway, beside Spark on the same log."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_log
from simulation.harness.kafka import retrieve
from spark_log import NewTopic
from tests.gateway.running import Running
from tests.kafka.conftest import FOLDER
from tests.spark.builders import wait_until

ROWS = 20_000


@pytest.fixture
def gateway(spark: SparkSession, url: str) -> Iterator[Running]:
    """A log with `events`, which Spark wrote."""
    with spark_log.connect(url) as log:
        log.create_topic(NewTopic("events", 3))
        frame = spark.range(ROWS).selectExpr("cast(id as string) key", "concat('v', id) value")
        frame.write.format("pylog").option("topic", "events").mode("append").save(url)
        running = Running(log)
        yield running
        running.close()


# Promise: gateway.md#what-is-served
def test_sparks_kafka_connector_reads_a_topic(spark: SparkSession, gateway: Running, url: str) -> None:
    """A batch has the rows that pylog's source has: offsets, keys, values and times."""
    columns = "topic", "partition", "offset", "key", "value", "timestamp"

    def rows(kind: str, address: str) -> list[tuple[object, ...]]:
        reader = spark.read.format(kind).option("kafka.bootstrap.servers", address).option("subscribe", "events")
        frame = reader.option("startingOffsets", "earliest").load().select(*columns).orderBy("partition", "offset")
        return [tuple(row) for row in frame.collect()]

    expected = rows("pylog", url)
    assert len(expected) == ROWS and {row[1] for row in expected} == {0, 1, 2}
    # pylog's times are in microseconds.
    assert [row[:5] for row in rows("kafka", gateway.address)] == [row[:5] for row in expected]


def test_sparks_kafka_stream_follows_a_topic(spark: SparkSession, gateway: Running, url: str, tmp_path: Path) -> None:
    """Records that are appended while it runs arrive, too."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", gateway.address)
    stream = reader.option("subscribePattern", "ev.*").option("startingOffsets", "earliest").load()
    query = (
        stream.writeStream.format("memory").queryName("followed").option("checkpointLocation", str(tmp_path)).start()
    )
    try:
        wait_until(lambda: spark.table("followed").count() == ROWS)
        with spark_log.connect(url) as log:
            log.append("events", [{"value": "late"}] * 5)
        wait_until(lambda: spark.table("followed").count() == ROWS + 5)
    finally:
        query.stop()


# Promise: gateway.md#what-is-served
def test_the_console_consumer_reads_a_partition(gateway: Running, url: str) -> None:
    """It assigns a partition."""
    with spark_log.connect(url) as log:
        expected = log.read("events", 1)["value"].to_pylist()
    options = ["--bootstrap-server", gateway.address, "--topic", "events", "--partition", "1", "--offset", "earliest"]
    options += ["--max-messages", str(len(expected)), "--timeout-ms", "60000"]
    assert tool("consumer.ConsoleConsumer", *options).splitlines() == expected


def tool(name: str, *options: str) -> bytes:
    """The output of one of Kafka's tools."""
    jars = retrieve(FOLDER, "tools", ("org.apache.kafka:kafka-tools:4.1.0",), transitive=True)
    command = [shutil.which("java") or "java", "-cp", jars.replace(",", ":"), f"org.apache.kafka.tools.{name}"]
    return subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True).stdout


# Promise: gateway.md#writes
def test_kafkas_producers_write_what_spark_reads(spark: SparkSession, gateway: Running, url: str) -> None:
    """The performance test and the verifiable producer, which are idempotent, each record once and in order."""
    to = [f"bootstrap.servers={gateway.address}", "acks=all", "compression.type=lz4"]
    options = ["--num-records", str(ROWS), "--record-size", "100", "--throughput", "-1", "--producer-props", *to]
    tool("ProducerPerformance", "--topic", "events", *options)
    frame = spark.read.format("pylog").option("subscribe", "events").load(url)
    assert frame.count() == 2 * ROWS and frame.where("length(value) = 100").count() == ROWS
    with spark_log.connect(url) as log:
        log.create_topic(NewTopic("verified", 3))
    options = ["--bootstrap-server", gateway.address, "--topic", "verified", "--max-messages", "2000", "--acks", "-1"]
    told = [json.loads(line) for line in tool("VerifiableProducer", *options).splitlines()]
    acknowledged = {
        (one["partition"], one["offset"]): one["value"] for one in told if one["name"] == "producer_send_success"
    }
    rows = spark.read.format("pylog").option("subscribe", "verified").load(url).collect()
    assert {(row.partition, row.offset): row.value.decode() for row in rows} == acknowledged
    for number in range(3):
        sent = [int(row.value) for row in sorted(rows, key=lambda row: int(row.offset)) if row.partition == number]
        assert sent == sorted(sent)
