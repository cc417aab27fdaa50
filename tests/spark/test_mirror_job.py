"""jobs/mirror_kafka.py as far as it needs no Kafka; the rest is in tests/kafka."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.mirror_job import explained, settings_of
from pyspark_pylog.jobs.mirror_kafka import KafkaSource, parse_args, read_positions
from pyspark_pylog.jobs.topic_mirror import (
    Positions,
    Reached,
    SourceTopic,
    TopicMirror,
    carried,
    check_names,
    check_sources,
    create_dead_letters,
    left,
    note_reached,
    prepare,
    read_reached,
    seed_groups,
)
from pyspark_pylog.jobs.typed_mirror import TypedCopy, spark_columns_of, with_typed_map

import spark_log
from spark_log import NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.client.mirror_map import Copied, MirroredTopic, MirrorMap, entry_rows
from spark_log.errors import InvalidRecord, InvalidRequest
from spark_log.metadata.groups.group_commands import JoinGroup
from spark_log.segment.schema import HEADERS, TIMESTAMP

NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)
ORDERS = [TopicPartition("orders", number) for number in (0, 1)]


@pytest.fixture
def offsets(log: spark_log.Log) -> MirrorMap:
    """A map of ten records, every other offset of partition 0."""
    log.admin.create_topics([NewTopic("orders", 2)])
    made = MirrorMap(log, "map")
    made.create()
    topic_id = log.journal.refresh().names["orders"]
    log.append(
        "map", entry_rows(MirroredTopic("orders", topic_id, "there", "map"), {0: [(n, 1) for n in range(0, 20, 2)]})
    )
    return made


def source(*ends: int) -> SourceTopic:
    return SourceTopic("there", len(ends), {}, (0,) * len(ends), ends)


GIVEN = ["--bootstrap-servers", "b:1", "--url", "u", "--checkpoint", "c", "--topics", "orders"]


def seeded(log: spark_log.Log, offsets: MirrorMap, topics: Mapping[str, SourceTopic], groups: Positions) -> bool:
    kafka: Any = None
    return seed_groups(log, offsets, KafkaSource(kafka, parse_args(GIVEN), kafka), topics, groups, print)


def test_configs_keep_their_meaning_or_are_told() -> None:
    """Configs that pylog lacks, configs that would change the records, and unknown ones."""
    configs = {
        "retention.ms": "5000",
        "compression.type": "gzip",
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": "2",
        "x.y": "1",
    }
    assert carried({"min.insync.replicas": "1"}) == ({}, [])  # Kafka 4.1 reports it for every topic
    taken, notes = carried(configs)
    assert taken == {"retention.ms": "5000"}
    assert [note.partition(" ")[0] for note in notes] == [
        "compression.type=gzip",
        "message.timestamp.type=LogAppendTime",
        "min.insync.replicas=2",
        "x.y=1",
    ]


def test_what_is_left_counts_from_the_first_record_that_is_there() -> None:
    """Neither what was copied nor what retention took is copied again."""
    one = SourceTopic("there", 3, {}, (0, 50, 0), (30, 80, 0))
    assert left("orders", one, {ORDERS[0]: Copied(20, 25, "there")}) == 5 + 30


# Promise: tasks/mirror-topics.md#mirror-topics-to-another-log
def test_a_source_that_gives_copied_offsets_to_other_records_is_refused() -> None:
    """It was created again, is another log, or is an older copy.  Topics that are not copied now do not count."""
    topics = {"orders": SourceTopic("there", 2, {}, (0, 0), (30, 30))}
    known = {ORDERS[0]: Copied(20, 30, "there"), TopicPartition("other", 0): Copied(1, 1, "x")}
    check_sources(topics, known, "Kafka")
    with pytest.raises(InvalidRequest, match="orders-1 ends at 30 in Kafka, and was copied up to 31"):
        check_sources(topics, {ORDERS[1]: Copied(31, 31, "there")}, "Kafka")
    with pytest.raises(
        InvalidRequest, match="'orders' was deleted and created again in Kafka .* or Kafka was restored"
    ):
        check_sources(topics, {ORDERS[1]: Copied(1, 1, "elsewhere")}, "Kafka")


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_source_that_was_restored_before_the_copied_records_is_refused_however_long_it_is() -> None:
    """Records up to the end of the copy are the same."""
    ends = {"": 20, "first": 25}
    one = SourceTopic(
        "there", 2, {}, (0, 0), (90, 90), history="second", same_until=lambda history, partition: ends.get(history)
    )
    topics = {"orders": one}
    for copied in (Copied(20, 20, "there"), Copied(25, 25, "there", "first"), Copied(90, 90, "there", "second")):
        check_sources(topics, {ORDERS[0]: copied}, "there")
    with pytest.raises(
        InvalidRequest, match="orders-0 was copied up to 26, and there was restored from a copy that ended at 25"
    ):
        check_sources(topics, {ORDERS[0]: Copied(26, 26, "there", "first")}, "there")


# Promise: tasks/mirror-topics.md#mirror-topics-to-another-log
def test_a_log_that_was_set_back_to_an_older_copy_is_refused(
    log: spark_log.Log, offsets: MirrorMap, tmp_path: Path
) -> None:
    """The checkpoints are ahead of it.  A new map, and a folder without the note, begin as usual."""
    nobody: Any = None
    args = parse_args([*GIVEN[:-4], "--checkpoint", f"file://{tmp_path}/ck", "--topics", "none", "--map", "map"])

    class Empty(KafkaSource):
        def topics(self) -> dict[str, SourceTopic]:
            return {}

    def mirror() -> TopicMirror:
        return TopicMirror(nobody, log, Empty(nobody, args, nobody), settings_of(args), print)

    assert mirror().run() == ({}, True)
    map_id, end = log.journal.refresh().names["map"], len(log.read("map"))
    settings, other = settings_of(args), settings_of(args)._replace(checkpoint="hdfs://host/ck")
    assert read_reached(settings, log.cluster_id) == Reached(map_id, end)
    note_reached(settings, log.cluster_id, Reached(map_id, end + 1))
    with pytest.raises(InvalidRequest, match=f"'map' ends at offset {end}, .* up to {end + 1}: .* was set back to an"):
        mirror().run()
    note_reached(settings, log.cluster_id, Reached("former", end + 1))
    assert mirror().run() == ({}, True)
    note_reached(other, log.cluster_id, Reached(map_id, end))
    assert read_reached(other, log.cluster_id) is None


# Promise: tasks/mirror-topics.md#mirror-topics-to-another-log
def test_a_group_that_is_in_use_here_does_not_stop_a_mirror(
    log: spark_log.Log, offsets: MirrorMap, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are set."""
    log.journal.propose(JoinGroup(group="busy", member="m", token="t", owner="a stream", timeout_ms=45_000))
    assert not seeded(log, offsets, {"orders": source(20, 0)}, {"busy": {ORDERS[0]: 7}, "g": {ORDERS[0]: 7}})
    assert "group busy: its positions are not set: group 'busy' is held by a stream" in capsys.readouterr().out
    assert list(log.admin.list_consumer_group_offsets("g")) == [ORDERS[0]]


def test_a_group_stands_at_the_same_record(log: spark_log.Log, offsets: MirrorMap) -> None:
    """In a gap, at the first record after it; the note has Kafka's offset."""
    assert seeded(log, offsets, {"orders": source(20, 0)}, {"g": {ORDERS[0]: 7, TopicPartition("other", 0): 1}})
    assert log.admin.list_consumer_group_offsets("g") == {ORDERS[0]: OffsetAndMetadata(4, "kafka:7")}


def test_a_group_that_went_on_in_kafka_is_not_guessed_at(
    log: spark_log.Log, offsets: MirrorMap, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records in between were not copied yet; its other positions are set."""
    assert not seeded(log, offsets, {"orders": source(20, 0)}, {"g": {ORDERS[0]: 21, ORDERS[1]: 0}})
    assert log.admin.list_consumer_group_offsets("g") == {ORDERS[1]: OffsetAndMetadata(0, "kafka:0")}
    assert "orders-0 is at 21 in Kafka, beyond what was copied" in capsys.readouterr().out


def test_a_position_in_a_partition_that_was_not_there_waits_for_the_next_run(
    log: spark_log.Log, offsets: MirrorMap, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was added meanwhile, or a file names it by mistake."""
    new = TopicPartition("orders", 2)
    assert not seeded(log, offsets, {"orders": source(20, 0)}, {"g": {ORDERS[0]: 7, new: 5}})
    assert log.admin.list_consumer_group_offsets("g") == {ORDERS[0]: OffsetAndMetadata(4, "kafka:7")}
    assert "orders-2 is at 5 in Kafka, beyond what was copied" in capsys.readouterr().out


# Promise: from-kafka.md#taking-topics-along
def test_a_group_that_went_on_here_is_left_alone(log: spark_log.Log, offsets: MirrorMap) -> None:
    """A run after the cut-over must not take consumers back."""
    log.admin.alter_consumer_group_offsets("g", {ORDERS[0]: OffsetAndMetadata(9)})
    assert seeded(log, offsets, {"orders": source(20, 0)}, {"g": {ORDERS[0]: 7}})
    assert log.admin.list_consumer_group_offsets("g")[ORDERS[0]].offset == 9


def of_kafka(*values: bytes | None, first: int = 0) -> pa.RecordBatch:
    """Records of `orders`-0, as Spark's Kafka source has them."""
    count = len(values)
    return pa.record_batch(
        {
            "topic": ["orders"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "key": pa.array([b"k"] * count),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([NOON] * count, TIMESTAMP),
            "headers": pa.nulls(count, HEADERS),
        }
    )


GOOD, BAD = (
    (b'{"id": 1, "at": "2026-01-31T10:00:00Z"}', None, b'{"id": 2}'),
    (b"{", b'{"at": null}', b'{"id": 1, "x": 2}'),
)


def typed_copy(log: spark_log.Log, **more: Any) -> TypedCopy:
    log.admin.create_topics([NewTopic("orders", 1, schema="id BIGINT NOT NULL, at TIMESTAMP")])
    copy = MirroredTopic("orders", log.journal.refresh().names["orders"], "there", "map")
    return TypedCopy(copy, log.admin.describe_schema("orders")[-1], **more)


# Promise: from-kafka.md#taking-topics-along
def test_json_becomes_the_columns_of_a_schema(classic: SparkSession, log: spark_log.Log) -> None:
    """A record that does not fit is a dead letter with its place in Kafka, and a gap in the map; all in one commit."""
    spark_log.register(classic)
    typed = typed_copy(log, dead_letters="bad")
    MirrorMap(log, "map").create()
    create_dead_letters(log, "bad")
    records = pa.Table.from_batches([of_kafka(GOOD[0], BAD[0], GOOD[1], BAD[1], GOOD[2], BAD[2], first=7)])
    frame = (
        classic.createDataFrame(records)
        .coalesce(1)
        .mapInArrow(partial(with_typed_map, typed), spark_columns_of(typed.schema))
    )
    version = log.journal.refresh().version
    frame.write.format("pylog").mode("append").option("topic", "orders").option("pylog.beside", True).save(log.url)

    assert log.journal.refresh().version == version + 1
    rows = log.read("orders", value_format="struct", columns=["value", "timestamp", "key"]).to_pylist()
    at = datetime.datetime(2026, 1, 31, 10, tzinfo=datetime.timezone.utc)
    assert [row["value"] for row in rows] == [{"id": 1, "at": at}, None, {"id": 2, "at": None}]
    assert {(row["timestamp"], row["key"]) for row in rows} == {(NOON, b"k")}
    letters = log.read("bad", columns=["value", "headers"]).to_pylist()
    assert [row["value"] for row in letters] == list(BAD)
    headers = [{one["key"]: one["value"] for one in row["headers"]} for row in letters]
    assert [one["pylog.offset"] for one in headers] == [b"8", b"10", b"12"]
    assert [b"is not JSON" in headers[0]["pylog.error"], b"is null" in headers[1]["pylog.error"]] == [True, True]
    mirror = MirrorMap(log, "map")
    mirror.check(["orders"])
    assert mirror.copied() == {ORDERS[0]: Copied(3, 13, "there")}
    asked = [(ORDERS[0], offset) for offset in (7, 8, 9, 10, 11, 12)]
    assert list(mirror.translate(asked).values()) == [0, 1, 1, 2, 2, 3]


# Promise: from-kafka.md#taking-topics-along, tasks/mirror-topics.md#mirror-topics-to-another-log
def test_a_record_that_does_not_fit_stops_the_job(log: spark_log.Log) -> None:
    """With its offset in Kafka, and what to do; --drop-fields leaves out what the schema lacks."""
    typed = typed_copy(log)
    with pytest.raises(
        InvalidRecord, match=r"orders-0 at offset 8 in Kafka: the value is not JSON: .*--bad-records TOPIC"
    ):
        list(with_typed_map(typed, [of_kafka(GOOD[0], BAD[0], first=7)]))
    rows, entries = with_typed_map(typed._replace(drop_fields=True), [of_kafka(BAD[2])])
    assert rows.column("value").to_pylist() == [{"id": 1, "at": None}]
    assert entries.column("pylog.topic").to_pylist() == ["map"]


def test_names_of_schemas_and_dead_letters_are_checked() -> None:
    """Before anything is created."""
    with pytest.raises(InvalidRequest, match="--bad-records: 'orders' is one of the topics to copy"):
        check_names(settings_of(parse_args([*GIVEN, "--bad-records", "orders"])), ["orders"])
    with pytest.raises(InvalidRequest, match="--bad-records: 'm' is the topic of --map; give another name"):
        check_names(settings_of(parse_args([*GIVEN, "--map", "m", "--bad-records", "m"])), ["orders"])
    kafka: Any = SimpleNamespace(topics=lambda: ["orders"], describe=lambda _: {"orders": source(1)})
    with pytest.raises(InvalidRequest, match="--schema other=…: 'other' is not one of the topics to copy"):
        KafkaSource(kafka, parse_args([*GIVEN, "--schema", "other=id INT"]), kafka).topics()


# Promise: from-kafka.md#taking-topics-along
def test_schemas_are_set_and_evolve(log: spark_log.Log, tmp_path: Path) -> None:
    """From DDL, or a file."""
    (tmp_path / "orders.ddl").write_text("id BIGINT, note STRING")
    kafka: Any = SimpleNamespace(topics=lambda: ["orders"], describe=lambda _: {"orders": source(1)})
    for schema in ("id INT", str(tmp_path / "orders.ddl")):
        args = parse_args([*GIVEN, "--schema", f"orders={schema}"])
        prepare(log, KafkaSource(kafka, args, kafka).topics(), print)
    assert [one.columns.names for one in log.admin.describe_schema("orders")] == [["id"], ["id", "note"]]


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"g": 1}', '{"g": {"orders": {"x": 1}}}', '{"g": {"orders": {"0": null}}}']
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    """With the file's name and the shape."""
    file = tmp_path / "groups.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"groups\.json: .*the shape is"):
        read_positions(file)


# Promise: from-kafka.md#taking-topics-along
def test_a_checkpoint_behind_the_log_comes_with_the_jobs_own_way_out() -> None:
    """The map has what the checkpoint has not; any other error is left as it is."""
    error = "terminated with exception: spark_log.errors.SequenceConflict: query q: this is batch 1"
    assert explained(error, "/c").startswith(error) and "delete the topic's folder in /c" in explained(error, "/c")
    assert explained("terminated with exception: DataLoss", "/c") == "terminated with exception: DataLoss"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (["--pattern", "(a"], "is not a Python regular expression"),
        (["--topics", " , "], "no names given"),
        (["--topics", "a", "--kafka-option", "x"], "is not of the form KEY=VALUE"),
        (["--topics", "a", "--every", "soon"], "soon"),
        (["--topics", "a", "--every", "1m", "--dry-run"], "leave out --every"),
        (["--topics", "a", "--pattern", "b"], "not allowed with"),
    ],
)
def test_a_wrong_argument_says_what_is_wrong(
    argument: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark starts."""
    with pytest.raises(SystemExit):
        parse_args(["--bootstrap-servers", "b:1", "--url", "u", "--checkpoint", "c", *argument])
    assert said in capsys.readouterr().err
