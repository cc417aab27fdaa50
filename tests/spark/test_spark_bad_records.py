"""Rows that cannot be written: refused with a reason, or kept in a dead-letter topic by the same commit."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark_pylog.log.planned_log import PlannedLog, PlannedRoots
from pyspark_pylog.sink.bad_records import Topics, sift, with_headers
from pyspark_pylog.sink.write_columns import pieces, written_columns
from pyspark_pylog.sink.writer import LogStreamWriter

import spark_log
from spark_log import NewTopic
from spark_log.client.producer.topic_rules import TopicSpec
from spark_log.errors import InvalidRecord, InvalidRequest, MessageTooLarge, SparkLogError, UnknownTopicOrPartition
from spark_log.segment.compression import topic_compression
from spark_log.segment.schema import HEADERS
from tests.logged import logged
from tests.spark.builders import append, copy, last_commit, load, load_stream, texts, to_sink
from tests.spark.driver import Write

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc)
TYPES = {
    "key": pa.binary(),
    "value": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": HEADERS,
}


def job(url: str, rows: list[dict[str, Any]], **options: Any) -> Write:
    """Rows as dicts, into topic t; the columns are those that any of them has."""
    schema = pa.schema([(name, TYPES[name]) for name in TYPES if any(name in row for row in rows)])
    whole = [{name: row.get(name) for name in schema.names} for row in rows]
    given = {"topic": "t", "badRecords": "topic:dead", **options}
    return Write(url, pa.RecordBatch.from_pylist(whole, schema), **given)


def write(url: str, *rows: dict[str, Any], **options: Any) -> None:
    job(url, list(rows), **options).run()


def found(log: spark_log.Log, topic: str) -> list[dict[str, Any]]:
    return log.read(topic).to_pylist()


def said(letter: dict[str, Any]) -> dict[str, str]:
    """The headers that were added to a dead letter."""
    return {h["key"]: h["value"].decode() for h in letter["headers"] if h["key"].startswith("pylog.")}


def far_off(days: int) -> datetime:
    return datetime.now(timezone.utc) + timedelta(days=days)


REASONS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"value": "x" * 2000},
        "MessageTooLarge",
        "a record of 2016 bytes is larger than max.message.bytes=1000 of topic 't'",
    ),
    (
        {"value": "v", "partition": 3},
        "InvalidRecord",
        "a record names partition 3 of topic 't', which has 3 partitions",
    ),
    ({"value": "v", "partition": -1}, "InvalidRecord", "a record names partition -1 of topic 't'"),
    ({"value": "v", "headers": [("h", b"1"), (None, b"2")]}, "InvalidRecord", "'headers' has a header without a key"),
    ({"value": "v", "headers": [None]}, "InvalidRecord", "'headers' has a header without a key"),
    ({"value": "v", "timestamp": far_off(1)}, "InvalidTimestamp", "more than message.timestamp.after.max.ms=3600000"),
    (
        {"value": "v", "timestamp": far_off(-9)},
        "InvalidTimestamp",
        "more than message.timestamp.before.max.ms=86400000",
    ),
]
CONFIGS = {"max.message.bytes": "1000", "message.timestamp.before.max.ms": "86400000"}


# Promise: spark-write.md#bad-records
@pytest.mark.parametrize(("row", "kind", "reason"), REASONS, ids=[reason[2][:40] for reason in REASONS])
def test_a_bad_row_goes_to_the_dead_letter_topic_with_its_reason(
    url: str, log: spark_log.Log, row: dict[str, Any], kind: str, reason: str
) -> None:
    """Every rule of the topic that a row can break; good rows around it are written."""
    log.admin.create_topics([NewTopic("t", 3, CONFIGS)])
    write(url, {"value": "before", "partition": 1}, row, {"value": "after", "partition": 1})
    assert [record["value"] for record in found(log, "t")] == [b"before", b"after"]
    (letter,) = found(log, "dead")
    assert letter["value"] == row["value"].encode()
    assert reason in said(letter)["pylog.error"]
    assert said(letter)["pylog.error.class"] == kind


TOPICS = [
    (None, "InvalidRecord", "a row has a null topic"),
    ("../etc", "InvalidTopic", "topic name '../etc' has '/'"),
    ("", "InvalidTopic", "topic name is empty"),
    ("a_b", "InvalidTopic", "topic 'a_b' collides with 'a.b'"),
]


@pytest.mark.parametrize(("topic", "kind", "reason"), TOPICS)
def test_a_topic_that_cannot_be_makes_its_row_bad(
    url: str, log: spark_log.Log, topic: str | None, kind: str, reason: str
) -> None:
    """In the topic column; what it named is kept in a header, unless it was null."""
    log.admin.create_topics([NewTopic("a.b", 1)])
    write(url, {"value": "1", "topic": topic}, {"value": "2", "topic": "t"}, topic=None)
    assert [record["value"] for record in found(log, "t")] == [b"2"]
    (letter,) = found(log, "dead")
    assert reason in said(letter)["pylog.error"] and said(letter)["pylog.error.class"] == kind
    assert said(letter).get("pylog.topic") == topic


NO_TEXT = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a\xff", b"t"]).buffers())
"""Of two rows: the first is not UTF-8, as Spark's `cast(X'61FF' as string)` is not."""


def test_a_header_key_that_is_no_text_makes_its_row_bad(url: str, log: spark_log.Log) -> None:
    """Spark lets it through, and no Python client could read it; the dead letter has U+FFFD in its place."""
    pairs = pa.StructArray.from_arrays([NO_TEXT, pa.array([b"1", b"2"])], fields=list(HEADERS.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs)
    batch = pa.record_batch({"value": ["1", "2"], "headers": headers})
    Write(url, batch, topic="t", badRecords="topic:dead").run()
    assert [record["headers"] for record in found(log, "t")] == [[{"key": "t", "value": b"2"}]]
    (letter,) = found(log, "dead")
    assert letter["headers"][0] == {"key": "a\ufffd", "value": b"1"}
    assert said(letter)["pylog.error"] == "column 'headers' has a header with a key that is not UTF-8"


def test_a_topic_that_is_no_text_makes_its_row_bad(url: str, log: spark_log.Log) -> None:
    """Its bytes are kept in the header."""
    Write(url, pa.record_batch({"value": ["1", "2"], "topic": NO_TEXT}), badRecords="topic:dead").run()
    assert [record["value"] for record in found(log, "t")] == [b"2"]
    (letter,) = found(log, "dead")
    kept = {header["key"]: header["value"] for header in letter["headers"]}
    assert (kept["pylog.topic"], kept["pylog.error.class"]) == (b"a\xff", b"InvalidTopic")


# Promise: spark-write.md#bad-records
def test_an_unknown_topic_makes_its_rows_bad_where_topics_are_not_created(url: str, log: spark_log.Log) -> None:
    """auto.create.topics.enable=false; topics that were created after the driver looked are found."""
    log.admin.create_topics([NewTopic("t", 1), NewTopic("dead", 1)])
    log.admin.incremental_alter_configs({None: {"auto.create.topics.enable": "false"}})
    waiting = job(url, [{"value": str(n), "topic": name} for n, name in enumerate(("new", "none", "t"))], topic=None)
    log.admin.create_topics([NewTopic("new", 1)])
    waiting.run()
    assert [record["value"] for topic in ("t", "new") for record in found(log, topic)] == [b"2", b"0"]
    (letter,) = found(log, "dead")
    assert "topic 'none' does not exist" in said(letter)["pylog.error"]
    assert said(letter)["pylog.error.class"] == "UnknownTopicOrPartition"


# Promise: spark-write.md#bad-records
def test_a_dead_letter_is_the_row_as_it_was(url: str, log: spark_log.Log) -> None:
    """Key, value, headers and timestamp; then what it was meant for, and why it is here."""
    headers = [("h", b"1"), ("h", None), (None, b"2")]
    row = {"key": b"k", "value": None, "partition": 7, "timestamp": NOON, "headers": headers}
    write(url, row, {"key": b"k", "value": "v"})
    (letter,) = found(log, "dead")
    assert (letter["key"], letter["value"], letter["timestamp"]) == (b"k", None, NOON)
    pairs = [(header["key"], header["value"]) for header in letter["headers"]]
    assert pairs[:3] == [("h", b"1"), ("h", None), ("", b"2")]
    assert said(letter) == {
        "pylog.error": "column 'headers' has a header without a key",
        "pylog.error.class": "InvalidRecord",
        "pylog.topic": "t",
        "pylog.partition": "7",
        "pylog.timestamp": str(int(NOON.timestamp()) * 1000 + 123),
    }


def test_what_a_row_does_not_name_has_no_header(url: str, log: spark_log.Log) -> None:
    """No partition, no topic: no pylog.partition, no pylog.topic."""
    write(url, {"value": "v", "topic": None}, topic=None)
    (letter,) = found(log, "dead")
    assert sorted(said(letter)) == ["pylog.error", "pylog.error.class", "pylog.timestamp"]


# Promise: spark-write.md#bad-records
def test_bad_rows_fail_the_write_by_default(url: str, log: spark_log.Log) -> None:
    """The first one's reason and topic, how many there are, and the way round; nothing is written."""
    log.append("t", texts(1))
    rows = [{"value": "ok"}, {"value": "bad", "partition": 9}, {"value": "x" * 2_000_000}]
    with pytest.raises(SparkLogError) as error:
        write(url, *rows, badRecords=" Fail ")
    assert str(error.value) == (
        "a record names partition 9 of topic 't', which has 1 partition (0 to 0); leave its partition out, or give the "
        "topic more with `pylog topic alter t --partitions 10` (2 of 3 rows read so far by this task cannot be written; badRecords=topic:NAME sends such rows to a separate topic)"
    )
    assert log.read("t").num_rows == 1 and log.admin.list_topics() == ["t"]


# Promise: spark-write.md#bad-records, tasks/dead-letters.md#keep-bad-records-dead-letters
def test_good_and_bad_rows_are_in_one_commit(url: str, log: spark_log.Log) -> None:
    """Neither is there before it, both are after it, in one version of the log."""
    pending = job(url, [{"value": "1"}, {"value": "2", "partition": 5}])
    message = pending.task()
    before = log.journal.refresh().version
    assert log.read("t").num_rows == log.read("dead").num_rows == 0
    pending.commit([message])
    assert log.journal.refresh().version == before + 1
    assert log.read("t").num_rows == log.read("dead").num_rows == 1


def test_rows_may_all_be_bad(url: str, log: spark_log.Log) -> None:
    """Then the commit has dead letters alone."""
    write(url, *({"value": str(n), "partition": 5} for n in range(3)))
    assert log.read("t").num_rows == 0
    assert [letter["value"] for letter in found(log, "dead")] == [b"0", b"1", b"2"]


def test_a_dead_letter_topic_that_is_created_takes_any_size_and_time(url: str, log: spark_log.Log) -> None:
    """Under the defaults it would refuse just what other topics refuse, and stop the job that it is there to keep
    going.
    """
    late = far_off(1000)
    write(url, {"value": "x" * 2_000_000, "timestamp": late}, {"value": "v", "timestamp": late})
    letters = found(log, "dead")
    assert [len(letter["value"]) for letter in letters] == [2_000_000, 1]
    assert [letter["timestamp"] for letter in letters] == [late, late]


# Promise: spark-write.md#bad-records
def test_a_row_too_large_for_the_dead_letter_topic_fails_the_write(url: str, log: spark_log.Log) -> None:
    """A value is never cut: the message names the topic to alter, and nothing is written."""
    log.admin.create_topics([NewTopic("t", 1, {"max.message.bytes": "100"}), NewTopic("dead", 1, CONFIGS)])
    with pytest.raises(
        MessageTooLarge, match=r"cannot be kept either: .*max.message.bytes=1000 of topic 'dead'.*alter dead"
    ):
        write(url, {"value": "ok"}, {"value": "x" * 1000})
    assert log.read("t").num_rows == log.read("dead").num_rows == 0


def test_a_time_that_the_dead_letter_topic_refuses_is_kept_in_a_header(url: str, log: spark_log.Log) -> None:
    """The letter has the time of its writing; `pylog.timestamp` has the row's, in milliseconds."""
    log.admin.create_topics([NewTopic("dead", 1)])
    late = far_off(1)
    write(url, {"value": "v", "timestamp": late}, {"value": "w", "timestamp": NOON, "partition": 3})
    changed, kept = found(log, "dead")
    assert abs(changed["timestamp"].timestamp() - time.time()) < 60
    assert said(changed)["pylog.timestamp"] == str(int(late.timestamp() * 1000))
    assert kept["timestamp"] == NOON


def test_a_dead_letter_topic_is_not_created_where_that_is_switched_off(url: str, log: spark_log.Log) -> None:
    """It is said before any row is read, not when the first bad one comes."""
    log.admin.create_topics([NewTopic("t", 1)])
    log.admin.incremental_alter_configs({None: {"auto.create.topics.enable": "false"}})
    with pytest.raises(UnknownTopicOrPartition, match="topic 'dead' does not exist"):
        write(url, {"value": "v"})


OPTIONS = [
    ("topic:t", "option badRecords: 't' is the topic that is written; give bad records another one"),
    ("topic: t ", "option badRecords: 't' is the topic that is written"),
    ("dead", "option badRecords: 'dead' is not 'fail' or 'topic:NAME'"),
    ("drop", "option badRecords: 'drop' is not 'fail' or 'topic:NAME'"),
    ("topic:", "topic name is empty"),
    ("topic:../out", "'../out'"),
]


@pytest.mark.parametrize(("option", "expected"), OPTIONS)
def test_a_wrong_place_for_bad_records_is_refused(url: str, option: str, expected: str) -> None:
    """Before anything is created."""
    with pytest.raises(InvalidRequest, match=re.escape(expected)):
        write(url, {"value": "v"}, badRecords=option)
    assert not Path(url).exists()


# Promise: spark-write.md#bad-records
def test_a_rerun_adds_no_dead_letter_either(url: str, log: spark_log.Log) -> None:
    """txnAppId and txnVersion cover good and bad rows."""
    rows = [{"value": "1"}, {"value": "2", "partition": 5}]
    for version, expected in ((1, 1), (1, 1), (2, 2)):
        write(url, *rows, txnAppId="nightly", txnVersion=version)
        assert log.read("t").num_rows == log.read("dead").num_rows == expected


def test_a_rerun_is_known_though_other_rows_are_bad_now(url: str, log: spark_log.Log) -> None:
    """The identity of a write follows from its rows, not from which of them were bad: a topic may have been created
    since.
    """
    log.admin.create_topics([NewTopic("a", 1), NewTopic("dead", 1)])
    log.admin.incremental_alter_configs({None: {"auto.create.topics.enable": "false"}})
    rows = [{"value": "1", "topic": "a"}, {"value": "2", "topic": "b"}, {"value": "3", "topic": "no topic"}]
    write(url, *rows, topic=None, txnAppId="nightly", txnVersion=1)
    log.admin.create_topics([NewTopic("b", 1)])
    write(url, *rows, topic=None, txnAppId="nightly", txnVersion=1)
    assert [log.read(topic).num_rows for topic in ("a", "b", "dead")] == [1, 0, 2]


# Promise: spark-write.md#bad-records
def test_the_driver_warns_of_bad_rows(url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture) -> None:
    """Once a commit: how many, where they are, and why one of them."""
    with caplog.at_level(logging.WARNING, "spark_log"):
        write(url, {"value": "1"}, {"value": "2", "partition": 5}, {"value": "3", "partition": 6})
        write(url, {"value": "1"})
        write(url, {"value": "4", "partition": 7})
    why = (
        "a record names partition {} of topic 't', which has 1 partition (0 to 0); leave its partition out, or give "
        "the topic more with `pylog topic alter t --partitions {}`"
    )
    assert logged(caplog, "could not be written") == [
        f"2 rows could not be written and went to topic 'dead'; the first: {why.format(5, 6)}",
        f"1 row could not be written and went to topic 'dead'; the first: {why.format(7, 8)}",
    ]


def test_a_commit_that_is_made_again_is_not_warned_of_again(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark runs the last batch of a stream again after a crash, and a rerun of a batch job is known as well."""
    rows = [{"value": "1"}, {"value": "2", "partition": 5}]
    batch = job(url, rows, txnAppId="nightly", txnVersion=1)
    query = LogStreamWriter(job(url, rows).writer.begun)
    message = replace(query.write(iter([batch.batch])), query_id="query", batch_id=3)
    with caplog.at_level(logging.WARNING, "spark_log"):
        for _ in range(2):
            batch.run()
            query.commit([message], 3)
    assert len(logged(caplog, "1 row could not be written")) == 2
    assert log.read("t").num_rows == log.read("dead").num_rows == 2


ROWS = st.fixed_dictionaries(
    {
        "value": st.text("ab", max_size=12),
        "topic": st.sampled_from(["t", "u", None, "no topic"]),
        "partition": st.sampled_from([None, 0, 1, 2, -1]),
        "headers": st.sampled_from([None, [], [("h", b"1")], [(None, b"1"), ("h", None)]]),
    }
)
ROW = 16
"""The memory of a row besides its bytes, and of a header."""


def is_good(row: dict[str, Any]) -> bool:
    """The rules, one row at a time: topic t has two partitions and takes 8 bytes, topic u has three and takes 100."""
    if row["topic"] not in ("t", "u") or any(key is None for key, _ in row["headers"] or []):
        return False
    partitions, limit = {"t": (2, 8 + ROW), "u": (3, 100 + ROW)}[row["topic"]]
    headers = sum(ROW + len(key) + len(value or b"") for key, value in row["headers"] or [])
    fits = ROW + len(row["key"]) + len(row["value"]) + headers <= limit
    return fits and (row["partition"] is None or 0 <= row["partition"] < partitions)


NOWHERE = PlannedLog("/nowhere", None, PlannedRoots(((0, "/nowhere"),)), "none", 0)
SPECS = {
    "t": TopicSpec("1", "t", 2, 8 + ROW, topic_compression({}), True, 0, 0, False),
    "u": TopicSpec("2", "u", 3, 100 + ROW, topic_compression({}), True, 0, 0, False),
}


@given(rows=st.lists(ROWS, min_size=1, max_size=12))
def test_rows_are_told_apart_as_one_by_one(rows: list[dict[str, Any]]) -> None:
    """Masks over whole batches find the rows that a loop finds, and each topic's rows keep their order."""
    rows = [{**row, "key": str(number).encode()} for number, row in enumerate(rows)]
    names = ("key", *rows[0])
    schema = pa.schema([(name, TYPES[name]) for name in dict.fromkeys(names)])
    columns = written_columns(from_arrow_schema(schema), None)
    (piece,) = pieces(columns, pa.RecordBatch.from_pylist(rows, schema), 0)
    sifted = sift(piece, None, Topics(NOWHERE, SPECS), 0)
    keys = sifted.good.rows.records.column("key").to_pylist()
    good = [(sifted.good.spec(row).name, int(key)) for row, key in enumerate(keys)]
    assert good == [(row["topic"], number) for number, row in enumerate(rows) if is_good(row)]
    bad = [number for number, row in enumerate(rows) if not is_good(row)]
    assert (sifted.bad.rows.tolist() if sifted.bad else []) == bad


PAIRS = st.lists(st.tuples(st.text("abc", max_size=2), st.none() | st.binary(max_size=3)), max_size=3)


@given(rows=st.lists(st.tuples(st.none() | PAIRS, st.none() | st.text("xy", max_size=2), st.text(max_size=2))))
def test_headers_are_added_after_those_that_are_there(rows: list[tuple[Any, str | None, str]]) -> None:
    """As a loop would do it; one that is null for a row is left out."""
    old = pa.array([row[0] for row in rows], HEADERS)
    added = {
        "one": pa.array([row[1] for row in rows], pa.string()),
        "two": pa.array([row[2] for row in rows], pa.string()),
    }
    expected = [
        [
            *(row[0] or []),
            *((name, text.encode()) for name, text in (("one", row[1]), ("two", row[2])) if text is not None),
        ]
        for row in rows
    ]
    result = with_headers(old, added)
    assert result.type == HEADERS
    assert [[(h["key"], h["value"]) for h in row] for row in result.to_pylist()] == expected


# ----------------------------------------------------------------------------------------------------------- with Spark

BAD = ("string(id) as key", "if(id % 10 = 3, repeat('x', 2000), string(id)) as value")


def test_a_batch_of_many_tasks_keeps_its_bad_rows(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Good rows in the topic, bad ones in the other, none lost."""
    log.admin.create_topics([NewTopic("t", 3, {"max.message.bytes": "1000"})])
    frame = spark.range(0, 100, 1, 3).selectExpr(*BAD)
    append(frame, url, badRecords="topic:dead")
    assert load(spark, url).count() == 90
    letters = load(spark, url, "dead", includeHeaders=True).selectExpr("string(key) as key", "headers").collect()
    assert sorted(int(row.key) for row in letters) == list(range(3, 100, 10))
    assert all({header.key for header in row.headers} >= {"pylog.error", "pylog.topic"} for row in letters)


def test_a_stream_keeps_its_bad_rows_once(spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """A batch that runs again adds neither good nor bad rows: through the sink, and through foreachBatch."""
    log.admin.create_topics([NewTopic(name, 1, {"max.message.bytes": "1000"}) for name in ("copy", "each")])
    log.append("t", [*texts(5), {"value": "x" * 2000}])
    each = spark_log.sink(url, topic="each", badRecords="topic:dead-each", checkpoint=str(tmp_path / "each"))
    for _ in range(2):
        copy(load_stream(spark, url), url, "copy", tmp_path / "copy", badRecords="topic:dead")
        to_sink(load_stream(spark, url), each, tmp_path / "each")
        assert [log.read(name).num_rows for name in ("copy", "dead", "each", "dead-each")] == [5, 1, 5, 1]
        for name in ("copy", "each"):
            last_commit(tmp_path / name).unlink()


COMPACT = {"cleanup.policy": "compact"}


# Promise: tasks/keep-the-latest.md#every-record-has-a-key
def test_a_row_without_a_key_is_bad_in_a_compacted_topic(url: str, log: spark_log.Log) -> None:
    """Of one topic, or of the topics that rows name; without a dead-letter topic nothing is written."""
    log.admin.create_topics([NewTopic("t", 3, COMPACT), NewTopic("u", 1)])
    rows = [{"key": b"k", "value": "1"}, {"value": "2"}]
    with pytest.raises(InvalidRecord, match=r"'t' has no key.*give every record a key.*1 of 2 rows"):
        job(url, rows, badRecords=None).run()
    assert log.read("t").num_rows == 0
    write(url, *rows)
    write(url, *({**row, "topic": topic} for row in rows for topic in ("t", "u")), topic=None)
    assert [record["value"] for record in found(log, "t")] == [b"1", b"1"]
    assert [record["value"] for record in found(log, "u")] == [b"1", b"2"]
    letters = found(log, "dead")
    assert [letter["value"] for letter in letters] == [b"2", b"2"]
    assert {said(letter)["pylog.error.class"] for letter in letters} == {"InvalidRecord"}


def test_a_policy_that_changes_during_a_write_is_noticed(url: str, log: spark_log.Log) -> None:
    """The tasks knew the old configs, and the commit is refused."""
    log.admin.create_topics([NewTopic("t", 1)])
    under_way = job(url, [{"value": "1"}], badRecords=None)
    messages = [under_way.task()]
    log.admin.incremental_alter_configs({"t": COMPACT})
    with pytest.raises(InvalidRecord, match="'t' was changed to cleanup.policy=compact"):
        under_way.commit(messages)
    assert log.read("t").num_rows == 0


# Promise: tasks/keep-the-latest.md#every-record-has-a-key
def test_a_compacted_dead_letter_topic_is_warned_of(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Bad rows of one key would remove each other; one without a key cannot be kept at all."""
    log.admin.create_topics([NewTopic("t", 1, {"max.message.bytes": "100"}), NewTopic("dead", 1, COMPACT)])
    write(url, {"key": b"k", "value": "x" * 1000})
    assert "topic 'dead' is compacted: only the last" in caplog.text
    with pytest.raises(InvalidRecord, match="cannot be kept either: a record of topic 'dead' has no key"):
        write(url, {"value": "x" * 1000})
