"""`subscribe=__consumer_offsets`: where groups stand, as records.

The readers are driven without Spark where they can be; Spark itself is asked at the end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark_pylog.log.open_log import planned_log
from pyspark_pylog.log.task_metadata import agreed_value
from pyspark_pylog.options.parse import Location, ReadOptions, read_options
from pyspark_pylog.source.consumer_offsets_topic import ProgressReader, ProgressStreamReader, pinned_progress
from pyspark_pylog.source.query_pins import POSITIONS_MAX, encode, pin_of
from pyspark_pylog.source.ranges import wanted_partitions

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log import NewTopic, TopicPartition
from spark_log.client.log import Log
from spark_log.errors import ConcurrentChange, DataLoss, InvalidRequest, InvalidTopic, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.metadata.groups.consumer_offsets import partition_of_group
from spark_log.recovery.log_move import move_log
from spark_log.store.local import LocalStore
from spark_log.store.retry import RETRY_MS
from tests.logged import logged
from tests.spark.builders import load, load_stream
from tests.spark.driver import Stream

TOPIC = "__consumer_offsets"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
KEY_VALUE = pa.schema([("key", pa.binary()), ("value", pa.binary())])

Standing = tuple[str, str, int | None]
"""(group, "topic-partition", offset), or None where it was removed."""


@pytest.fixture
def filled(log: spark_log.Log) -> spark_log.Log:
    """Topic t with two partitions of 5 records."""
    log.admin.create_topics([NewTopic("t", 2)])
    log.append("t", [{"value": str(n), "partition": n % 2} for n in range(10)])
    return log


def commit(log: spark_log.Log, group: str, *offsets: int) -> int:
    """Commit positions in t-0, t-1, …; the offset of their records."""
    log.admin.alter_consumer_group_offsets(group, {TopicPartition("t", n): at for n, at in enumerate(offsets)})
    return log.journal.state.version


def standing(rows: Iterable[Mapping[str, Any]]) -> list[Standing]:
    """The content of records, in order."""
    found = []
    for row in rows:
        key, value = json.loads(row["key"]), row["value"]
        offset = None if value is None else json.loads(value)["offset"]
        found.append((key["group"], f"{key['topic']}-{key['partition']}", offset))
    return sorted(found, key=str)


def read(url: str, **options: Any) -> list[Standing]:
    """A batch as it was planned."""
    texts = {name.lower(): str(value) for name, value in options.items()}
    given = read_options({"path": url, "subscribe": TOPIC, **texts}, streaming=False)
    (task,) = ProgressReader(given, KEY_VALUE).partitions()
    return standing(record._asdict() for record in task.records)  # type: ignore[attr-defined]


class Query(Stream):
    """A query of where groups stand."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, TOPIC, **options)

    def _new_reader(self, options: ReadOptions) -> Any:
        return ProgressStreamReader(options, KEY_VALUE, self.clock)

    def changed(self) -> list[Standing] | None:
        """The next batch; None if there is none."""
        if not self.plan():
            return None
        return self.again()

    def again(self) -> list[Standing]:
        """The batch that was planned last."""
        return standing(row for task in self.tasks() for part in self.reader.read(task) for row in part.to_pylist())


# ------------------------------------------------------------------------------------------------------------- in batches


# Promise: spark-streams.md#named-progress
def test_there_is_one_record_for_each_position_the_latest(url: str, filled: spark_log.Log) -> None:
    """From a consumer, a transaction or an administrator."""
    assert read(url) == []
    commit(filled, "a", 1, 2)
    commit(filled, "a", 3)
    with filled.transaction("x") as txn:
        txn.send("t", b"v", partition=0)
        txn.commit_offsets("b", {T1: 5})
    with filled.consumer("t", group_id="c", auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout_ms=500)
        consumer.commit()
    assert read(url) == [("a", "t-0", 3), ("a", "t-1", 2), ("b", "t-1", 5), ("c", "t-0", 6), ("c", "t-1", 5)]


def test_what_a_record_says(filled: spark_log.Log) -> None:
    """Its offset is the version of the log, its timestamp the log's time; it lies where Kafka would put it."""
    note = spark_log.OffsetAndMetadata(4, "by hand")
    filled.admin.alter_consumer_group_offsets("test-group", {T1: note})
    state = filled.journal.state
    (row,) = filled.read(TOPIC).to_pylist()
    assert json.loads(row["key"]) == {"group": "test-group", "topic": "t", "partition": 1}
    assert json.loads(row["value"]) == {"offset": 4, "metadata": "by hand", "committed": state.time}
    assert (row["topic"], row["partition"], row["offset"], row["headers"]) == (TOPIC, 12, state.version, None)
    assert row["timestamp"].timestamp() * 1000 == state.time


# Promise: spark-streams.md#named-progress
@pytest.mark.parametrize(
    ("group", "partition"),
    [("group-id", 13), ("console-consumer-12345", 6), ("polygenelubricants", 0), ("", 0), ("😀", 49)],
)
def test_groups_are_spread_by_kafkas_rule(group: str, partition: int) -> None:
    """Java's hash of the name, in 16-bit units; the third one has -2147483648, whose sign cannot be taken away."""
    assert partition_of_group(group) == partition


# Promise: spark-streams.md#named-progress
def test_a_removed_position_is_a_record_without_a_value(url: str, filled: spark_log.Log) -> None:
    """Removed alone, with its group or with its topic; one that is committed again is there again."""
    commit(filled, "a", 1, 2)
    commit(filled, "b", 3)
    commit(filled, "c", 4)
    filled.admin.delete_consumer_group_offsets("a", [T0])
    filled.admin.delete_consumer_groups(["b"])
    assert read(url) == [("a", "t-0", None), ("a", "t-1", 2), ("b", "t-0", None), ("c", "t-0", 4)]
    commit(filled, "b", 5)
    assert read(url)[2:] == [("b", "t-0", 5), ("c", "t-0", 4)]
    filled.admin.delete_topics(["t"])
    assert {at for *_, at in read(url)} == {None}


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, "abc"),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, "abc"),
        ({"startingOffsets": "B"}, "bc"),
        ({"endingOffsets": "B"}, "a"),
        ({"startingOffsets": "B", "endingOffsets": "C"}, "b"),
        ({"endingOffsets": "999"}, "abc"),
        ({"startingOffsets": '{"__consumer_offsets":{"48":C}}'}, "ac"),
        ({"startingOffsets": "latest-1"}, "abc"),
        ({"startingOffsets": "latest-0"}, ""),
        ({"startingOffsets": "now-1h"}, "abc"),
        ({"endingOffsets": "now-1h"}, ""),
        ({"startingTimestamp": "0"}, "abc"),
        ({"endingTimestamp": "0"}, ""),
        ({"startingTimestamp": "4102444800000", "startingOffsetsByTimestampStrategy": "latest"}, ""),
        ({"where": "partition >= 48"}, "bc"),
        ({"where": "offset > B and timestamp < '2999-01-01T00:00:00Z'"}, "c"),
    ],
)
def test_where_a_batch_starts_and_ends(
    url: str, filled: spark_log.Log, options: Mapping[str, str], groups: str
) -> None:
    """Every position that there is; offsets are versions, and a, b and c have the partitions 47, 48 and 49."""
    at = {name.upper(): str(commit(filled, name, 1)) for name in "abc"}
    texts = {option: "".join(at.get(c, c) for c in text) for option, text in options.items()}
    assert "".join(group for group, *_ in read(url, **texts)) == groups


def test_partitions_that_are_assigned(url: str, filled: spark_log.Log) -> None:
    """One that does not exist is left out."""
    for name in "abc":
        commit(filled, name, 1)
    options = read_options({"path": url, "assign": json.dumps({TOPIC: [48, 50]})}, streaming=False)
    (task,) = ProgressReader(options, KEY_VALUE).partitions()
    assert [record.partition for record in task.records] == [48]  # type: ignore[attr-defined]


def location(log: spark_log.Log) -> Location:
    """Of a log on a disk."""
    return Location(url=log.url, storage={}, durability="os")


def test_a_query_sees_groups_and_topics_at_one_version(filled: spark_log.Log) -> None:
    """Whichever of its scans settled the version, and however long before a task asks where groups stand."""
    first = commit(filled, "a", 1)
    filled.append("t", [{"value": "x"}])
    seen, version = planned_log(location(filled), filled.journal), filled.journal.state.version
    agreed_value(seen, "meta/pin/q", lambda _: encode(pin_of(filled.journal.refresh())))
    for number in range(110):
        commit(filled, "a", number % 5)
    then = pinned_progress(seen, "meta/pin/q")
    assert standing(record._asdict() for record in then.records) == [("a", "t-0", 1)]
    assert (then.version, then.end) == (version, first + 1)


@pytest.fixture
def wide(log: spark_log.Log) -> spark_log.Log:
    """Topic t, with more positions of group a, which are 0, than a pin holds."""
    log.admin.create_topics([NewTopic("t", POSITIONS_MAX + 1)])
    log.append("t", [{"value": "x", "partition": 0}] * 5)
    commit(log, "a", *([0] * (POSITIONS_MAX + 1)))
    return log


def test_many_positions_are_those_of_that_version_too(wide: spark_log.Log) -> None:
    """They are found in the log when they are asked for."""
    seen = planned_log(location(wide), wide.journal)
    agreed_value(seen, "meta/pin/q", lambda _: encode(pin_of(wide.journal.refresh())))
    commit(wide, "a", 5)
    commit(wide, "b", 3)
    assert {at for *_, at in standing(r._asdict() for r in pinned_progress(seen, "meta/pin/q").records)} == {0}
    wide.append("t", [{"value": "x"}])
    agreed_value(seen, "meta/pin/later", lambda _: encode(pin_of(wide.journal.refresh())))
    wide.append("t", [{"value": "x"}])
    later = pinned_progress(seen, "meta/pin/later")
    assert len(later.records) == POSITIONS_MAX + 2 and later.version == wide.journal.state.version - 1


def test_a_version_that_is_not_known_any_more_is_told(wide: spark_log.Log) -> None:
    """The progress of many positions, when two checkpoints took its place before anybody asked where groups stood."""
    seen, version = planned_log(location(wide), wide.journal), wide.journal.state.version
    agreed_value(seen, "meta/pin/q", lambda _: encode(pin_of(wide.journal.refresh())))
    for number in range(210):
        commit(wide, "a", number % 5)
    wide.journal.finish_maintenance()
    with pytest.raises(ConcurrentChange, match=f"version {version} of the log, .* run the query again"):
        pinned_progress(seen, "meta/pin/q")


# ------------------------------------------------------------------------------------------------------------ as a stream


class Away(Wrapper):
    """A store that does not answer the next `away` reads."""

    away = 0

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if self.away:
            self.away -= 1
            raise StorageUnavailable("nobody answers")
        return super().get(key, start, end)


def test_a_storage_that_is_away_is_asked_again(
    url: str, filled: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """As often as fetchOffset.numRetries says, behind the storage's own patience."""
    commit(filled, "a", 1)
    query = Query(url)
    store = Away(LocalStore(url))
    query.reader._journal = Journal.open(store, create=False, clock=ManualClock())
    store.away = 2 * (len(RETRY_MS) + 1)
    assert query.changed() == [("a", "t-0", 1)]
    assert [message[:8] for message in logged(caplog, "try ")] == ["try 1 of", "try 2 of"]
    store.away = 3 * (len(RETRY_MS) + 1)
    with pytest.raises(StorageUnavailable):
        query.changed()


def test_a_stream_of_positions_follows_a_log_that_is_moved(url: str, filled: spark_log.Log, tmp_path: Path) -> None:
    """Between two batches, as a stream of records does."""
    commit(filled, "a", 1)
    query = Query(url)
    assert query.changed() == [("a", "t-0", 1)]
    move_log(Log(Journal.open(LocalStore(url, "os"), create=False)), LocalStore(str(tmp_path / "new"), "os"))
    assert query.changed() is None
    commit(spark_log.connect(url, durability="os"), "a", 3)
    assert query.changed() == [("a", "t-0", 3)]


def test_a_micro_batch_has_what_has_changed_since(url: str, filled: spark_log.Log) -> None:
    """Of what changed more than once, the latest; what was removed has no value."""
    commit(filled, "a", 1, 2)
    query = Query(url)
    assert query.changed() == [("a", "t-0", 1), ("a", "t-1", 2)]
    assert query.changed() is None
    commit(filled, "a", 3)
    commit(filled, "a", 4)
    commit(filled, "b", 5)
    assert query.changed() == [("a", "t-0", 4), ("b", "t-0", 5)]
    filled.admin.delete_consumer_groups(["b"])
    assert query.changed() == [("b", "t-0", None)]
    assert query.changed() is None


def test_nothing_but_progress_makes_a_batch(url: str, filled: spark_log.Log) -> None:
    """No append, and no sign of life of a stream that has a group."""
    query = Query(url, startingOffsets="latest")
    query.changed()
    other = Stream(url, **{"group.id": "g"})
    other.plan()
    other.reader._progress.flush()
    query.changed()  # where the group starts
    other.reader._progress._publisher._membership.renew_session()
    filled.append("t", [{"value": "y"}])
    assert query.changed() is None
    other.batch()
    other.batch()
    other.reader._progress.flush()
    assert [group for group, *_ in query.changed() or ()] == ["g", "g"]
    other.reader.stop()


def test_a_stream_goes_on_from_its_checkpoint(url: str, filled: spark_log.Log) -> None:
    """A batch that Spark runs again has what it had, but for what has changed since: that is in the next one."""
    commit(filled, "a", 1)
    commit(filled, "b", 1)
    query = Query(url)
    query.plan()
    commit(filled, "b", 2)
    query.restart()
    assert query.again() == [("a", "t-0", 1)]
    assert query.changed() == [("b", "t-0", 2)]
    assert query.restart().changed() is None


def test_the_first_batch_begins_where_it_began(url: str, filled: spark_log.Log) -> None:
    """Also if it is run again when the log has grown, and its start is not in the checkpoint."""
    query = Query(url, startingOffsets="latest")
    query.reader.initialOffset()
    commit(filled, "a", 1)
    query.plan()
    commit(filled, "b", 1)
    assert query.restart().again() == [("a", "t-0", 1)]


def test_an_available_now_run_ends_where_it_ended_when_it_began(url: str, filled: spark_log.Log) -> None:
    """Later records wait for the next run."""
    commit(filled, "a", 1)
    query = Query(url, trigger="available-now")
    commit(filled, "b", 1)
    assert query.changed() == [("a", "t-0", 1)] and query.changed() is None
    query.restart()
    assert query.changed() == [("b", "t-0", 1)] and query.changed() is None


def test_an_older_copy_of_the_log_is_told(tmp_path: Path, url: str, filled: spark_log.Log) -> None:
    """A stream that stands beyond the end would wait for what it never gets."""
    commit(filled, "a", 1)
    shutil.copytree(url, tmp_path / "copy")
    commit(filled, "a", 2)
    query = Query(url)
    query.plan()
    query.restart(path=tmp_path / "copy")
    with pytest.raises(DataLoss, match="beyond its end, .* this log is an older copy"):
        query.tasks()
    with pytest.raises(DataLoss, match="beyond its end, .* this log is an older copy"):
        query.plan()


def test_spark_4_0_does_not_say_where_a_query_stands(url: str, filled: spark_log.Log) -> None:
    """It is known by what was planned last."""
    commit(filled, "a", 1)
    query = Query(url, trigger="4.0")
    assert query.changed() == [("a", "t-0", 1)]
    commit(filled, "b", 1)
    assert query.restart("4.0").changed() == [("b", "t-0", 1)]


# -------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "streaming", "sentence"),
    [
        (
            {"subscribe": f"t,{TOPIC}"},
            False,
            "__consumer_offsets cannot be read with other topics: leave out t, and union the frames",
        ),
        ({"assign": f'{{"t":[0],"{TOPIC}":[0]}}'}, False, "__consumer_offsets cannot be read with other topics"),
        ({"group.id": "g"}, True, "option group.id has no meaning for __consumer_offsets"),
        ({"maxOffsetsPerTrigger": "5"}, True, "option maxOffsetsPerTrigger has no meaning for __consumer_offsets"),
        ({"minPartitions": "5"}, False, "option minPartitions has no meaning for __consumer_offsets"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, str], streaming: bool, sentence: str) -> None:
    """When it is loaded."""
    given = {name.lower(): text for name, text in options.items()}
    wanted = {} if "assign" in options else {"subscribe": TOPIC}
    with pytest.raises(InvalidRequest, match=sentence):
        read_options({"path": "/log", **wanted, **given}, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": "99"}, "startingOffsets: 99 is beyond the end of __consumer_offsets-0, 4"),
        (
            {"startingOffsets": "3", "endingOffsets": "2"},
            "every partition would start at 3, beyond its end by endingOffsets, 2",
        ),
        (
            {"startingOffsets": "3", "endingOffsets": "latest-2"},
            "option startingOffsets: the start of __consumer_offsets-0, 3, is beyond its end by endingOffsets, 0",
        ),
        ({"startingOffsets": "group:a"}, "group:a: no group has a position in __consumer_offsets"),
        (
            {"startingTimestamp": "4102444800000"},
            "option startingTimestamp: no record of __consumer_offsets is at or after 4102444800000",
        ),
    ],
)
def test_positions_that_are_not_there_are_refused(
    url: str, filled: spark_log.Log, options: dict[str, str], sentence: str
) -> None:
    """As those of other topics."""
    commit(filled, "a", 1)
    with pytest.raises(InvalidRequest, match=sentence):
        read(url, **options)


def test_it_is_only_read(filled: spark_log.Log) -> None:
    """Nobody writes, creates, changes or deletes it, and no consumer reads it; each time there is one sentence."""
    for do in (
        lambda: filled.append(TOPIC, [{"value": "x"}]),
        lambda: filled.admin.create_topics([NewTopic(TOPIC)]),
        lambda: filled.admin.delete_topics([TOPIC]),
        lambda: filled.admin.create_partitions({TOPIC: 60}),
        lambda: filled.admin.incremental_alter_configs({TOPIC: {"retention.ms": "1"}}),
        lambda: filled.admin.delete_records({TopicPartition(TOPIC, 0): 1}),
        lambda: filled.producer().send(TOPIC, b"x").result(10),
        lambda: filled.consumer(TOPIC),
        lambda: filled.plan(TOPIC),
    ):
        with pytest.raises(InvalidTopic, match="__consumer_offsets' has the positions of groups and is read-only"):
            do()


def test_no_pattern_matches_it(url: str, filled: spark_log.Log) -> None:
    """It is internal, as in Kafka, and in no list of topics."""
    options = read_options({"path": url, "subscribepattern": ".*"}, streaming=False)
    assert {tp.topic for tp in wanted_partitions(filled.journal.state, options)} == {"t"}
    assert filled.admin.list_topics() == ["t"]


# ----------------------------------------------------------------------------------------------------------- Spark itself


def test_spark_reads_progress_as_it_is_when_a_query_runs(spark: SparkSession, url: str, filled: spark_log.Log) -> None:
    """By SQL's own functions; a frame that is used again has what is new, and a self-join agrees with itself."""
    commit(filled, "a", 1, 2)
    frame = load(spark, url, TOPIC)
    key = F.from_json(F.col("key").cast("string"), "group string, topic string, partition int").alias("k")
    value = F.from_json(F.col("value").cast("string"), "offset bigint, committed bigint").alias("v")
    shown = frame.select(key, value, "offset").selectExpr("k.group", "k.partition", "v.offset", "offset as version")
    version = filled.journal.state.version
    assert sorted(map(tuple, shown.collect())) == [("a", 0, 1, version), ("a", 1, 2, version)]
    commit(filled, "b", 3)
    assert frame.alias("x").join(frame.alias("y"), F.col("x.key") == F.col("y.key")).count() == 3
    assert {row[0] for row in shown.select("group").collect()} == {"a", "b"}


def test_spark_reads_progress_where_it_may_write_nothing(spark: SparkSession, url: str, filled: spark_log.Log) -> None:
    """As it was at the load, then: there is nowhere to put down what all tasks of a query are to see."""
    commit(filled, "a", 1, 2)
    (Path(url) / "meta" / "pin").write_bytes(b"")  # no folder, so nothing can be in it
    frame = load(spark, url, TOPIC)
    assert frame.count() == 2
    commit(filled, "b", 3)
    assert frame.count() == 2
    assert load(spark, url, TOPIC).count() == 3


def test_spark_streams_progress(spark: SparkSession, url: str, filled: spark_log.Log, tmp_path: Path) -> None:
    """With a projection; the next run continues from the checkpoint."""
    seen = str(tmp_path / "seen")

    def run() -> list[bytes | None]:
        frame = load_stream(spark, url, TOPIC).select(F.get_json_object(F.col("value").cast("string"), "$.offset"))
        writer = frame.writeStream.format("text").option("path", seen).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)
        return sorted(row[0] for row in spark.read.text(seen).collect())

    commit(filled, "a", 1, 2)
    assert run() == ["1", "2"]
    commit(filled, "a", 4)
    assert run() == ["1", "2", "4"]
