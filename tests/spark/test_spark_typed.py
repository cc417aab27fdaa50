"""Reads of topics with schemas: batches and streams, without Spark where that is enough."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark_pylog import DefaultSource
from pyspark_pylog.source.latest_view import LatestReader

import spark_log
from spark_log import NewTopic
from spark_log.client.topic_creation import set_schema
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.schema.topic_schema import as_schema
from tests.gateway.running import DEADLINE_S, Running
from tests.logged import logged
from tests.spark.builders import append, asked, copy, load, load_stream, to_sink
from tests.spark.driver import read_task

SCHEMA = "id BIGINT NOT NULL, amount INT, country STRING"
WIDER = "id BIGINT NOT NULL, amount BIGINT, country STRING, note STRING"
ROWS = [{"id": 1, "amount": 10, "country": "DE"}, {"id": 2, "amount": None, "country": "FR"}]


@pytest.fixture
def log(url: str) -> spark_log.Log:
    """With a topic that has a schema and two rows."""
    log = spark_log.connect(url, durability="os")
    log.create_topic(NewTopic("t", 1, schema=SCHEMA))
    log.append("t", ROWS)
    return log


def evolve(log: spark_log.Log, ddl: str = WIDER, topic: str = "t") -> None:
    set_schema(log.journal, topic, as_schema(ddl))


class Load:
    """A batch read as Spark does it, of the columns of the load or of a schema in DDL."""

    def __init__(self, url: str, topics: str | None = "t", /, **options: Any) -> None:
        source = DefaultSource(asked(url, topics, **{name.replace("_", "."): v for name, v in options.items()}))
        self.reader: Any = source.reader(source.schema())  # type: ignore[arg-type]
        self.tasks = self.reader.partitions()

    def rows(self, query: str = "1") -> list[dict[str, Any]]:
        batches = [batch for task in self.tasks for batch in read_task(self.reader, task, query)]
        found = pa.Table.from_batches(batches, self.reader.schema).to_pylist()
        return sorted(found, key=lambda row: row.get("offset", 0))


def chosen(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


# ---------------------------------------------------------------------------------------------------------------- batches


# Promise: spark-typed.md#read-data-columns
def test_a_load_has_the_data_columns(url: str, log: spark_log.Log) -> None:
    """Beside those of a record."""
    rows = Load(url, includeHeaders="true").rows()
    assert chosen(rows, "key", "id", "amount", "country", "topic", "offset", "headers") == [
        (None, 1, 10, "DE", "t", 0, None),
        (None, 2, None, "FR", "t", 1, None),
    ]


# Promise: spark-typed.md#read-data-columns
def test_the_value_is_read_as_a_struct_or_as_json(url: str, log: spark_log.Log) -> None:
    """Of JSON, fields that are null are left out."""
    log.append("t", [{"key": "k", "value": None}])
    assert chosen(Load(url, value_format="struct").rows(), "value") == [(ROWS[0],), (ROWS[1],), (None,)]
    texts = [row["value"] for row in Load(url, value_format="json").rows()]
    assert [None if text is None else json.loads(text) for text in texts] == [
        ROWS[0],
        {"id": 2, "country": "FR"},
        None,
    ]


# Promise: spark-typed.md#read-data-columns
def test_only_named_columns_are_decoded(url: str, log: spark_log.Log) -> None:
    """Whatever the others are."""
    assert Load(url, columns="COUNTRY,offset").rows() == [
        {"country": "DE", "offset": 0},
        {"country": "FR", "offset": 1},
    ]


# Promise: spark-typed.md#read-data-columns
def test_older_rows_have_nulls_in_new_columns_and_wider_numbers(url: str, log: spark_log.Log) -> None:
    """In one read with newer ones; a frame that was planned before keeps its columns."""
    before = Load(url)
    evolve(log)
    log.append("t", [{"id": 3, "amount": 30, "note": "x"}])
    assert chosen(Load(url).rows(), "id", "amount", "note") == [(1, 10, None), (2, None, None), (3, 30, "x")]
    assert chosen(before.rows("2"), "id", "amount") == [(1, 10), (2, None), (3, 30)]
    log.append("t", [{"id": 4, "amount": 2**31}])
    with pytest.raises(SparkLogError, match="amount"):
        before.rows("3")


# Promise: spark-typed.md#read-data-columns
def test_bytes_from_before_the_schema_are_refused_or_parsed(url: str, log: spark_log.Log) -> None:
    """Never read as nulls; where bytes are asked for, they are as they were."""
    log.append("late", [{"value": '{"id": 7, "amount": 70, "more": 1}'}])
    early = Load(url, "late")
    evolve(log, SCHEMA, "late")
    log.append("late", [{"id": 8, "country": "DE"}])
    with pytest.raises(SparkLogError, match="value.parse=json"):
        Load(url, "late")
    assert chosen(Load(url, "late", value_parse="json").rows(), "id", "amount", "country") == [
        (7, 70, None),
        (8, None, "DE"),
    ]
    texts = [row["value"] for row in Load(url, "late", value_format="json").rows()]
    assert texts[0] == b'{"id": 7, "amount": 70, "more": 1}' and json.loads(texts[1]) == {"id": 8, "country": "DE"}
    assert [row["value"] for row in early.rows("2")] == texts
    assert chosen(Load(url, "late", startingOffsets='{"late":{"0":1}}').rows(), "id") == [(8,)]


# Promise: spark-typed.md#read-data-columns
def test_a_pattern_reads_what_its_topics_have_in_common(url: str, log: spark_log.Log) -> None:
    """A topic that matches later is checked when its records are read."""
    log.create_topic(NewTopic("t2", 1, schema="id BIGINT, amount INT"))
    log.append("t2", [{"id": 9, "amount": 90}])
    with pytest.raises(InvalidRequest, match="'t' and 't2' have different schemas"):
        Load(url, None, subscribePattern="^t")
    frame = Load(url, None, subscribePattern="^t", columns="topic,id,amount")
    assert sorted(chosen(frame.rows(), "topic", "id")) == [("t", 1), ("t", 2), ("t2", 9)]
    log.append("t3", [{"value": "bytes"}])
    with pytest.raises(InvalidRequest, match="topic 't3' has no schema"):
        frame.rows("2")


def test_the_view_of_the_latest_records_has_data_columns(url: str, log: spark_log.Log) -> None:
    """A record without a value is a deletion, one with a value of nulls is not."""
    log.create_topic(NewTopic("table", 1, schema="id BIGINT, amount INT"))
    log.append("table", pa.table({"key": ["a", "b", "c", "a"], "id": [1, 2, 3, 4], "amount": [1, 2, 3, None]}))
    log.append("table", [{"key": "b", "value": None}])
    log.append("table", [{"key": "c", "id": None}])
    frame = Load(url, "table", view="latest")
    assert isinstance(frame.reader, LatestReader)
    assert chosen(frame.rows(), "key", "id", "amount") == [(b"a", 4, None), (b"c", None, None)]
    assert chosen(Load(url, "table", view="latest", columns="key,id,offset").rows(), "key", "id") == [
        (b"a", 4),
        (b"c", None),
    ]


# ---------------------------------------------------------------------------------------------------------------- streams


class Streaming:
    """The calls that Spark makes for a stream."""

    def __init__(self, url: str, topics: str = "t", **options: Any) -> None:
        source = DefaultSource(asked(url, topics, startingOffsets="earliest", **options))
        self.reader: Any = source.streamReader(source.schema())  # type: ignore[arg-type]
        self.at = self.reader.initialOffset()

    def batch(self) -> list[dict[str, Any]]:
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        tasks = self.reader.partitions(self.at, end)
        self.at = end
        return [row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()]


# Promise: spark-typed.md#read-data-columns
def test_a_stream_keeps_its_columns_and_says_that_there_are_newer_ones(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is restarted."""
    stream = Streaming(url)
    assert chosen(stream.batch(), "id", "amount") == [(1, 10), (2, None)]
    evolve(log)
    log.append("t", [{"id": 3, "amount": 30, "note": "x"}])
    with caplog.at_level(logging.WARNING, "spark_log"):
        (row,) = stream.batch()
    assert "note" not in row and (row["id"], row["amount"]) == (3, 30)
    assert "topic 't' has version 2 of its schema now, and this query reads version 1: restart" in caplog.text
    caplog.clear()
    log.append("t", [{"id": 4}])
    assert chosen(stream.batch(), "id") == [(4,)] and not logged(caplog, "topic 't'")
    assert chosen(Streaming(url).batch(), "id", "note") == [(1, None), (2, None), (3, "x"), (4, None)]


# Promise: spark-typed.md#read-data-columns
def test_a_stream_of_bytes_reads_json_once_its_topic_has_a_schema(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so."""
    log.append("late", [{"value": "text"}])
    stream = Streaming(url, "late")
    assert chosen(stream.batch(), "value") == [(b"text",)]
    evolve(log, SCHEMA, "late")
    log.append("late", [{"id": 8}])
    with caplog.at_level(logging.WARNING, "spark_log"):
        (row,) = stream.batch()
    assert json.loads(row["value"]) == {"id": 8}
    assert "topic 'late' has version 1 of its schema now, and this query reads bytes" in caplog.text


# ------------------------------------------------------------------------------------------------------------- conditions


# Promise: spark-read.md#reading-less
def test_a_condition_on_data_columns_leaves_out_rows_and_slices(url: str, log: spark_log.Log) -> None:
    """Also where the frame does not have the column, for JSON, in the latest view, and by older types."""
    older = Load(url, where="amount > 5 or amount is null", columns="offset,amount")
    evolve(log)
    log.append("t", [{"id": 3, "amount": 6}])
    assert chosen(older.rows("earlier"), "offset", "amount") == [(0, 10), (1, None), (2, 6)]
    log.append("t", [{"key": "k", "id": 3, "amount": 2**40, "note": "n"}])
    log.append("t", [{"key": "k", "id": 4, "amount": 1}])
    big = Load(url, where="amount > 100", columns="offset", startingOffsets="earliest")
    assert sum(len(task.reads) for task in big.tasks) == 1
    assert chosen(big.rows(), "offset") == [(3,)]
    assert chosen(Load(url, where="note = 'n'", value_format="json", columns="value").rows(), "value") == [
        (b'{"id":3,"amount":1099511627776,"note":"n"}',)
    ]
    assert Load(url, where="id = 3", view="latest").rows() == []
    assert chosen(Load(url, where="id = 4", view="latest", columns="id").rows(), "id") == [(4,)]
    assert chosen(Load(url, where="offset = 0 or offset = 3", columns="offset").rows(), "offset") == [(0,), (3,)]
    struct = Load(url, where="id = 2", value_format="struct").rows()
    assert chosen(struct, "value") == [({**ROWS[1], "note": None},)]


def test_a_condition_that_does_not_fit_the_topics_is_refused(url: str, log: spark_log.Log) -> None:
    """With the option, and the place."""
    log.create_topic(NewTopic("other", 1, schema="id INT, country STRING"))
    for topics, where, words in (
        ("t", "offset > 1 and ids = 1", "option where: topic 't' has no column 'ids'.*at character 16"),
        ("t", "id = 'x'", "option where: column 'id' is BIGINT: it is compared with a number, and 'x' is not one"),
        ("t,other", "id = 1", "option where: its columns differ in the topics 'other' and 't'"),
        ("t,other", "amount = 1", "topic 'other' has no column 'amount'"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            Load(url, topics, where=where, columns="country")
    assert Load(url, "t,other", where="country = 'FR'", columns="country").rows() == [{"country": "FR"}]


def test_a_stream_leaves_out_what_does_not_match(url: str, log: spark_log.Log) -> None:
    """In each batch, by the newest schema."""
    stream = Streaming(url, where="country = 'FR' and id > 1", columns="id")
    assert chosen(stream.batch(), "id") == [(2,)]
    evolve(log)
    log.append("t", [{"id": 5, "country": "FR"}, {"id": 6, "country": "IT"}])
    log.append("t", [{"id": 7, "country": "IT"}])
    assert chosen(stream.batch(), "id") == [(5,)]


# ------------------------------------------------------------------------------------------------------------------ Spark

TYPES = (
    "n INT, big BIGINT, price DECIMAL(6,2), half FLOAT, ratio DOUBLE, name STRING, ok BOOLEAN, day DATE, at TIMESTAMP, "
    "local TIMESTAMP_NTZ, raw BINARY"
)
TYPED_ROWS = (
    "(1, 9007199254740993, 1.10, float(0.1), double('NaN'), 'é', true, date'2026-01-31', timestamp'2026-01-31 10:00', "
    "timestamp_ntz'2026-01-31 10:00', X'0A', 0), (2, -1, -1.25, float('NaN'), -0.0D, 'e', false, date'1969-12-31', "
    "timestamp'1969-12-31 23:59:59.5', timestamp_ntz'1969-12-31 23:59:59.5', X'', 1), (3, 0, 9999.99, float(16777216), "
    "double('inf'), '\U0010ffff', null, null, null, null, X'FF', 2), "
    "(null, null, null, null, null, null, null, null, null, null, null, 3)"
)
SAME_AS_SPARK = (
    "n > 1.5", "n <= 1.5", "n <> 2.0", "n = 1.5", "n not in (1.5)", "n < 99999999999", "n in (1, 99999999999)",
    "big = 9007199254740993", "big > 9007199254740992.5", "price >= 1.1", "price > 1.095", "price <> 1.10000", "price = 1",
    "half = 0.1", "half > 0.1", "half >= 16777216", "half < 1e30", "half <> 1.5", "not half > 5", "half not in (0.5)",
    "ratio = 0", "ratio >= 0.0", "ratio > 1e308", "ratio in (0, 1)", "not (ratio < 5)", "name > 'f'", "name >= 'é'",
    "name in ('é', 'x')", "name between 'a' and 'z'", "name not between 'a' and 'z'", "ok", "not ok", "ok <> true",
    "day = date '2026-01-31'", "day < '2026-01-01'", "day in (date '1969-12-31')", "at = '2026-01-31 10:00'",
    "at > timestamp '2026-01-31T09:59:59Z'", "at < date '1970-01-02'", "at not in (timestamp '2026-01-31 10:00')",
    "local = '2026-01-31 10:00'", "local > timestamp_ntz '1970-01-01 00:00'", "local <= date '2026-02-01'", "raw = X'0A'",
    "raw > X''", "raw <> X'ff'", "name is null", "not (name is null or ok)", "n > 1 or name = 'é' and not ok",
    "n = 1 and (offset = 0 or partition = 7)", "not (offset > 0 or n = 1)",
)  # fmt: skip


# Promise: spark-read.md#reading-less, tasks/typed.md#skip-what-cannot-match
@pytest.mark.classic("Spark evaluates no frame of pylog here")
def test_conditions_mean_the_same_as_in_spark(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Of each type: nulls, NaN, zeros, constants between two values or beyond the type."""
    log.create_topic(NewTopic("types", 1, schema=TYPES))
    names = [column.split()[0] for column in TYPES.replace("(6,2)", "").split(", ")]
    frame = spark.sql(f"SELECT *, 0 AS partition FROM VALUES {TYPED_ROWS} AS t({', '.join(names)}, offset)")
    tests = [f"coalesce({where}, false) AS c{number}" for number, where in enumerate(SAME_AS_SPARK)]
    truths = frame.selectExpr(*names, *tests).toArrow()  # of a local relation: no job
    log.append("types", truths.select(names))
    zone = spark_log.where("ok", spark)["timeZone"]
    for number, where in enumerate(SAME_AS_SPARK):
        found = log_rows(url, where, zone)
        expected = [offset for offset, truth in enumerate(truths[f"c{number}"].to_pylist()) if truth]
        assert (where, found) == (where, expected)


def log_rows(url: str, where: str, zone: str) -> list[int]:
    return [row["offset"] for row in Load(url, "types", where=where, timeZone=zone, columns="offset").rows()]


TIMES = ("at", "local")


# Promise: tasks/typed.md#read
@pytest.mark.classic("Spark evaluates no frame of pylog here")
def test_json_is_that_of_spark(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """But for times, of which Spark keeps the milliseconds."""
    log.create_topic(NewTopic("types", 1, schema=f"{TYPES}, m MAP<INT, FLOAT>, s STRUCT<a: INT, b: ARRAY<DATE>>"))
    names = [column.split()[0] for column in TYPES.replace("(6,2)", "").split(", ")]
    frame = spark.sql(f"SELECT * FROM VALUES {TYPED_ROWS} AS t({', '.join(names)}, number)").selectExpr(
        *names, "map(number, half) AS m", "named_struct('a', n, 'b', array(day, null)) AS s"
    )
    rows = frame.selectExpr("*", "to_json(struct(*)) AS json").toArrow()
    log.append("types", rows.drop_columns(["json"]))
    ours = log.read("types", columns=["value"], value_format="json")["value"].to_pylist()
    for text, theirs in zip(map(json.loads, ours), map(json.loads, rows["json"].to_pylist()), strict=True):
        times = [(text.pop(name, None), theirs.pop(name, None)) for name in TIMES]
        assert text == theirs
        assert [one is None or one[:19] == other[:19] for one, other in times] == [True, True]


NESTED = "id BIGINT NOT NULL, price DECIMAL(12,2), at TIMESTAMP, day DATE, tags ARRAY<STRING>, place STRUCT<lat: DOUBLE, zone: MAP<STRING, INT>>"


# Promise: spark-typed.md#topics-with-a-schema
def test_spark_writes_and_reads_data_columns(spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """Of many types, as columns, as a struct, and by a schema; a stream copies them; aggregates go through a sink."""
    log.create_topic(NewTopic("wide", 1, schema=NESTED))
    frame = spark.sql(
        "SELECT string(id) AS key, id, decimal(id) / 8 AS price, timestamp_seconds(id) AS at, date '2026-01-31' AS day, "
        "array('x', string(id)) AS tags, named_struct('lat', double(id), 'zone', map('a', int(id))) AS place FROM range(3)"
    ).withColumn("price", F.col("price").cast("decimal(12,2)"))
    append(frame, url, "wide")
    read = load(spark, url, "wide")
    assert read.select(*frame.columns[1:]).orderBy("id").collect() == frame.drop("key").orderBy("id").collect()
    assert load(spark, url, "wide", **{"value.format": "struct"}).selectExpr("sum(value.place.lat)").head()[0] == 3.0  # type: ignore[index]
    by_schema = (
        spark.read.format("pylog").option("subscribe", "wide").schema("price DECIMAL(12,2), offset BIGINT").load(url)
    )
    assert by_schema.selectExpr("string(sum(price))").head()[0] == "0.38"  # type: ignore[index]

    log.create_topic(NewTopic("copy", 1, schema=NESTED))
    copy(load_stream(spark, url, "wide"), url, "copy", tmp_path / "ck")
    assert (
        load(spark, url, "copy").select("id", "place").orderBy("id").collect()
        == read.select("id", "place").orderBy("id").collect()
    )


# Promise: spark-typed.md#write-data-columns
@pytest.mark.classic("Spark Connect gives a sink the same frames: test_spark_connect.py")
def test_spark_streams_aggregates_into_a_topic_with_a_schema(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """By `spark_log.sink`, and by SQL; bytes are parsed by Spark before the write."""
    log.create_topic(NewTopic("totals", 1, schema="country STRING, total BIGINT"))
    totals = load_stream(spark, url, "t").groupBy("country").agg(F.sum("amount").alias("total"))
    to_sink(totals, spark_log.sink(url, topic="totals"), tmp_path / "ck", "update")
    place = f"path '{url}'"
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW ins (country STRING, total BIGINT) USING pylog OPTIONS ({place}, topic 'totals')"
    )
    spark.sql("INSERT INTO ins VALUES ('IT', 5)")
    spark.sql(f"CREATE OR REPLACE TEMP VIEW seen USING pylog OPTIONS ({place}, subscribe 'totals')")
    found = spark.sql("SELECT country, total FROM seen ORDER BY country").collect()
    assert found == [("DE", 10), ("FR", None), ("IT", 5)]

    texts = spark.createDataFrame([('{"id": 5, "country": "IT"}',)], "value string")
    with pytest.raises(Exception, match="from_json"):
        append(texts, url)
    append(texts.withColumn("value", F.from_json("value", SCHEMA)), url)
    assert load(spark, url).where("id = 5").select("country").collect() == [("IT",)]


# Promise: gateway.md#topics-with-a-schema
@pytest.mark.tasks
def test_spark_reads_columns_that_a_kafka_client_sent_as_json(
    spark: SparkSession, url: str, log: spark_log.Log
) -> None:
    """Without `from_json`."""
    gateway = Running(log)
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "log_level": 0})
    for n in range(100):
        producer.produce("t", b'{"id": %d, "country": "NZ"}' % n)
    assert producer.flush(DEADLINE_S) == 0
    gateway.close()
    found = load(spark, url, "t").where("country = 'NZ'").agg(F.sum("id"), F.count("amount")).collect()
    assert [tuple(row) for row in found] == [(4950, 0)]
