"""Which rows of a frame are written and which are refused: the rules of Kafka's sink, column by column."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)
from pyspark_pylog import DefaultSource
from pyspark_pylog.sink.write_columns import written_columns

import spark_log
from spark_log.errors import InvalidRecord, InvalidRequest, SparkLogError
from spark_log.segment.schema import HEADERS
from tests.spark.builders import DEADLINE_S, append, load, load_stream, numbers, texts
from tests.spark.driver import Write


def write(url: str, columns: dict[str, pa.Array], **options: Any) -> None:
    """Into topic t, unless the options say otherwise."""
    Write(url, pa.record_batch(columns), **{"topic": "t", **options}).run()


def found(log: spark_log.Log, topic: str = "t") -> list[dict[str, Any]]:
    return log.read(topic).to_pylist()


def frame(**columns: DataType) -> StructType:
    schema = StructType()
    for name, type_ in columns.items():
        schema.add(name, type_)
    return schema


def refused(schema: StructType, topic: str | None) -> str:
    """The error for a frame that cannot be written."""
    with pytest.raises(InvalidRecord) as error:
        written_columns(schema, topic)
    return str(error.value)


VALUE = pa.array(["1", "2"])
TEXT, BINARY, LONG, INT = StringType(), BinaryType(), LongType(), IntegerType()


# ----------------------------------------------------------------------------------------------------------------- topic


def test_the_option_wins_over_the_topic_column(url: str, log: spark_log.Log) -> None:
    """Also where rows name no topic."""
    write(url, {"value": VALUE, "topic": pa.array(["a", None])})
    assert [record["value"] for record in found(log)] == [b"1", b"2"]
    assert log.admin.list_topics() == ["t"]


def test_under_the_option_the_topic_column_may_be_of_any_type(url: str, log: spark_log.Log) -> None:
    """It is not looked at."""
    write(url, {"value": VALUE, "topic": pa.array([1, 2])})
    assert len(found(log)) == 2


def test_the_topic_option_is_trimmed(url: str, log: spark_log.Log) -> None:
    """Blanks around a topic's name are no part of it."""
    write(url, {"value": VALUE}, topic="  t ")
    assert log.admin.list_topics() == ["t"]


def test_without_the_option_a_null_topic_is_refused(url: str, log: spark_log.Log) -> None:
    """The message has both ways out; nothing is written, also not of other rows."""
    log.admin.create_topics([spark_log.NewTopic("t", 1)])
    with pytest.raises(InvalidRecord, match="a row has a null topic; set the option 'topic' or fill the column"):
        write(url, {"value": VALUE, "topic": pa.array(["t", None])}, topic=None)
    assert found(log) == []


def test_a_blank_topic_option_is_none(url: str) -> None:
    """As if it were not there."""
    with pytest.raises(InvalidRecord, match="which topic"):
        write(url, {"value": VALUE}, topic="  ")


@pytest.mark.parametrize("type_", [TEXT, VarcharType(9), CharType(9)], ids=str)
def test_text_of_any_kind_names_topics_and_is_written(type_: DataType) -> None:
    """string, varchar(n), char(n)."""
    assert written_columns(frame(topic=type_, key=type_, value=type_), None) == ("topic", "key", "value")


# --------------------------------------------------------------------------------------------------------- key and value


@pytest.mark.parametrize("type_", [pa.string(), pa.binary()], ids=str)
def test_keys_and_values_are_strings_or_binary(url: str, log: spark_log.Log, type_: pa.DataType) -> None:
    """Strings as UTF-8."""
    text = pa.array(["ü".encode(), None]).cast(type_)
    write(url, {"key": text, "value": text})
    assert [(record["key"], record["value"]) for record in found(log)] == [("ü".encode(), "ü".encode()), (None, None)]


def test_a_frame_without_keys_has_null_keys(url: str, log: spark_log.Log) -> None:
    """Only the value has to be there."""
    write(url, {"value": VALUE})
    assert [record["key"] for record in found(log)] == [None, None]


def test_a_null_value_is_written_as_one(url: str, log: spark_log.Log) -> None:
    """A tombstone, which is not an empty value."""
    write(url, {"key": VALUE, "value": pa.array([None, ""])})
    assert [record["value"] for record in found(log)] == [None, b""]


# --------------------------------------------------------------------------------------------------------------- headers


def test_headers_may_be_null_and_so_may_their_values(url: str, log: spark_log.Log) -> None:
    """No headers are read back as null; the order of headers of the same key is kept."""
    write(
        url, {"value": pa.array(["1", "2", "3"]), "headers": pa.array([None, [], [("h", None), ("h", b"2")]], HEADERS)}
    )
    first, second, third = (record["headers"] for record in found(log))
    assert not first and not second
    assert [(header["key"], header["value"]) for header in third] == [("h", None), ("h", b"2")]


@pytest.mark.parametrize("nullable", [True, False])
def test_whether_headers_can_be_null_makes_no_difference(url: str, log: spark_log.Log, nullable: bool) -> None:
    """array<struct<key: string not null, value: binary not null>>, as Spark's own functions make them."""
    pair = pa.struct([pa.field("key", pa.string(), nullable), pa.field("value", pa.binary(), nullable)])
    headers = pa.array([[("h", b"1")], []], pa.list_(pa.field("element", pair, nullable)))
    write(url, {"value": VALUE, "headers": headers})
    assert found(log)[0]["headers"] == [{"key": "h", "value": b"1"}]


HEADER = StructType().add("key", TEXT).add("value", BINARY)
NO_HEADERS = [
    HEADER,
    ArrayType(TEXT),
    MapType(TEXT, BINARY),
    ArrayType(StructType().add("key", TEXT).add("value", TEXT)),
    ArrayType(StructType().add("value", BINARY).add("key", TEXT)),
    ArrayType(StructType().add("name", TEXT).add("value", BINARY)),
    ArrayType(StructType().add("key", TEXT)),
]


@pytest.mark.parametrize("type_", NO_HEADERS, ids=lambda type_: type_.simpleString())
def test_headers_of_another_type_are_refused(type_: DataType) -> None:
    """The message has the type that was found, and the one that is expected."""
    said = refused(frame(value=TEXT, headers=type_), "t")
    assert said == f"column 'headers' is {type_.simpleString()}, expected array<struct<key:string,value:binary>>"


# ------------------------------------------------------------------------------------------------- partition and the rest


def test_a_null_partition_is_the_partitioners(url: str, log: spark_log.Log) -> None:
    """A number is obeyed, whatever the partitioner."""
    log.admin.create_topics([spark_log.NewTopic("t", 3)])
    keys = pa.array(["k", "k", "k"])
    numbers_ = pa.array([0, 2, None], pa.int32())
    write(url, {"key": keys, "value": pa.array(["0", "1", "by key"]), "partition": numbers_})
    write(url, {"key": keys.slice(2), "value": pa.array(["by key"])})
    placed = [(record["value"], record["partition"]) for record in found(log)]
    by_key = {partition for value, partition in placed if value == b"by key"}
    assert (b"0", 0) in placed and (b"1", 2) in placed and len(by_key) == 1 and len(placed) == 4


def test_columns_are_found_by_their_exact_names(url: str, log: spark_log.Log) -> None:
    """Upper case is another column, which is ignored beside the exact one, as all others are, whatever their types."""
    others = {"VALUE": pa.array([1, 2]), "Key": VALUE, "TOPIC": VALUE, "Partition": pa.array([9, 9]), "offset": VALUE}
    write(url, {**others, "value": VALUE, "key": pa.array(["k", None]), "partition": pa.array([0, 0], pa.int32())})
    assert [(record["key"], record["value"]) for record in found(log)] == [(b"k", b"1"), (None, b"2")]


def test_a_frame_without_a_value_is_refused() -> None:
    """The message shows what there is."""
    assert refused(frame(v=TEXT, k=TEXT), "t") == "there is no column 'value' to write; the frame has v, k"


def test_two_columns_of_one_name_are_refused() -> None:
    """Kafka's sink takes the first; Spark does not hand such a frame to Python at all."""
    twice = StructType().add("value", TEXT).add("value", LONG)
    assert "column 'value' is there more than once" in refused(twice, "t")


def test_what_was_read_can_be_written(url: str, log: spark_log.Log) -> None:
    """offset and timestampType are not looked at, the timestamp is kept."""
    log.append("t", [{"key": "k", "value": "v", "headers": [("h", b"1")]}])
    (batch,) = log.read("t").combine_chunks().to_batches()
    columns = {name: batch.column(name) for name in ("key", "value", "headers", "timestamp", "partition", "offset")}
    write(url, {**columns, "timestampType": pa.array([0], pa.int32())}, topic="copy")
    kept = ("key", "value", "headers", "timestamp")
    assert [found(log, "copy")[0][name] for name in kept] == [found(log)[0][name] for name in kept]


WRONG: list[tuple[StructType, str | None, str]] = [
    (frame(topic=INT, key=INT, value=INT), None, "column 'topic' is int, expected string"),
    (frame(key=INT, value=INT), None, "which topic?"),
    (frame(key=INT, value=INT, headers=INT, partition=LONG), "t", "column 'key' is int, expected string or binary"),
    (frame(key=INT), "t", "column 'key' is int"),
    (frame(headers=INT, partition=LONG), "t", "there is no column 'value'"),
    (frame(value=INT, headers=INT, partition=LONG), "t", "column 'value' is int"),
    (frame(value=TEXT, partition=LONG, headers=INT), "t", "column 'headers' is int"),
    (frame(value=TEXT, partition=LONG), "t", "column 'partition' is bigint, expected int"),
]


TIMES = [
    (TEXT, "string"),
    (DateType(), "date"),
    (TimestampNTZType(), "timestamp_ntz"),
    (INT, "int"),
    (DoubleType(), "double"),
]


# Promise: spark.md#columns
@pytest.mark.parametrize(("type_", "name"), TIMES, ids=[name for _, name in TIMES])
def test_a_timestamp_of_another_type_is_refused(type_: DataType, name: str) -> None:
    """The error names the cast: if the column were ignored, records would get the present time without notice."""
    told = refused(frame(value=TEXT, timestamp=type_), "t")
    assert told.startswith(
        f"column 'timestamp' is {name}, expected timestamp, or bigint with milliseconds since 1970: cast it"
    )


MISSPELT = [
    ("Timestamp", "timestamp"),
    ("timestamp_ms", "timestamp"),
    ("header", "headers"),
    ("Key", "key"),
    ("partitions", "partition"),
]


# Promise: spark.md#columns
@pytest.mark.parametrize(("given", "meant"), MISSPELT, ids=[given for given, _ in MISSPELT])
def test_a_column_that_is_nearly_one_that_is_missing_is_refused(given: str, meant: str) -> None:
    """Unless the one that is meant is there, too."""
    assert f"column '{given}' would be ignored: did you mean '{meant}'?" in refused(
        frame(value=TEXT, **{given: TEXT}), "t"
    )
    both = frame(
        value=TEXT,
        **{given: TEXT, meant: {"timestamp": LONG, "headers": ArrayType(HEADER), "partition": INT}.get(meant, TEXT)},
    )
    assert written_columns(both, "t") == ("value", meant)


def test_a_misspelt_topic_counts_where_rows_name_topics() -> None:
    """With the option it is not needed."""
    assert "did you mean 'topic'" in refused(frame(value=TEXT, Topic=TEXT), None)
    assert written_columns(frame(value=TEXT, Topic=TEXT), "t") == ("value",)
    assert "did you mean 'value'" in refused(frame(Value=TEXT), "t")


def test_a_number_is_milliseconds_since_1970(url: str, log: spark_log.Log) -> None:
    """As for log.append; null is the present."""
    write(url, {"value": VALUE, "timestamp": pa.array([1_700_000_000_123, None], pa.int64())})
    given, present = (record["timestamp"] for record in found(log))
    assert given.timestamp() == 1_700_000_000.123
    assert abs(present.timestamp() - time.time()) < 3600


@pytest.mark.parametrize(("schema", "topic", "expected"), WRONG, ids=[case[2] for case in WRONG])
def test_of_several_mistakes_the_first_is_named(schema: StructType, topic: str | None, expected: str) -> None:
    """Topic, key, value, headers, partition: in the order of Kafka's sink, wherever they are in the frame."""
    assert refused(schema, topic).startswith(expected)


NESTED = [
    (HEADER, "struct<key:string,value:binary>"),
    (ArrayType(TEXT), "array<string>"),
    (MapType(TEXT, LONG), "map<string,bigint>"),
    (TimestampType(), "timestamp"),
]


@pytest.mark.parametrize(("type_", "expected"), NESTED, ids=[case[1] for case in NESTED])
def test_a_value_of_a_type_that_is_no_text_is_refused(type_: DataType, expected: str) -> None:
    """With its whole type, and what makes text of it."""
    told = f"column 'value' is {expected}, expected string or binary: cast it, or use to_json"
    assert refused(frame(value=type_), "t") == told


def test_a_refused_frame_creates_no_topic(url: str, log: spark_log.Log) -> None:
    """Columns are judged before anything is done, for batches and streams."""
    source = DefaultSource({"path": url, "topic": "t"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(SparkLogError, match="column 'value' is bigint"):
            writer(frame(value=LONG), overwrite=False)
    assert log.admin.list_topics() == []


# -------------------------------------------------------------------------------------------------------- modes, with Spark


def test_a_log_can_be_named_as_kafka_brokers_are(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """kafka.bootstrap.servers instead of a path, for reads and writes."""
    log.append("t", texts(2))
    server = {"kafka.bootstrap.servers": f"file://{url}"}
    rows = spark.read.format("pylog").options(subscribe="t", **server).load()
    rows.write.format("pylog").mode("append").options(topic="copy", **server).save()
    assert log.read("copy").num_rows == 2


# Promise: ../README.md#why
@pytest.mark.parametrize("mode", [None, "error", "ignore"])
def test_spark_refuses_the_default_mode(spark: SparkSession, url: str, log: spark_log.Log, mode: str | None) -> None:
    """Before it asks the source, so `.mode("append")` has to be said."""
    writer = numbers(spark, [1]).write.format("pylog").option("topic", "t")
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        (writer if mode is None else writer.mode(mode)).save(url)
    assert log.admin.list_topics() == []


def test_overwriting_says_what_to_do_instead() -> None:
    """For a batch and for a stream, whose complete mode Spark hands over as an overwrite."""
    source = DefaultSource({"path": "/nowhere", "topic": "t"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(
            InvalidRequest,
            match=re.escape(
                "use .mode('append') or INSERT INTO for a batch, and outputMode('append'), or outputMode('update') after "
                "spark_log.register(spark), for a stream"
            ),
        ):
            writer(frame(value=TEXT), overwrite=True)


# Promise: spark.md#limits-of-spark-and-workarounds
def test_spark_refuses_update_mode(spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """Of any Python sink, in a session that does not plan it by PylogSource.java."""
    log.append("t", texts(1))
    writer = load_stream(spark, url).writeStream.format("pylog").option("topic", "u").outputMode("update")
    before = spark.conf.get("spark.pylog.pushDown")
    spark.conf.set("spark.pylog.pushDown", "false")
    try:
        with pytest.raises(PySparkException, match="does not support Update mode"):
            writer.option("checkpointLocation", str(tmp_path / "c")).start(url).awaitTermination(DEADLINE_S)
    finally:
        spark.conf.set("spark.pylog.pushDown", before)
    assert log.admin.list_topics() == ["t"]


def test_other_times_are_cast_in_the_sessions_time_zone(spark: SparkSession, url: str) -> None:
    """The cast that the refusal names: text, dates and timestamp_ntz mean the session's wall clock."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for number, moment in enumerate(
            ("timestamp_ntz '2024-01-01 09:00'", "'2024-01-01 09:00'", "date '2024-01-01'")
        ):
            append(spark.sql(f"select '{number}' as value, cast({moment} as timestamp) as timestamp"), url, "t")
        with pytest.raises(PySparkException, match="column 'timestamp' is timestamp_ntz"):
            append(spark.sql("select 'x' as value, timestamp_ntz '2024-01-01 09:00' as timestamp"), url, "t")
        rows = load(spark, url).selectExpr("string(value) value", "unix_seconds(timestamp) at").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    midnight = 1_704_067_200
    assert {row.value: row.at - midnight for row in rows} == {"0": 0, "1": 0, "2": -9 * 3600}


def test_sparks_own_types_are_written(spark: SparkSession, url: str) -> None:
    """varchar and char columns of a table, text with a collation, headers of which none can be null."""
    spark.sql("create table short (topic varchar(5), key char(3), value varchar(9)) using parquet")
    try:
        spark.sql("insert into short values ('t', 'k', 'v')")
        append(spark.table("short"), url, None)
        headers = "array(named_struct('key', 'h', 'value', X'31')) as headers"
        append(spark.sql(f"select 't' collate utf8_lcase as topic, 'w' collate unicode as value, {headers}"), url, None)
    finally:
        spark.sql("drop table short")
    rows = (
        load(spark, url, includeHeaders=True).selectExpr("string(key) key", "string(value) value", "headers").collect()
    )
    assert sorted((row.value, row.key, row.headers and row.headers[0].key) for row in rows) == [
        ("v", "k  ", None),
        ("w", None, "h"),
    ]
