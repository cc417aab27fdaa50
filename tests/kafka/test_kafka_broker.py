"""The broker that the other tests here run against."""

from __future__ import annotations

from pyspark.sql import SparkSession

from simulation.harness.kafka import Broker
from tests.kafka.clients import Client, Rec


def test_a_record_goes_through_kafka_and_spark(spark: SparkSession, kafka: Broker, client: Client) -> None:
    """Broker, connector and clients fit together, for whatever else is tested here to mean something."""
    client.create("hello")
    client.send("hello", [Rec(b"v", b"k", headers=(("h", b"1"), ("h", None)))])
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address).option("subscribe", "hello")
    (row,) = frame.option("includeHeaders", True).load().collect()
    assert (row.key, row.value, row.offset) == (b"k", b"v", 0)
    assert [tuple(header) for header in row.headers] == [("h", b"1"), ("h", None)]
