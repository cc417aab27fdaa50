"""jobs/mirror_kafka.py against a real broker: records, order, the map of offsets, groups, and being killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs import mirror_kafka

import spark_log
from simulation.harness.kafka import Broker
from spark_log import OffsetAndMetadata, TopicPartition
from spark_log.client.mirror_map import MirrorMap
from spark_log.errors import InvalidRequest, NoLog, SparkLogError
from spark_log.maintenance.maintain import Maintainer
from tests.kafka.clients import Client, Rec
from tests.spark.builders import wait_until
from tests.spark.submitted import killed_when, local_cluster, submitted

NOW_MS = 1_790_000_000_000
MAP = "kafka-mirror-map"


class Record(NamedTuple):
    """The fields that must be the same on both sides."""

    key: bytes | None
    value: bytes | None
    timestamp: Any
    headers: list[tuple[str, bytes | None]] | None


@pytest.fixture
def mirror(spark: SparkSession, kafka: Broker, url: str, tmp_path: Path) -> Callable[..., bool]:
    """One run of the job into the log."""

    def run(*args: str, checkpoint: str = "checkpoint") -> bool:
        places = ["--bootstrap-servers", kafka.address, "--url", url, "--checkpoint", str(tmp_path / checkpoint)]
        _, status = mirror_kafka.run(spark, mirror_kafka.parse_args([*places, *args]))
        return status == 0

    return run


def there(spark: SparkSession, kafka: Broker, topic: str) -> dict[int, list[tuple[int, Record]]]:
    """The records that Kafka's consumers see: by partition (offset, record), in order."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address).option("subscribe", topic)
    frame = reader.option("includeHeaders", True).option("kafka.isolation.level", "read_committed").load()
    found: dict[int, list[tuple[int, Record]]] = {}
    for row in frame.orderBy("partition", "offset").collect():
        headers = None if row.headers is None else [(name, value) for name, value in row.headers]
        found.setdefault(row.partition, []).append((row.offset, Record(row.key, row.value, row.timestamp, headers)))
    return found


def here(log: spark_log.Log, topic: str) -> dict[int, list[Record]]:
    """The records in the log, by partition, with offsets 0, 1, …."""
    found: dict[int, list[Record]] = {}
    for row in log.read(topic).to_pylist():
        headers = None if row["headers"] is None else [(one["key"], one["value"]) for one in row["headers"]]
        at = row["timestamp"].replace(tzinfo=None)
        found.setdefault(row["partition"], []).append(Record(row["key"], row["value"], at, headers))
    return found


def assert_copied(spark: SparkSession, kafka: Broker, log: spark_log.Log, topic: str) -> None:
    """Every record is there once, in order, and the map leads from each to its copy."""
    wanted, found = there(spark, kafka, topic), here(log, topic)
    assert found == {number: [record for _, record in part] for number, part in wanted.items()}
    asked = [(TopicPartition(topic, number), offset) for number, part in wanted.items() for offset, _ in part]
    expected = [n for part in wanted.values() for n in range(len(part))]
    translated = MirrorMap(log, MAP).translate(asked)
    assert [translated[one] for one in asked] == expected


def recs(numbers: range, partition: int = 0) -> list[Rec]:
    return [Rec(b"%d" % n, b"key %d" % (n % 5), partition, NOW_MS + n) for n in numbers]


# Promise: from-kafka.md#taking-topics-along
def test_a_record_is_copied_as_it_is(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """Null keys, tombstones, times, headers with the same name twice and with no value; partitions and their order."""
    client.create("whole", 3)
    odd = [
        Rec(b"", b""),
        Rec(None, b"tombstone"),
        Rec(b"no key", None, 1),
        Rec(None, None, 1),
        Rec(b"headers", b"k", 0, NOW_MS, (("a", b"1"), ("a", b"2"), ("b", None), ("", b""))),
        Rec(b"old", b"k", 0, 0),
        Rec(b"out of order", b"k", 0, NOW_MS - 5_000),
        Rec(bytes(range(256)) * 100, b"large"),
    ]
    client.send("whole", [*odd, *recs(range(50)), *recs(range(50, 90), 2)])
    assert mirror("--topics", "whole")
    assert len(log.admin.describe_topics(["whole"])["whole"].partitions) == 3
    assert_copied(spark, kafka, log, "whole")


# Promise: from-kafka.md#taking-topics-along
def test_a_compacted_topic_keeps_every_record_at_its_place(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """Kafka's offsets have gaps, and a group in the middle of one continues at the first record after it."""
    compact_at_once = {"cleanup_policy": "compact", "segment_ms": "200", "min_cleanable_dirty_ratio": "0.01"}
    client.create("compacted", 1, **compact_at_once)
    client.send("compacted", [Rec(b"%d" % n, b"k%d" % (n if n % 3 else n % 4), 0, NOW_MS + n) for n in range(100)])

    def has_gaps() -> bool:
        client.send("compacted", [Rec(b"rolls the segment", b"roll")])
        return len(there(spark, kafka, "compacted")[0]) < client.end("compacted") - 20

    assert wait_until(has_gaps), "the broker did not compact"
    left = [offset for offset, _ in there(spark, kafka, "compacted")[0]]
    in_a_gap = next(n for n in range(20, 100) if n not in left)
    client.commit("in the gap", {("compacted", 0): in_a_gap})
    assert mirror("--topics", "compacted", "--groups", "in the gap")
    assert_copied(spark, kafka, log, "compacted")
    at = log.admin.list_consumer_group_offsets("in the gap")[TopicPartition("compacted", 0)]
    assert at == OffsetAndMetadata(sum(offset < in_a_gap for offset in left), f"kafka:{in_a_gap}")
    assert log.admin.describe_topics(["compacted"])["compacted"].configs["cleanup.policy"] == "compact"


def test_a_compacted_topic_with_records_without_a_key_is_copied_without_them(
    client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """Kafka has them until its next cleaning.  A group keeps its place, also when the copy is compacted."""
    client.create("half-keyed", 1)
    old = [Rec(b"%d" % n, None if n % 4 == 0 else b"k%d" % (n % 3), 0, NOW_MS + n) for n in range(20)]
    client.send("half-keyed", old)
    client.alter("half-keyed", {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0"})
    client.commit("in the middle", {("half-keyed", 0): 8})
    assert mirror("--topics", "half-keyed", "--groups", "in the middle")
    keyed = [rec for rec in old if rec.key is not None]
    assert [record.value for record in here(log, "half-keyed")[0]] == [rec.value for rec in keyed]
    tp = TopicPartition("half-keyed", 0)
    assert log.admin.list_consumer_group_offsets("in the middle")[tp].offset == 6
    assert Maintainer(log).round().removed_records == len(keyed) - 3
    assert log.admin.list_consumer_group_offsets("in the middle")[tp].offset == 6
    assert [record.value for record in here(log, "half-keyed")[0]] == [b"17", b"18", b"19"]
    client.send("half-keyed", [Rec(b"later", b"k0")])
    assert mirror("--topics", "half-keyed")
    assert here(log, "half-keyed")[0][-1].value == b"later"


def test_json_becomes_the_columns_of_a_schema_that_evolves(
    client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """Records that do not fit are dead letters; a group keeps its place; no record is taken twice."""
    client.create("typed", 2)
    good = [Rec(b'{"id": %d, "price": 1.10}' % n, b"k", 0, NOW_MS + n) for n in range(4)]
    bad = [Rec(b'{"id": "x"}', b"k"), Rec(b"{", b"k", 1)]
    client.send("typed", [*good[:2], bad[0], *good[2:], Rec(None, b"k"), bad[1]])
    client.commit("behind the bad one", {("typed", 0): 3})
    options = ["--topics", "typed", "--bad-records", "bad-typed", "--schema"]
    assert mirror(*options, "typed=id BIGINT NOT NULL, price DECIMAL(6,2)", "--groups", "behind the bad one")
    client.send("typed", [Rec(b'{"id": 9, "price": 2, "city": "Ulm"}', b"k", 1)])
    for _ in range(2):
        assert mirror(*options, "typed=id BIGINT, price DECIMAL(8,2), city STRING", checkpoint="another")
    price = Decimal("1.10")
    assert log.read("typed").select(["partition", "offset", "id", "price", "city"]).to_pylist() == [
        *({"partition": 0, "offset": n, "id": n, "price": price, "city": None} for n in range(4)),
        {"partition": 0, "offset": 4, "id": None, "price": None, "city": None},
        {"partition": 1, "offset": 0, "id": 9, "price": Decimal(2), "city": "Ulm"},
    ]
    letters = log.read("bad-typed", columns=["value", "headers"]).to_pylist()
    places = [{one["key"]: one["value"] for one in row["headers"]} for row in letters]
    found = {row["value"]: (at["pylog.partition"], at["pylog.offset"]) for row, at in zip(letters, places, strict=True)}
    assert found == {bad[0].value: (b"0", b"2"), bad[1].value: (b"1", b"0")} and len(letters) == 2
    at = log.admin.list_consumer_group_offsets("behind the bad one")[TopicPartition("typed", 0)]
    assert at == OffsetAndMetadata(2, "kafka:3")
    assert MirrorMap(log, MAP).translate([(TopicPartition("typed", 1), 1)]) == {(TopicPartition("typed", 1), 1): 0}


# Promise: from-kafka.md#taking-topics-along
def test_transactions_leave_their_markers_behind(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """Aborted records are not copied, and the offsets that markers take are gaps."""
    client.create("transactions")
    client.transaction("transactions", recs(range(5)), commit=True)
    client.transaction("transactions", recs(range(5, 8)), commit=False)
    client.transaction("transactions", recs(range(8, 12)), commit=True)
    client.commit("all read", {("transactions", 0): client.end("transactions")})
    assert mirror("--topics", "transactions", "--groups", "all read")
    assert [record.value for record in here(log, "transactions")[0]] == [b"%d" % n for n in (*range(5), *range(8, 12))]
    assert_copied(spark, kafka, log, "transactions")
    assert log.admin.list_consumer_group_offsets("all read")[TopicPartition("transactions", 0)].offset == 9


def test_times_that_the_broker_gave_are_kept(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """A topic with LogAppendTime is copied with the times that its records have, not with that of the copy."""
    client.create("append-time", 1, message_timestamp_type="LogAppendTime")
    client.send("append-time", recs(range(3)))
    assert mirror("--topics", "append-time")
    assert_copied(spark, kafka, log, "append-time")


# Promise: from-kafka.md#taking-topics-along
def test_a_run_goes_on_where_the_last_one_ended(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """With partitions that Kafka's topic has got since, and topics that the pattern finds now."""
    client.create("again-a")
    client.send("again-a", recs(range(10)))
    assert mirror("--pattern", "^again-", "--max-offsets", "4")
    client.grow("again-a", 2)
    client.send("again-a", [*recs(range(10, 15)), *recs(range(5), 1)])
    client.create("again-b")
    client.send("again-b", recs(range(3)))
    client.trim("again-b", 0, 1)
    assert mirror("--pattern", "^again-")
    for topic in ("again-a", "again-b"):
        assert_copied(spark, kafka, log, topic)
    assert mirror("--pattern", "^again-")
    assert log.admin.describe_topics(["again-a"])["again-a"].rows == 20


def test_a_lost_checkpoint_costs_nothing(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """The map was committed with the records, so it has the position to continue from."""
    client.create("lost-checkpoint", 2)
    client.send("lost-checkpoint", recs(range(10)))
    assert mirror("--topics", "lost-checkpoint")
    client.send("lost-checkpoint", [*recs(range(10, 15)), *recs(range(5), 1)])
    assert mirror("--topics", "lost-checkpoint", checkpoint="another")
    assert_copied(spark, kafka, log, "lost-checkpoint")


# Promise: from-kafka.md#taking-topics-along
def test_a_checkpoint_that_goes_back_is_refused(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log, tmp_path: Path
) -> None:
    """Its batches may hold other records than before; without the topic's folder the map says where to continue."""
    client.create("goes-back")
    client.send("goes-back", recs(range(6)))
    assert mirror("--topics", "goes-back", "--max-offsets", "2")
    (folder,) = (tmp_path / "checkpoint").glob("goes-back-*")
    for kind in ("offsets", "commits"):
        for name in ("1", "2", ".1.crc", ".2.crc"):
            (folder / kind / name).unlink(missing_ok=True)
    client.send("goes-back", recs(range(6, 9)))
    with pytest.raises(SparkLogError, match="SequenceConflict: .* this is batch 1, and the last batch .* is 2"):
        mirror("--topics", "goes-back")
    shutil.rmtree(folder)
    assert mirror("--topics", "goes-back")
    assert_copied(spark, kafka, log, "goes-back")


# Promise: from-kafka.md#taking-topics-along
def test_groups_are_taken_along(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """All of them, again and again, until a consumer here has committed: what it did stays."""
    client.create("grouped", 2)
    client.send("grouped", [*recs(range(10)), *recs(range(4), 1)])
    client.commit("g1", {("grouped", 0): 3, ("grouped", 1): 4})
    client.commit("g2", {("grouped", 0): 10})
    tps = [TopicPartition("grouped", number) for number in (0, 1)]
    assert mirror("--topics", "grouped", "--groups", "*")

    def at(group: str) -> dict[TopicPartition, int]:
        return {tp: one.offset for tp, one in log.admin.list_consumer_group_offsets(group).items()}

    assert at("g1") == {tps[0]: 3, tps[1]: 4} and at("g2") == {tps[0]: 10}
    client.commit("g1", {("grouped", 0): 2, ("grouped", 1): 4})
    with log.consumer("grouped", group_id="g2") as consumer:
        consumer.commit({tps[0]: 7})
    assert mirror("--topics", "grouped", "--groups", "g1,g2")
    assert at("g1") == {tps[0]: 2, tps[1]: 4} and at("g2") == {tps[0]: 7}


def test_groups_can_come_from_a_file(
    client: Client, mirror: Callable[..., bool], log: spark_log.Log, tmp_path: Path
) -> None:
    """Where Kafka's groups are not those to go by; beyond what was copied nothing is guessed."""
    client.create("from-file")
    client.send("from-file", recs(range(10)))
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"by hand": {"from-file": {"0": 6}}}))
    assert mirror("--topics", "from-file", "--group-offsets", str(file))
    tp = TopicPartition("from-file", 0)
    assert log.admin.list_consumer_group_offsets("by hand")[tp].offset == 6
    file.write_text(json.dumps({"by hand": {"from-file": {"0": 11}}}))
    assert not mirror("--topics", "from-file", "--group-offsets", str(file))
    assert log.admin.list_consumer_group_offsets("by hand")[tp].offset == 6


def test_configs_that_were_set_are_carried_over(
    client: Client, mirror: Callable[..., bool], log: spark_log.Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that mean the same here; of the others it is said why not."""
    configs = {"retention_ms": "1234567890", "compression_type": "gzip", "message_timestamp_type": "LogAppendTime"}
    client.create("configured", 1, **configs)
    assert mirror("--topics", "configured")
    assert log.admin.describe_topics(["configured"])["configured"].configs == {"retention.ms": "1234567890"}
    said = capsys.readouterr().err
    assert "compression.type=gzip is left out" in said and "message.timestamp.type=LogAppendTime is left out" in said


# Promise: from-kafka.md#cut-over
def test_a_dry_run_makes_nothing(
    client: Client, mirror: Callable[..., bool], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how much there is to copy."""
    client.create("dry", 2)
    client.send("dry", recs(range(7)))
    assert mirror("--topics", "dry", "--dry-run")
    assert "dry: 2 partitions, 7 offsets to copy, 0 records copied before" in capsys.readouterr().err
    with pytest.raises(NoLog):
        spark_log.connect(url, create=False)


def test_a_topic_that_kafka_does_not_have_is_named(client: Client, mirror: Callable[..., bool]) -> None:
    """With those that it has."""
    client.create("there-is")
    with pytest.raises(InvalidRequest, match="Kafka has no topic 'there-is-not'; it has .*there-is"):
        mirror("--topics", "there-is-not")


# Promise: from-kafka.md#taking-topics-along
def test_a_topic_that_others_write_to_is_refused(
    client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """Its offsets could not be told from Kafka's any more."""
    client.create("shared")
    client.send("shared", recs(range(3)))
    log.append("shared", [{"value": "mine"}])
    with pytest.raises(InvalidRequest, match="only the mirror may write to 'shared'"):
        mirror("--topics", "shared")


def test_a_topic_that_was_created_again_in_kafka_is_refused(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log
) -> None:
    """It is another topic, however long it has grown; deleting the copy starts afresh."""
    client.create("recreated")
    client.send("recreated", recs(range(3)))
    assert mirror("--topics", "recreated")
    client.delete("recreated")
    client.create("recreated")
    client.send("recreated", recs(range(100, 110)))
    with pytest.raises(InvalidRequest, match="'recreated' was deleted and created again in Kafka"):
        mirror("--topics", "recreated")
    spark_log.connect(log.url).admin.delete_topics(["recreated"])
    assert mirror("--topics", "recreated")
    assert_copied(spark, kafka, log, "recreated")


# Promise: from-kafka.md#taking-topics-along, operations.md#jobs
@pytest.mark.slow
def test_a_job_that_is_killed_and_run_again_copies_everything_once(
    spark: SparkSession, kafka: Broker, client: Client, mirror: Callable[..., bool], log: spark_log.Log, tmp_path: Path
) -> None:
    """By SIGKILL, three times, at different points, in small batches, on a local cluster; the map is right at the
    end."""
    client.create("killed", 2)
    client.send("killed", [rec for n in range(1500) for rec in (*recs(range(n, n + 1)), *recs(range(n, n + 1), 1))])
    client.commit("survivor", {("killed", 0): 1234, ("killed", 1): 567})
    args = ["--bootstrap-servers", kafka.address, "--topics", "killed", "--url", log.url]
    args += ["--checkpoint", str(tmp_path / "checkpoint"), "--max-offsets", "100"]

    def rows() -> int:
        return log.admin.describe_topics(["killed"])["killed"].rows if "killed" in log.admin.list_topics() else 0

    for enough in (1, 700, 1500):
        job = submitted("mirror_kafka.py", *args, **local_cluster(), **{"spark.jars": kafka.jars})
        killed_when(job, lambda enough=enough: rows() >= enough)
    assert 0 < rows() < 3000
    assert mirror("--topics", "killed", "--groups", "survivor")
    assert_copied(spark, kafka, log, "killed")
    positions = log.admin.list_consumer_group_offsets("survivor")
    assert {tp.partition: at.offset for tp, at in positions.items()} == {0: 1234, 1: 567}
