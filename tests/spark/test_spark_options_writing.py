"""Options and columns of a write, and headers on both sides: without Spark, as it drives a writer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark_pylog import DefaultSource
from pyspark_pylog.options.parse import read_options, write_options
from pyspark_pylog.source.batch import LogReader

import spark_log
from spark_log import NewTopic
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.segment.schema import HEADERS
from tests.spark.builders import asked
from tests.spark.driver import Write, read_task

WRITES: list[tuple[dict[str, str], str]] = [
    ({"topic": "../etc"}, "'../etc'"),
    ({"topic": "a b"}, "'a b'"),
    ({"topic": "x" * 250}, "249"),
    ({"compression": "brotli"}, "option compression: 'brotli' is not one of zstd, lz4, none"),
    ({"acks": "2"}, "option acks: '2' is not one of all, -1, 0, 1"),
    ({"partitioner": "hash"}, "option partitioner: there is no partitioner 'hash'"),
    ({"durability": "some"}, "option durability: 'some' is not one of disk, os"),
    ({"txnAppId": "a"}, "txnAppId and txnVersion go together"),
    ({"txnVersion": "1"}, "txnAppId and txnVersion go together"),
    ({"txnAppId": "a", "txnVersion": "one"}, "option txnVersion: 'one' is not a whole number"),
    ({"txnAppId": " ", "txnVersion": "1"}, "option txnAppId: is empty"),
    ({"producerId": "p"}, "option producerId is for streams"),
    ({"onOlderBatch": "skip"}, "option onOlderBatch is for streams and spark_log.sink"),
    ({"subscribe": "t"}, "option subscribe is for reads: to write to a topic, use the option topic"),
    (
        {"asyncProgressTrackingEnabled": "true"},
        "option asyncprogresstrackingenabled is refused: with it, Spark may repeat",
    ),
    ({"partitoner": "sticky"}, "option partitoner is not known; did you mean partitioner?"),
]


@pytest.mark.parametrize(("options", "expected"), WRITES, ids=[str(case[0])[:60] for case in WRITES])
def test_a_wrong_write_option_is_named(url: str, options: dict[str, str], expected: str) -> None:
    """Before any task runs: no topic is created."""
    given = asked(url, None, **{"topic": "t", **options})
    with pytest.raises(SparkLogError) as error:
        DefaultSource(given).writer(StructType().add("value", "string"), overwrite=False)
    assert expected in str(error.value)
    assert not Path(url).exists()


def test_a_stream_without_a_name_is_none_of_the_same_name(url: str) -> None:
    """An empty producerId would fence every other query that has one."""
    given = asked(url, None, topic="t", producerId="")
    with pytest.raises(InvalidRequest, match="option producerId: is empty; give a name, or leave it out"):
        DefaultSource(given).streamWriter(StructType().add("value", "string"), overwrite=False)


@pytest.mark.parametrize("writer", [DefaultSource.writer, DefaultSource.streamWriter], ids=["batch", "stream"])
def test_a_write_needs_a_url(writer: Callable[..., object]) -> None:
    """Or brokers' addresses; Kafka's connector notices only when a task sends."""
    with pytest.raises(InvalidRequest, match="where is the log?"):
        writer(DefaultSource({"topic": "t"}), StructType().add("value", "string"), overwrite=False)


COLUMNS = [
    ({"value": pa.int64()}, "column 'value' is bigint, expected string or binary"),
    ({"v": pa.string()}, "there is no column 'value' to write; the frame has v"),
    ({"Value": pa.string()}, "column 'Value' would be ignored: did you mean 'value'?"),
    ({"vlaue": pa.string()}, "column 'vlaue' would be ignored: did you mean 'value'?"),
    ({"key": pa.string(), "val": pa.string()}, "column 'val' would be ignored: did you mean 'value'?"),
    ({"value": pa.string(), "haeders": pa.string()}, "column 'haeders' would be ignored: did you mean 'headers'?"),
    ({"value": pa.string(), "key": pa.int64()}, "column 'key' is bigint, expected string or binary"),
    ({"value": pa.string(), "partition": pa.int64()}, "column 'partition' is bigint, expected int"),
    (
        {"value": pa.string(), "headers": pa.string()},
        "column 'headers' is string, expected array<struct<key:string,value:binary>>",
    ),
]


@pytest.mark.parametrize(("columns", "expected"), COLUMNS)
def test_a_column_of_a_wrong_type_is_named(url: str, columns: dict[str, pa.DataType], expected: str) -> None:
    """Before any task runs."""
    with pytest.raises(SparkLogError, match=re.escape(expected)):
        DefaultSource(asked(url, None, topic="t")).writer(from_arrow_schema(pa.schema(columns)), overwrite=False)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"value": pa.string()}, "which topic? set the option 'topic', or give the frame a column 'topic'"),
        ({"Topic": pa.string(), "value": pa.string()}, "column 'Topic' would be ignored: did you mean 'topic'?"),
        ({"tpoic": pa.string(), "value": pa.string()}, "column 'tpoic' would be ignored: did you mean 'topic'?"),
        ({"topic": pa.int32(), "value": pa.string()}, "column 'topic' is int, expected string"),
    ],
)
def test_without_the_option_a_frame_needs_a_column_that_names_the_topic(
    url: str, columns: dict[str, pa.DataType], expected: str
) -> None:
    """A string, by its exact name."""
    with pytest.raises(SparkLogError, match=re.escape(expected)):
        DefaultSource(asked(url, None)).writer(from_arrow_schema(pa.schema(columns)), overwrite=False)


def written(url: str, columns: dict[str, pa.Array], **options: Any) -> None:
    Write(url, pa.record_batch(columns), **options).run()


def test_a_row_without_a_topic_fails_the_write(url: str, log: spark_log.Log) -> None:
    """A null in the column, where no option says it; none of its rows is written."""
    columns = {"topic": pa.array(["t", None]), "value": pa.array(["a", "b"])}
    with pytest.raises(SparkLogError, match="null topic"):
        written(url, columns)
    assert log.admin.list_topics() == [] or log.read("t").num_rows == 0


# Promise: options.md#writing
@pytest.mark.parametrize("topics", [pa.array(["other", None]), pa.array([7, 8])], ids=["string", "int"])
def test_the_option_wins_over_the_column_whatever_its_type(url: str, log: spark_log.Log, topics: pa.Array) -> None:
    """Trimmed; then the column is not looked at."""
    written(url, {"topic": topics, "value": pa.array(["a", "b"])}, topic=" t ")
    assert log.admin.list_topics() == ["t"]
    assert log.read("t")["value"].to_pylist() == [b"a", b"b"]


def test_the_column_chooses_the_topic_of_each_row(url: str, log: spark_log.Log) -> None:
    """In one commit."""
    written(url, {"topic": pa.array(["t", "u", "t"]), "value": pa.array(["a", "b", "c"])})
    assert log.read("t")["value"].to_pylist() == [b"a", b"c"]
    assert log.read("u")["value"].to_pylist() == [b"b"]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_keys_and_values_are_strings_or_binary(url: str, log: spark_log.Log, kind: pa.DataType) -> None:
    """Both may be null."""
    columns = {"key": pa.array(["k", None], pa.string()), "value": pa.array(["v", None], pa.string())}
    written(url, {name: column.cast(kind) for name, column in columns.items()}, topic="t")
    assert log.read("t").select(["key", "value"]).to_pylist() == [
        {"key": b"k", "value": b"v"},
        {"key": None, "value": None},
    ]


def test_a_null_partition_is_left_to_the_partitioner(url: str, log: spark_log.Log) -> None:
    """And a number is obeyed."""
    log.admin.create_topics([NewTopic("t", 3)])
    columns = {"value": pa.array(["a", "b"]), "key": pa.array(["k", "k"]), "partition": pa.array([2, None], pa.int32())}
    written(url, columns, topic="t")
    rows = {row["value"]: row["partition"] for row in log.read("t").to_pylist()}
    written(url, {"value": pa.array(["c"]), "key": pa.array(["k"])}, topic="t")
    by_key = {row["value"]: row["partition"] for row in log.read("t").to_pylist()}[b"c"]
    assert rows == {b"a": 2, b"b": by_key}


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_write_takes_include_headers_and_writes_headers_anyway(url: str, log: spark_log.Log, value: str) -> None:
    """As Kafka's connector does."""
    headers = pa.array([[("h", b"1")]], HEADERS)
    written(url, {"value": pa.array(["v"]), "headers": headers}, topic="t", includeHeaders=value)
    assert write_options(asked(url, None, topic="t", includeHeaders=value), streaming=False).notes == ()
    assert log.read("t").to_pylist()[0]["headers"] == [{"key": "h", "value": b"1"}]


def test_headers_are_read_as_they_were_written(url: str, log: spark_log.Log) -> None:
    """Null where there are none, the same name twice in order, and null values."""
    given = [None, [], [("b", b"1"), ("a", None), ("b", b"2")]]
    written(url, {"value": pa.array(["x", "y", "z"]), "headers": pa.array(given, HEADERS)}, topic="t")
    reader = LogReader(
        read_options(asked(url, includeHeaders="true", endingOffsets=3), streaming=False),
        pa.schema({"headers": HEADERS}),
    )
    parts = [part for task in reader.partitions() for part in read_task(reader, task)]
    found = [row["headers"] for part in parts for row in part.to_pylist()]
    assert found[0] is None and found[1] is None
    assert [(header["key"], header["value"]) for header in found[2]] == [("b", b"1"), ("a", None), ("b", b"2")]


def test_a_header_without_a_key_fails_the_write(url: str, log: spark_log.Log) -> None:
    """Its value may be null, its key not."""
    columns = {"value": pa.array(["v"]), "headers": pa.array([[(None, b"1")]], HEADERS)}
    with pytest.raises(SparkLogError, match="header without a key"):
        written(url, columns, topic="t")


def test_headers_are_a_column_only_where_they_are_asked_for() -> None:
    """includeHeaders, in any case."""
    assert "headers" not in DefaultSource(asked()).schema().names
    assert DefaultSource(asked(includeHeaders=" TRUE ")).schema().names[-1] == "headers"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"compresion": "lz4"}, "option compresion is not known; did you mean compression"),
        ({"topic": "not a name"}, "topic name 'not a name' has a space"),
        ({"name": ""}, "option txnAppId: is empty"),
    ],
)
def test_a_sink_refuses_what_it_cannot_take_when_it_is_made(options: dict[str, str], told: str) -> None:
    """Not with the first batch of a query, which may be hours away."""
    with pytest.raises(InvalidRequest, match=told):
        spark_log.sink("/data/log", **options)


def test_a_sink_takes_values_that_are_no_text() -> None:
    """As Spark's writers do; None is left out."""
    assert callable(spark_log.sink("/data/log", topic="t", includeHeaders=True, partitioner=None))
