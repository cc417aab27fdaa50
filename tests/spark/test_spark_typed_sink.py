"""Writes of frames with data columns, without Spark: the checks before a task runs, and those of rows in tasks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DayTimeIntervalType, LongType, StructType
from pyspark_pylog import DefaultSource
from pyspark_pylog.options.parse import write_options
from pyspark_pylog.sink.writer import stream_writer

import spark_log
from spark_log import NewTopic
from spark_log.errors import InvalidConfig, InvalidRecord, InvalidRequest, InvalidTimestamp, SparkLogError
from tests.spark.builders import asked
from tests.spark.driver import Write

SCHEMA = "id BIGINT NOT NULL, amount INT, country STRING, timestamp TIMESTAMP_NTZ, place STRUCT<lat: DOUBLE>"
ID = pa.array([1, 2, 3])


@pytest.fixture
def log(url: str) -> spark_log.Log:
    """With a topic that has a schema, and one that has none."""
    log = spark_log.connect(url, durability="os")
    log.create_topic(NewTopic("t", 1, schema=SCHEMA))
    log.create_topic(NewTopic("bytes", 1))
    return log


def write(url: str, columns: dict[str, Any], **options: Any) -> None:
    given = {name: value if isinstance(value, pa.Array) else pa.array(value) for name, value in columns.items()}
    Write(
        url, pa.record_batch(given), **{"topic": "t", **{name.replace("_", "."): v for name, v in options.items()}}
    ).run()


def written(log: spark_log.Log, topic: str = "t") -> list[dict[str, Any]]:
    return log.read(topic).to_pylist()


# ---------------------------------------------------------------------------------------------------------- what is data


# Promise: spark-typed.md#write-data-columns
def test_the_columns_of_a_frame_are_the_data(url: str, log: spark_log.Log) -> None:
    """Names match in any case, missing columns are null, and those of a record keep their meaning."""
    headers = pa.array([[("h", b"1")], None, None], pa.map_(pa.string(), pa.binary())).cast(
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    write(
        url,
        {
            "ID": ID,
            "amount": [7, None, 9],
            "key": ["a", None, "c"],
            "headers": headers,
            "offset": ID,
            "topic": ["x"] * 3,
        },
    )
    found = written(log)
    assert [(row["key"], row["id"], row["amount"], row["country"]) for row in found] == [
        (b"a", 1, 7, None),
        (None, 2, None, None),
        (b"c", 3, 9, None),
    ]
    assert found[0]["headers"] == [{"key": "h", "value": b"1"}]


# Promise: spark-typed.md#write-data-columns
def test_a_struct_is_the_whole_value(url: str, log: spark_log.Log) -> None:
    """As `from_json` gives it; a null is a record without a value."""
    write(url, {"key": ["a", "b"], "value": pa.array([{"id": 1, "amount": 5}, None])})
    assert [(row["key"], row["id"], row["amount"]) for row in written(log)] == [(b"a", 1, 5), (b"b", None, None)]


# Promise: spark-typed.md#write-data-columns
def test_options_say_which_columns_are_what(url: str, log: spark_log.Log) -> None:
    """The key may be data, too; and a column that has the name of a record's column may be data alone."""
    times = pa.array([1_000_000, 2_000_000], pa.timestamp("us"))
    columns = {"id": ID.slice(0, 2), "country": ["DE", "FR"], "timestamp": times, "note": ["x", "y"]}
    write(url, columns, value_columns="id, country, timestamp", key_column="country")
    write(url, {"id": ID.slice(2), "value.timestamp": times.slice(1)})
    found = written(log)
    assert [row["key"] for row in found] == [b"DE", b"FR", None]
    assert [row["country"] for row in found] == ["DE", "FR", None]
    assert [row["value.timestamp"].second for row in found] == [1, 2, 2]


# Promise: spark-typed.md#write-data-columns
def test_the_first_write_sets_the_schema_if_the_topic_says_so(url: str, log: spark_log.Log) -> None:
    """All columns are nullable then."""
    log.create_topic(NewTopic("auto", 1, configs={"schema.auto": "true"}))
    write(url, {"key": ["a"], "x": [1.5], "value.offset": [7]}, topic="auto")
    write(url, {"x": [None, 2.5]}, topic="auto")
    assert [(row["x"], row["value.offset"]) for row in written(log, "auto")] == [(1.5, 7), (None, None), (2.5, None)]


def auto(log: spark_log.Log, name: str = "auto", **configs: str) -> str:
    log.create_topic(NewTopic(name, 1, configs={"schema.auto": "true", **configs}))
    return name


ONE = pa.record_batch({"x": [1.5]})
OTHER = pa.record_batch({"x": ["a text"]})
FUTURE = pa.record_batch({"x": [1.5], "timestamp": pa.array([2**60], pa.timestamp("us", "UTC"))})


# Promise: spark-typed.md#write-data-columns
def test_a_write_that_fails_leaves_no_schema(url: str, log: spark_log.Log) -> None:
    """Neither a task that is refused, nor a job that ends before its commit: another frame can set another schema."""
    auto(log)
    with pytest.raises(InvalidTimestamp):
        Write(url, FUTURE, topic="auto").task()
    job = Write(url, ONE, topic="auto")
    job.writer.abort([job.task()])
    stream = stream_writer({"path": url, "topic": "auto"}, from_arrow_schema(ONE.schema), overwrite=False)
    stream.abort([stream.write(iter([ONE]))], 0)
    assert not log.admin.describe_schema("auto")
    Write(url, OTHER, topic="auto").run()
    assert log.read("auto").column("x").to_pylist() == ["a text"]


def test_a_commit_that_is_refused_leaves_no_schema(url: str, log: spark_log.Log) -> None:
    """Both are one change of the log."""
    auto(log)
    job = Write(url, ONE, topic="auto")
    message = job.task()
    log.admin.create_partitions({"auto": 2})
    log.admin.delete_topics(["auto"])
    auto(log)
    with pytest.raises(SparkLogError):
        job.commit([message])
    assert not log.admin.describe_schema("auto")


def test_a_batch_of_a_stream_sets_the_schema_once(url: str, log: spark_log.Log) -> None:
    """A replay of it adds nothing."""
    auto(log, **{"sort.columns": "x"})
    writer = stream_writer({"path": url, "topic": "auto"}, from_arrow_schema(ONE.schema), overwrite=False)
    messages = [replace(writer.write(iter([ONE])), query_id="q", batch_id=0)]
    for _ in range(2):
        again = stream_writer({"path": url, "topic": "auto"}, from_arrow_schema(ONE.schema), overwrite=False)
        again.commit(messages, 0)
    assert log.read("auto").column("x").to_pylist() == [1.5]
    assert [schema.version for schema in log.admin.describe_schema("auto")] == [1]


# Promise: spark-typed.md#write-data-columns
def test_of_two_first_writes_the_later_one_fits_or_is_refused(url: str, log: spark_log.Log) -> None:
    """Its rows were converted by a schema that the topic has not got."""
    auto(log)
    first, same, other = (Write(url, batch, topic="auto") for batch in (ONE, ONE, OTHER))
    messages = [first.task(), same.task(), other.task()]
    first.commit(messages[:1])
    same.commit(messages[1:2])
    with pytest.raises(InvalidRecord, match="topic 'auto' got another schema while rows for it were uploaded"):
        other.commit(messages[2:])
    assert log.read("auto").column("x").to_pylist() == [1.5, 1.5]


def test_a_first_frame_without_rows_sets_the_schema(url: str, log: spark_log.Log) -> None:
    """And one that does not have the topic's sort columns is refused before any task."""
    auto(log)
    Write(url, ONE.slice(0, 0), topic="auto").run()
    assert [schema.columns.names for schema in log.admin.describe_schema("auto")] == [["x"]]
    auto(log, "sorted", **{"sort.columns": "y"})
    with pytest.raises(InvalidConfig, match="sort.columns names 'y'; its columns are x"):
        Write(url, ONE, topic="sorted")


# --------------------------------------------------------------------------------------------------- before any task runs

TEXTS = pa.array(["1", "2", "3"])
PLANNED = [
    ({"amount": ID}, {}, "the required column 'id' (BIGINT NOT NULL) is missing; the frame has amount"),
    ({"id": ID, "price": ID}, {}, "column 'price' is not in the schema of topic 't' (version 1: id, amount, country"),
    ({"id": TEXTS}, {}, "column 'id' has type string, and in version 1 of the schema of topic 't' it is BIGINT"),
    ({"id": ID, "place": TEXTS}, {}, "column 'place' has type string, and in version 1"),
    ({"id": ID, "ID": ID}, {}, "the columns 'id' and 'ID' have the same name"),
    ({"id": ID, "key": ID}, {}, "column 'key' is bigint, expected string or binary: cast it"),
    ({"id": ID, "amount": ID}, {"key_column": "amount"}, "column 'amount' is bigint, expected string or binary"),
    ({"id": ID}, {"value_columns": "id,price"}, "value.columns has 'price', but the frame has id"),
    ({"id": ID}, {"timestamp_column": "at"}, "timestamp.column has 'at', but the frame has id"),
    (
        {"key": TEXTS, "value": TEXTS},
        {},
        "topic 't' has a schema, and the frame's column 'value' is not parsed: write frame.withColumn('value', "
        "from_json(col('value').cast('string'), 'id BIGINT NOT NULL, amount INT",
    ),
    ({"id": ID}, {"topic": "bytes"}, "give topic 'bytes' a schema: pylog topic alter bytes --schema 'id BIGINT'"),
    ({"id": ID}, {"topic": "new"}, "give topic 'new' a schema: pylog topic create new --schema 'id BIGINT'"),
    ({"value": ID}, {"topic": "bytes"}, "column 'value' is bigint, expected string or binary"),
    ({"val": TEXTS}, {"topic": "bytes"}, "column 'val' would be ignored: did you mean 'value'?"),
    ({"value": TEXTS}, {"topic": "bytes", "key_column": "value"}, "option key.column is for topics with a schema"),
    (
        {"value": TEXTS},
        {"topic": "bytes", "value_columns": "value"},
        "option value.columns: topic 'bytes' has no schema",
    ),
    ({"id": ID}, {"badRecords": "topic:t2"}, "badRecords: topic 't2' has a schema, and bad records are bytes"),
]


# Promise: spark-typed.md#write-data-columns
@pytest.mark.parametrize(("columns", "options", "expected"), PLANNED, ids=[one[2][:50] for one in PLANNED])
def test_a_frame_that_does_not_fit_is_refused(
    url: str, log: spark_log.Log, columns: dict[str, Any], options: dict[str, Any], expected: str
) -> None:
    """With the column, both types, and what to do; nothing is created."""
    log.create_topic(NewTopic("t2", 1, schema="id BIGINT"))
    with pytest.raises(SparkLogError, match=re.escape(expected)):
        write(url, columns, **options)
    assert "new" not in log.journal.refresh().names


# Promise: spark-typed.md#write-data-columns
def test_a_type_that_no_topic_has_is_named(url: str, log: spark_log.Log) -> None:
    """With the type to use instead."""
    frame = StructType().add("id", LongType()).add("wait", DayTimeIntervalType(0, 3))
    with pytest.raises(
        InvalidRequest, match="column 'wait' has type interval day to second, which a topic cannot have"
    ):
        DefaultSource(asked(url, None, topic="t")).writer(frame, overwrite=False)


@pytest.mark.parametrize("option", ["value.columns", "key.column", "timestamp.column"])
def test_an_option_without_a_name_is_refused(option: str) -> None:
    """It would name no column."""
    with pytest.raises(InvalidRequest, match=f"option {option}: "):
        write_options(asked("/log", None, topic="t", **{option: " "}), streaming=False)


# ----------------------------------------------------------------------------------------------------------- row by row


# Promise: spark-typed.md#write-data-columns
def test_a_row_that_does_not_fit_fails_the_write(url: str, log: spark_log.Log) -> None:
    """Its number, its key and its column are named, and nothing is written."""
    with pytest.raises(InvalidRecord, match=r"^row 2 of this task \(key 'b'\): .*'id'.*1 of 3 rows read so far"):
        write(url, {"key": ["a", "b", "c"], "id": pa.array([1, None, 3])})
    with pytest.raises(InvalidRecord, match=r"^row 3 of this task: .*'amount'"):
        write(url, {"id": ID, "amount": pa.array([1, 2, 2**31])})
    assert written(log) == []


# Promise: spark-typed.md#write-data-columns
def test_rows_that_do_not_fit_go_to_the_dead_letters_in_the_same_commit(url: str, log: spark_log.Log) -> None:
    """As the JSON of the row as it was given, with the reason."""
    before = log.journal.refresh().version
    columns = {"key": ["a", "b", "c"], "id": pa.array([1, None, 3]), "amount": pa.array([2**31, 5, 6])}
    write(url, columns, badRecords="topic:bad")
    assert [row["id"] for row in written(log)] == [3]
    letters = written(log, "bad")
    assert [(row["key"], json.loads(row["value"])) for row in letters] == [
        (b"a", {"id": 1, "amount": 2**31}),
        (b"b", {"amount": 5}),
    ]
    reasons = [{h["key"]: h["value"].decode() for h in row["headers"]} for row in letters]
    assert "'amount'" in reasons[0]["pylog.error"] and "'id'" in reasons[1]["pylog.error"]
    assert reasons[0]["pylog.topic"] == "t"
    assert log.journal.refresh().version == before + 2  # the topic of dead letters, and the rows


def test_structs_that_do_not_fit_are_dead_letters_too(url: str, log: spark_log.Log) -> None:
    """With the value as it was."""
    write(url, {"value": pa.array([{"id": None, "amount": 1}, {"id": 4, "amount": 1}])}, badRecords="topic:bad")
    assert [json.loads(row["value"]) for row in written(log, "bad")] == [{"amount": 1}]


# Promise: spark-typed.md#write-data-columns
def test_rows_that_name_a_topic_with_a_schema_are_bad(url: str, log: spark_log.Log) -> None:
    """They have bytes."""
    columns = {"topic": ["t", "bytes"], "value": ["1", "2"]}
    with pytest.raises(InvalidRecord, match="topic 't' has a schema, and rows that name their topic have bytes"):
        write(url, columns, topic=None)
    write(url, columns, topic=None, badRecords="topic:bad")
    assert [len(written(log, topic)) for topic in ("t", "bytes", "bad")] == [0, 1, 1]
