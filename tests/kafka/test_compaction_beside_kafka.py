"""Compaction beside Kafka's log cleaner: the same records and settings, the same records left at the same offsets."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import spark_log
from simulation.harness.kafka import Broker
from spark_log import NewTopic
from spark_log.errors import InvalidRecord
from spark_log.maintenance.maintain import Maintainer
from tests.kafka.clients import Client, Rec
from tests.spark.builders import wait_until

T0 = 1_790_000_000_000
Left = dict[int, tuple[bytes | None, bytes | None]]
"""Key and value of the records that are left, by offset."""
COMPACT = {"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0"}
"""Everything but the active segment is cleaned as soon as it is dirty."""


def updates(seed: int, count: int) -> list[Rec]:
    """Updates of few keys, some of which are deletes.  Their times span many segments."""
    rng = random.Random(seed)
    return [
        Rec(None if rng.random() < 0.2 else b"%d" % n, b"k%d" % rng.randrange(20), 0, T0 + 20 * n) for n in range(count)
    ]


def compacted(records: Sequence[Rec], *, tombstones: bool) -> Left:
    """The records that the rules leave: the last one of each key, and none without a key."""
    last = {record.key: offset for offset, record in enumerate(records) if record.key is not None}
    return {
        offset: (key, records[offset].value)
        for key, offset in last.items()
        if tombstones or records[offset].value is not None
    }


def in_kafka(spark: SparkSession, kafka: Broker, topic: str, end: int) -> Left:
    """The records in Kafka before an offset."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address).option("subscribe", topic)
    rows = reader.load().select("offset", "key", "value").where(f"offset < {end}").collect()
    return {row.offset: (row.key and bytes(row.key), row.value and bytes(row.value)) for row in rows}


def left_in_kafka(spark: SparkSession, kafka: Broker, client: Client, topic: str, end: int, expected: Left) -> Left:
    """The records before `end` once Kafka's cleaner has left as few as expected, or after a while."""
    found: Left = {}

    def clean() -> bool:
        client.send(topic, [Rec(b"rolls the segment", b"roll")])
        found.clear()
        found.update(in_kafka(spark, kafka, topic, end))
        return len(found) <= len(expected)

    wait_until(clean)
    return found


def left_here(log: spark_log.Log, topic: str, end: int) -> Left:
    """The records before `end` after two rounds of maintenance; the second removes tombstones."""
    for number in range(2):
        log.append(topic, [{"key": "roll", "value": "makes it dirty", "timestamp": T0 + number, "partition": 0}])
        assert Maintainer(log).round().problems == ()
    table = log.read(topic, end=end, columns=["offset", "key", "value"])
    return {row["offset"]: (row["key"], row["value"]) for row in table.to_pylist()}


def append(log: spark_log.Log, topic: str, records: Sequence[Rec]) -> None:
    """In several commits."""
    rows = [{"key": one.key, "value": one.value, "timestamp": one.timestamp, "partition": 0} for one in records]
    for first in range(0, len(rows), 70):
        log.append(topic, rows[first : first + 70])


# Promise: tasks/keep-the-latest.md#what-is-kept
@pytest.mark.parametrize("retention", ["0", "86400000"])
def test_the_same_records_are_left(
    spark: SparkSession, kafka: Broker, client: Client, log: spark_log.Log, retention: str
) -> None:
    """The last record of each key, at its offset; tombstones until delete.retention.ms is over."""
    configs, topic = {**COMPACT, "delete.retention.ms": retention}, f"compacted-{retention}"
    records = updates(7, 400)
    client.create(topic, 1, **{name.replace(".", "_"): value for name, value in configs.items()})
    client.send(topic, records)
    log.create_topic(NewTopic(topic, 1, configs))
    append(log, topic, records)
    expected = compacted(records, tombstones=retention != "0")
    assert left_here(log, topic, len(records)) == expected
    assert left_in_kafka(spark, kafka, client, topic, len(records), expected) == expected


def test_young_records_are_left(spark: SparkSession, kafka: Broker, client: Client, log: spark_log.Log) -> None:
    """With min.compaction.lag.ms: all of them, and of each older key the record before them."""
    configs, now_ms = {**COMPACT, "min.compaction.lag.ms": "3600000"}, int(time.time() * 1000)
    old = updates(8, 200)
    young = [record._replace(timestamp=now_ms) for record in updates(9, 60)]
    client.create("young", 1, **{name.replace(".", "_"): value for name, value in configs.items()})
    log.create_topic(NewTopic("young", 1, configs))
    for records in (old, young):
        client.send("young", records)
        append(log, "young", records)
    left = {len(old) + number: (record.key, record.value) for number, record in enumerate(young)}
    expected, end = compacted(old, tombstones=True) | left, len(old) + len(young)
    assert left_here(log, "young", end) == expected
    assert left_in_kafka(spark, kafka, client, "young", end, expected) == expected


def test_records_without_a_key_are_refused_by_both(client: Client, log: spark_log.Log) -> None:
    """The one error is Kafka's, the other has its name."""
    client.create("keyed", 1, cleanup_policy="compact")
    with pytest.raises(Py4JJavaError, match="InvalidRecordException"):
        client.send_each("keyed", [Rec(b"v")])
    log.create_topic(NewTopic("keyed", 1, {"cleanup.policy": "compact"}))
    with pytest.raises(InvalidRecord):
        log.append("keyed", [{"value": "v"}])


def test_older_records_without_a_key_are_removed_by_both(
    spark: SparkSession, kafka: Broker, client: Client, log: spark_log.Log
) -> None:
    """They were written before the policy was set."""
    records = [Rec(b"%d" % n, None if n % 3 else b"k%d" % (n % 5), 0, T0 + 20 * n) for n in range(60)]
    client.create("turned", 1, **{name.replace(".", "_"): value for name, value in COMPACT.items()})
    client.alter("turned", {"cleanup.policy": "delete"})
    client.send("turned", records)
    client.alter("turned", {"cleanup.policy": "compact"})
    log.create_topic(NewTopic("turned", 1, {**COMPACT, "cleanup.policy": "delete", "retention.ms": "-1"}))
    append(log, "turned", records)
    with pytest.warns(UserWarning, match="'turned' has records without a key"):
        log.admin.incremental_alter_configs({"turned": {"cleanup.policy": "compact"}})
    expected = compacted(records, tombstones=True)
    assert left_here(log, "turned", len(records)) == expected
    assert left_in_kafka(spark, kafka, client, "turned", len(records), expected) == expected
