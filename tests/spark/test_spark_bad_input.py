"""Wrong options and wrong data: one sentence that names what is wrong, and nothing half written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_log
from spark_log import NewTopic
from tests.spark.builders import DEADLINE_S, append, copy, load, load_stream, numbers, texts

OURS = re.compile(r"pyspark_pylog/|spark_log/|Traceback \(most recent call last\)")


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The message that the user reads, without a traceback of pylog."""
    message = str(error.value)
    assert not OURS.search(message), message
    return message


def read(spark: SparkSession, url: str, **options: Any) -> str:
    with pytest.raises(Exception) as error:  # noqa: PT011  Spark's kinds differ by version
        load(spark, url, None, **options).collect()
    return sentence(error)


SHOWN = [({"assign": "t"}, "option assign: not JSON"), ({"subscribe": "missing"}, "topic 'missing' does not exist")]


@pytest.mark.parametrize(("options", "expected"), SHOWN, ids=["at load", "in planning"])
def test_spark_shows_the_sentence_alone(
    spark: SparkSession, url: str, log: spark_log.Log, options: dict[str, str], expected: str
) -> None:
    """Without a traceback of ours."""
    log.append("t", texts(3))
    assert expected in read(spark, url, **options)


# Promise: spark.md#pylog-in-spark
@pytest.mark.classic("a Spark Connect client asks the server nothing at load()")
def test_an_option_is_refused_when_it_is_loaded(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """`load()` says so, for batches and streams, not the first action an hour later."""
    with pytest.raises(Exception, match="did you mean startingOffsets") as error:
        load(spark, url, startingOffset="1")
    sentence(error)
    with pytest.raises(Exception, match="found none") as error:
        load_stream(spark, url, None)
    sentence(error)


def test_where_there_is_no_log_nothing_is_read(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """The message has the URL, and reading creates nothing there."""
    assert url in read(spark, url, subscribe="t")
    assert not Path(url).exists()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "letter.txt").write_text("hello")
    assert str(tmp_path / "files") in read(spark, str(tmp_path / "files"), subscribe="t")


def test_a_read_needs_a_url(spark: SparkSession) -> None:
    """And says how it is given."""
    with pytest.raises(Exception, match="where is the log") as error:
        spark.read.format("pylog").option("subscribe", "t").load().collect()
    sentence(error)


@pytest.mark.tasks
def test_an_address_without_a_coordinator(spark: SparkSession) -> None:
    """kafka.bootstrap.servers names a coordinator; where none answers, the address is in the error."""
    reader = spark.read.format("pylog").option("subscribe", "t")
    with pytest.raises(Exception, match="127.0.0.1:1: it does not answer") as error:
        reader.option("kafka.bootstrap.servers", "127.0.0.1:1").load().collect()
    sentence(error)


SCHEMAS = [
    ("key double", "column 'key' is binary or string, not double"),
    ("offset int", "column 'offset' is bigint, not int"),
    ("price double", "there is no column 'price'; the columns are key, value"),
]


@pytest.mark.parametrize(("schema", "expected"), SCHEMAS)
def test_a_schema_that_cannot_be_is_refused(
    spark: SparkSession, url: str, log: spark_log.Log, schema: str, expected: str
) -> None:
    """A user's schema is a projection, not a cast."""
    log.append("t", texts(1))
    with pytest.raises(Exception, match=re.escape(expected)) as error:
        spark.read.format("pylog").option("subscribe", "t").schema(schema).load(url).collect()
    sentence(error)


# Promise: spark.md#columns
def test_nulls_where_the_schema_has_none_are_refused(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Spark believes a schema, and would fail without a word of the column."""
    log.append("t", [{"key": "k", "value": "v"}, {"value": "w"}])
    reader = spark.read.format("pylog").option("subscribe", "t")
    assert reader.schema("offset bigint not null, value binary not null").load(url).count() == 2
    with pytest.raises(
        Exception, match="column 'key' is NOT NULL there, and null between offsets 0 and 1 of t-0"
    ) as error:
        reader.schema("key binary not null").load(url).collect()
    sentence(error)


FRAMES = [
    ("id as value", "column 'value' is bigint, expected string or binary"),
    ("string(id) as value, 7 as partition", "partition 7"),
    ("string(id) as value, -1 as partition", "partition -1"),
    ("repeat('x', 2000000) as value", "larger than max.message.bytes=1048588 of topic 't'"),
    ("string(id) as value, array(struct(string(null) as key, X'00' as value)) as headers", "header"),
]


@pytest.mark.parametrize(("columns", "expected"), FRAMES)
def test_a_frame_that_cannot_be_written_is_refused(
    spark: SparkSession, url: str, log: spark_log.Log, columns: str, expected: str
) -> None:
    """The column is named, and nothing of the frame is in the log, also of tasks that had no bad row."""
    log.append("t", texts(1))
    with pytest.raises(Exception) as error:  # noqa: PT011
        append(spark.range(0, 3, 1, 2).selectExpr(*split_columns(columns)), url)
    assert expected in sentence(error)
    assert log.read("t").num_rows == 1


# Promise: tasks/keep-the-latest.md#every-record-has-a-key
@pytest.mark.tasks
def test_a_frame_without_keys_is_refused_for_a_compacted_topic(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """A batch and a stream: one row without a key among others, and nothing of the frame is in the log."""
    log.admin.create_topics([NewTopic("latest", 2, {"cleanup.policy": "compact"})])
    keys = "if(id = 7, null, string(id % 3)) as key"
    with pytest.raises(Exception, match="a record of topic 'latest' has no key") as error:
        append(spark.range(0, 10, 1, 2).selectExpr(keys, "'v' as value"), url, "latest")
    sentence(error)
    log.append("t", [{"value": "no key"}])
    with pytest.raises(Exception, match="a record of topic 'latest' has no key"):
        copy(load_stream(spark, url), url, "latest", tmp_path / "checkpoint")
    assert log.read("latest").num_rows == 0
    append(spark.range(0, 10, 1, 2).selectExpr("string(id % 3) as key", "'v' as value"), url, "latest")
    assert log.read("latest").num_rows == 10


def split_columns(text: str) -> list[str]:
    """At commas outside of parentheses."""
    return re.split(r", (?![^(]*\))", text)


@pytest.mark.tasks
def test_a_topic_column_cannot_name_what_is_no_topic(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """Neither a path out of the log nor a character that Kafka refuses."""
    for name in ("../../out", "a/b", ""):
        with pytest.raises(Exception, match="topic") as error:
            append(spark.sql(f"select '{name}' as topic, 'v' as value"), url, None)
        sentence(error)
    assert spark_log.connect(url).admin.list_topics() == [] and not (tmp_path / "out").exists()


# Promise: spark.md#limits-of-spark-and-workarounds
def test_overwriting_is_refused(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """A log is appended to; what is there stays."""
    log.append("t", texts(1))
    with pytest.raises(Exception, match="appended to, not overwritten") as error:
        numbers(spark, [1]).write.format("pylog").mode("overwrite").option("topic", "t").save(url)
    sentence(error)
    assert log.read("t").num_rows == 1


# Promise: spark.md#limits-of-spark-and-workarounds
@pytest.mark.tasks
def test_complete_mode_is_refused(spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """Spark hands it over as an overwrite, batch by batch."""
    log.append("t", texts(1))
    counts = load_stream(spark, url).groupBy("value").count().selectExpr("value")
    writer = counts.writeStream.format("pylog").option("topic", "u").outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start(url)
    with pytest.raises(Exception, match="appended to, not overwritten"):
        query.awaitTermination(DEADLINE_S)


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        ({"continuous": "1 second"}, "does not support continuous processing"),
        ({"realTime": "5 seconds"}, "REAL_TIME_MODE"),
    ],
    ids=["continuous", "real time"],
)
def test_spark_refuses_what_is_no_micro_batch(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, trigger: dict[str, str], expected: str
) -> None:
    """Of any Python source; micro-batches are the way."""
    log.append("t", texts(1))
    writer = load_stream(spark, url).writeStream.format("console").outputMode("update").trigger(**trigger)
    with pytest.raises(PySparkException, match=expected):
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(DEADLINE_S)


# Promise: spark-write.md#options-of-a-write
@pytest.mark.tasks
def test_a_topic_is_not_created_where_that_is_switched_off(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """auto.create.topics.enable=false: the command that creates it is named."""
    log.admin.incremental_alter_configs({None: {"auto.create.topics.enable": "false"}})
    with pytest.raises(Exception, match="topic 't' does not exist .*pylog topic create") as error:
        append(numbers(spark, [1]), url)
    sentence(error)


def test_a_corrupt_object_stops_the_read(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """With its name and the partition; nothing is skipped."""
    log.admin.create_topics([NewTopic("t", 1)])
    log.append("t", texts(100))
    (path,) = Path(url, "data").rglob("*.seg")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    message = read(spark, url, subscribe="t")
    assert path.name in message and "'t'" in message
