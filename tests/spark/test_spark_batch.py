"""Batch writes and reads through Spark."""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

import spark_log
from spark_log import NewTopic, TopicPartition
from tests.spark.builders import append, as_bytes, load, numbers, texts, values

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456)
KAFKA_COLUMNS = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]
HEADERS = "array<struct<key:string,value:binary>>"


# Promise: spark.md#under-spark-connect, testing.md#what-was-tested
def test_what_is_written_is_read_back(spark: SparkSession, url: str) -> None:
    """Keys, values, headers and timestamps come back as they were; offsets count from 0."""
    frame = spark.createDataFrame(
        [(b"k", b"v", NOON, [("h", b"1"), ("h", None)]), (None, b"w", NOON, None), (None, b"x", NOON, [])],
        f"key binary, value binary, timestamp timestamp, headers {HEADERS}",
    ).coalesce(1)
    append(frame, url)
    rows = load(spark, url, includeHeaders=True).orderBy("offset").collect()
    assert [(r.key, r.value, r.offset) for r in rows] == [(b"k", b"v", 0), (None, b"w", 1), (None, b"x", 2)]
    assert {r.timestamp for r in rows} == {NOON}
    assert [tuple(header) for header in rows[0].headers] == [("h", b"1"), ("h", None)]
    assert rows[1].headers is None and rows[2].headers is None, "as in Kafka: no headers are null, not an empty list"


# Promise: spark.md#pylog-in-spark
def test_a_relative_path_begins_where_spark_was_started(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For planning and for tasks, in reads and writes, and as for Spark's own files; wherever the driver is by now."""
    relative = os.path.relpath(tmp_path)
    for elsewhere in ("here", "there"):
        (tmp_path / elsewhere).mkdir()
        monkeypatch.chdir(tmp_path / elsewhere)
        frame = spark.createDataFrame([(elsewhere,)], "value string")
        append(frame, f"{relative}/log")
        frame.write.mode("append").text(f"{relative}/text")
    assert sorted(values(load(spark, f"{relative}/log"))) == sorted(values(load(spark, str(tmp_path / "log"))))
    assert load(spark, str(tmp_path / "log")).count() == 2 == spark.read.text(str(tmp_path / "text")).count()


# Promise: spark.md#columns
def test_columns_and_types_are_those_of_kafkas_connector(spark: SparkSession, url: str) -> None:
    """All nullable, in its order; headers come last, when they are asked for."""
    frame, with_headers = load(spark, url), load(spark, url, includeHeaders="true")
    assert frame.dtypes == KAFKA_COLUMNS
    assert with_headers.dtypes == [*KAFKA_COLUMNS, ("headers", HEADERS)]
    assert all(field.nullable for field in with_headers.schema.fields)


def test_strings_are_written_as_utf8(spark: SparkSession, url: str) -> None:
    """Keys and values may be strings or binary."""
    append(spark.createDataFrame([("ключ", "値")], "key string, value string"), url)
    row = load(spark, url).first()
    assert row is not None
    assert (row.key, row.value) == ("ключ".encode(), "値".encode())


@pytest.mark.tasks
def test_a_null_value_is_a_tombstone(spark: SparkSession, url: str) -> None:
    """Null is not empty."""
    append(spark.createDataFrame([("a", None), ("b", "")], "key string, value string").coalesce(1), url)
    assert [row.value for row in load(spark, url).orderBy("offset").collect()] == [None, b""]


# Promise: spark.md#columns
@pytest.mark.tasks
def test_a_null_timestamp_becomes_the_present(spark: SparkSession, url: str) -> None:
    """As does a missing one."""
    before = time.time()
    append(spark.createDataFrame([("a", None)], "value string, timestamp timestamp"), url)
    append(spark.createDataFrame([("b",)], "value string"), url)
    stamps = [row.timestamp.replace(tzinfo=timezone.utc).timestamp() for row in load(spark, url).collect()]
    assert all(before - 1 < stamp < time.time() + 1 for stamp in stamps)


@pytest.mark.tasks
def test_other_columns_are_ignored(spark: SparkSession, url: str) -> None:
    """A copy of what was read needs no select: offset and timestampType are not written."""
    append(spark.createDataFrame([("v", 1.5, NOON)], "value string, price double, timestamp timestamp"), url)
    append(load(spark, url, includeHeaders=True), url, "copy")
    row = load(spark, url, "copy").first()
    assert row is not None
    assert (row.value, row.topic, row.offset, row.timestamp) == (b"v", "copy", 0, NOON)


# Promise: spark.md#columns
@pytest.mark.tasks
def test_a_timestamp_that_is_a_number_is_milliseconds(spark: SparkSession, url: str) -> None:
    """As for log.append; of text or dates nothing is guessed."""
    append(spark.createDataFrame([("v", 1_700_000_000_123)], "value string, timestamp long"), url)
    assert load(spark, url).selectExpr("unix_millis(timestamp)").first() == (1_700_000_000_123,)
    with pytest.raises(PySparkException, match="column 'timestamp' is string, expected timestamp, or bigint"):
        append(spark.createDataFrame([("v", "2024-01-01")], "value string, timestamp string"), url)


def test_times_are_right_in_any_session_time_zone(spark: SparkSession, url: str) -> None:
    """Spark hands timestamps over in the session's zone; what is stored is the instant."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        append(spark.sql("select 'v' as value, timestamp'2026-01-31 09:00:00' as timestamp"), url)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    table = spark_log.connect(url).read("t")
    assert table.column("timestamp")[0].as_py() == datetime(2026, 1, 31, tzinfo=timezone.utc)


@pytest.mark.tasks
def test_the_topic_column_says_where_rows_go(spark: SparkSession, url: str) -> None:
    """Topics that are not there are created; the option wins over the column."""
    frame = spark.createDataFrame([("a", "1"), ("b", "2"), ("a", "3")], "topic string, value string")
    append(frame, url, None)
    assert values(load(spark, url, "a")) == as_bytes([1, 3])
    assert values(load(spark, url, "b")) == as_bytes([2])
    append(frame, url, "c")
    assert values(load(spark, url, "c")) == as_bytes([1, 2, 3])


@pytest.mark.tasks
def test_the_partition_column_is_obeyed(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Null leaves it to the partitioner: by the key."""
    log.admin.create_topics([NewTopic("t", 3)])
    rows = [("a", "1", 2), ("a", "2", 0), ("a", "3", None)]
    append(spark.createDataFrame(rows, "key string, value string, partition int"), url)
    found = {row.value: row.partition for row in load(spark, url).collect()}
    assert (found[b"1"], found[b"2"]) == (2, 0)
    log.append("t", [{"key": "a", "value": "4"}])
    assert found[b"3"] == next(row.partition for row in load(spark, url).collect() if row.value == b"4")


@pytest.mark.tasks
def test_records_of_a_key_keep_their_order(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Rows of one task that go to one partition stay in the order of the frame."""
    log.admin.create_topics([NewTopic("t", 3)])
    append(spark.range(0, 3000, 1, 1).selectExpr("string(id % 7) as key", "string(id) as value"), url)
    rows = load(spark, url).orderBy("partition", "offset").collect()
    for key in {row.key for row in rows}:
        found = [int(row.value) for row in rows if row.key == key]
        assert found == sorted(found)
    assert len(rows) == 3000 and len({row.partition for row in rows}) == 3


# Promise: topic-configs.md#topics
@pytest.mark.tasks
def test_log_append_time_is_the_logs(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """timestampType is 1, and the timestamp is that of the commit, whatever the rows say."""
    log.admin.create_topics([NewTopic("t", 1, {"message.timestamp.type": "LogAppendTime"})])
    append(spark.createDataFrame([("v", NOON)], "value string, timestamp timestamp"), url)
    row = load(spark, url).first()
    assert row is not None
    assert row.timestampType == 1 and abs(row.timestamp.replace(tzinfo=timezone.utc).timestamp() - time.time()) < 60


NEVER_NULL = "topic string not null, partition int not null, offset long not null, timestamp timestamp not null"


# Promise: spark-read.md#reading-less
@pytest.mark.parametrize(
    "columns", ["value binary", "offset long", "topic string, offset long", "timestampType int", NEVER_NULL]
)
def test_a_schema_is_a_projection(spark: SparkSession, url: str, log: spark_log.Log, columns: str) -> None:
    """Fewer columns, in any order."""
    log.append("t", texts(3))
    frame = spark.read.format("pylog").option("subscribe", "t").schema(columns).load(url)
    assert len(frame.collect()) == 3 and frame.columns == [part.split()[0] for part in columns.split(", ")]


NESTED = [
    ("array<struct<key: string not null, value: binary>>", "array<struct<key:string NOT NULL,value:binary>>"),
    (
        ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]), False),
        "array<struct<key:string,value:binary> NOT NULL>",
    ),
]


@pytest.mark.parametrize(("nested", "found"), NESTED, ids=["key", "element"])
def test_a_schema_that_excludes_nulls_inside_of_headers_is_refused(
    spark: SparkSession, url: str, log: spark_log.Log, nested: str | ArrayType, found: str
) -> None:
    """In a sentence with the type that is expected."""
    log.append("t", [{"value": "v", "headers": [("h", None)]}])
    schema = f"headers {nested}" if isinstance(nested, str) else StructType([StructField("headers", nested)])
    with pytest.raises(Exception, match=f"'headers' is {found}, which excludes nulls .* expected headers {HEADERS}"):
        spark.read.format("pylog").option("subscribe", "t").schema(schema).load(url).collect()
    loose = spark.read.format("pylog").option("subscribe", "t").schema(f"headers {HEADERS} not null").load(url)
    assert loose.collect()[0].headers[0].key == "h"


@pytest.mark.tasks
def test_headers_that_cannot_be_null_are_written(spark: SparkSession, url: str) -> None:
    """Constants make arrays whose elements and keys exclude nulls: what is stricter fits."""
    header = F.struct(F.lit("h").alias("key"), F.lit(b"1").alias("value"))
    frame = spark.range(2).select(F.lit("v").alias("value"), F.array(header).alias("headers"))
    nested = frame.schema["headers"].dataType
    assert isinstance(nested, ArrayType) and not nested.containsNull
    append(frame, url)
    found = load(spark, url, includeHeaders=True).collect()
    assert [[tuple(header) for header in row.headers] for row in found] == [[("h", b"1")]] * 2


def test_a_frame_that_is_used_again_sees_new_records(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Also with a partition that was not there before."""
    log.append("t", texts(2))
    frame = load(spark, url)
    assert frame.count() == 2
    log.append("t", texts(3, 2))
    assert frame.count() == 5
    log.admin.create_partitions({"t": 3})
    log.append("t", [{"value": "5", "partition": 2}])
    assert values(frame) == as_bytes(range(6))


def test_a_frame_has_what_was_written_before_its_first_use(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Spark's processes keep the log from the frame before, and look at it again."""
    log.append("t", texts(2))
    assert load(spark, url).count() == 2
    frame = load(spark, url)
    assert "value" in frame.columns
    log.append("t", texts(3, 2))
    assert frame.count() == load(spark, url).count() == 5


# Promise: spark-read.md#options-of-a-read
def test_a_query_sees_one_version(spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """A self-join and a union of two loads agree with themselves while others append."""
    log.append("t", texts(50))
    done = tmp_path / "done"

    def appending(number: int) -> int:
        other = spark_log.connect(url, durability="os")
        if not done.exists():
            done.touch()
            other.append("t", texts(10, 1000))
        return number

    append_in_between = F.udf(appending, "long", useArrow=False)
    one = load(spark, url, maxRecordsPerPartition=10).select("offset")
    two = load(spark, url).select("offset")
    slow = one.select(append_in_between("offset").alias("offset"))
    union = slow.union(two).groupBy("offset").count().collect()
    assert {row["count"] for row in union} == {2} and len(union) in (50, 60)
    done.unlink()
    frame = load(spark, url)
    joined = frame.select(append_in_between("offset").alias("a")).join(
        frame, F.col("a") == F.col("offset"), "full_outer"
    )
    rows = joined.select("a", "offset").collect()
    assert all(row.a == row.offset for row in rows)


@pytest.mark.tasks
def test_relative_starts_agree_while_others_append(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """A frame in a join and a union with itself, while a writer appends: each side has the same rows.

    There is one checkpoint at most: behind two, a task that begins late cannot read what the others do.
    """
    log.append("t", texts(30))
    done = threading.Event()

    def write() -> None:
        with spark_log.connect(url, durability="os") as other:
            for _ in range(190):
                if not done.is_set():
                    other.append("t", texts(3))

    writer = threading.Thread(target=write)
    frame = load(spark, url, startingOffsets="latest-10", maxRecordsPerPartition=3).select("offset")
    assert frame.count() == 10
    writer.start()
    try:
        for _ in range(3):
            counts = frame.union(frame).groupBy("offset").count().collect()
            found = sorted(row.offset for row in counts)
            assert {row["count"] for row in counts} == {2}
            assert found == list(range(20, found[-1] + 1))
            joined = frame.withColumnRenamed("offset", "a").join(frame, F.col("a") == F.col("offset"), "full_outer")
            assert all(row.a == row.offset for row in joined.collect())
    finally:
        done.set()
        writer.join()


@pytest.mark.tasks
@pytest.mark.parametrize("end", ["4", "latest"])
def test_trimmed_records_are_not_returned_by_a_frame_that_is_used_again(
    spark: SparkSession, url: str, log: spark_log.Log, end: str
) -> None:
    """Their objects are still there, with an end that was fixed at load() as well as with one that is open."""
    log.append("t", texts(6))
    frame = load(spark, url, endingOffsets=end)
    assert frame.count() == (4 if end == "4" else 6)
    log.admin.delete_records({TopicPartition("t", 0): 3})
    assert values(frame) == as_bytes(range(3, 4 if end == "4" else 6))


# Promise: spark-read.md#options-of-a-read
@pytest.mark.tasks
def test_a_topic_that_was_created_again_does_not_give_its_old_records(
    spark: SparkSession, url: str, log: spark_log.Log
) -> None:
    """A range that was planned is a loss; a frame of all that is there has what is there now."""
    log.append("t", texts(6))
    everything, planned = load(spark, url), load(spark, url, endingOffsets="4")
    assert (everything.count(), planned.count()) == (6, 4)
    log.admin.delete_topics(["t"])
    log.append("t", texts(2, 100))
    assert values(everything) == as_bytes([100, 101])
    with pytest.raises(
        Exception, match=r"offsets \[0, 4\) of t-0 are gone, 4 records: topic 't' was deleted and created again"
    ):
        planned.count()


def test_a_start_is_settled_once(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """A group that moves meanwhile, and a frame that is used again: it only grows."""
    log.append("t", texts(6))
    with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.seek(TopicPartition("t", 0), 4)
        consumer.commit()
    frames = [load(spark, url, startingOffsets=start) for start in ("group:g", "latest-2")]
    assert [values(frame) for frame in frames] == [as_bytes([4, 5])] * 2
    log.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 6})
    log.append("t", texts(2, 6))
    assert [values(frame) for frame in frames] == [as_bytes(range(4, 8))] * 2


@pytest.mark.tasks
def test_a_frame_of_an_empty_topic_uses_several_cores_later(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """The number of tasks is settled at load(), by what may run at the same time."""
    log.admin.create_topics([NewTopic("t", 1)])
    frame = load(spark, url, parallelism=4)
    assert frame.count() == 0
    append(spark.range(0, 80_000, 1, 1).selectExpr("string(id) as value"), url)
    shares = frame.groupBy(F.spark_partition_id()).count().collect()
    assert sorted(row["count"] for row in shares) == [10_000, 10_000, 30_000, 30_000]


def test_what_spark_keeps_of_a_frame_fits_what_it_reads_later(
    spark: SparkSession, url: str, log: spark_log.Log
) -> None:
    """A cached frame that was only shown has one partition in memory; the others come later, from a longer log."""
    log.append("t", texts(100))
    frame = load(spark, url, maxRecordsPerPartition=30).cache()
    assert len(frame.take(1)) == 1
    log.append("t", texts(100, 100))
    found = [row.offset for row in frame.collect()]
    frame.unpersist()
    assert len(found) == len(set(found)) and set(range(100)) <= set(found)
    rows = load(spark, url, maxRecordsPerPartition=30).toLocalIterator()
    found = [next(rows).offset]
    log.append("t", texts(100, 200))
    found += [row.offset for row in rows]
    assert found[:200] == list(range(200)) and len(found) == len(set(found))


@pytest.mark.classic("Spark Connect has no RDDs")
def test_rows_come_through_an_rdd(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """A job that is not an SQL query reads the same."""
    log.append("t", texts(100))
    frame = load(spark, url, maxRecordsPerPartition=30)
    assert sorted(frame.rdd.map(lambda row: row.offset).collect()) == list(range(100))


def test_rows_come_through_an_iterator(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """As do actions that stop early."""
    log.append("t", texts(100))
    frame = load(spark, url, maxRecordsPerPartition=30)
    assert [row.offset for row in frame.toLocalIterator()] == list(range(100))
    assert len(frame.limit(7).collect()) == 7 and len(frame.take(3)) == 3 and not frame.isEmpty()


def test_an_empty_frame_creates_the_topic_and_nothing_else(spark: SparkSession, url: str) -> None:
    """Nothing is committed for no rows."""
    append(spark.createDataFrame([], "value string"), url)
    log = spark_log.connect(url)
    assert log.admin.list_topics() == ["t"]
    assert log.admin.list_offsets({TopicPartition("t", 0): spark_log.LATEST}) == {TopicPartition("t", 0): 0}
    assert load(spark, url).count() == 0


# Promise: spark-streams.md#exactly-once, tasks/backfill.md#backfill-history
@pytest.mark.tasks
def test_a_rerun_with_the_same_version_adds_nothing(spark: SparkSession, url: str) -> None:
    """txnAppId and txnVersion: once per version; a higher one adds, a lower one does not."""
    for version, expected in ((3, 2), (3, 2), (4, 4), (2, 4)):
        append(numbers(spark, range(2)), url, txnAppId="nightly", txnVersion=version)
        assert load(spark, url).count() == expected
    append(numbers(spark, range(2)), url, txnAppId="other", txnVersion=3)
    append(numbers(spark, range(2)), url, "u", txnAppId="nightly", txnVersion=3)
    assert load(spark, url).count() == 6 and load(spark, url, "u").count() == 2


# Promise: clients.md#producer
@pytest.mark.tasks
@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_every_compression_reads_back(spark: SparkSession, url: str, compression: str) -> None:
    """And so does the partitioner that is asked for."""
    spark_log.connect(url).admin.create_topics([NewTopic("t", 2)])
    append(numbers(spark, range(10)), url, compression=compression, partitioner="round-robin", durability="os", acks=1)
    assert [row["count"] for row in load(spark, url).groupBy("partition").count().collect()] == [5, 5]
