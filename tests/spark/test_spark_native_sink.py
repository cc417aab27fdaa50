"""Streams whose rows are encoded in the JVM: the same records and errors as through Python, once each, also when a
query changes its path.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark_pylog.native.write_plan import MARK

import spark_log
from spark_log.recovery.verify import verify
from tests.spark.builders import append, copy, last_commit, load_stream, numbers, texts
from tests.spark.native_paths import MARKS, increase_of
from tests.spark.test_spark_native_write import RULES, create, few, of_both, random_frame, rows_with, summary

pytestmark = MARKS
__all__ = ["few"]


@pytest.fixture
def encoded(classic: SparkSession) -> Callable[[], int]:
    """How many tasks the JVM has encoded to their last row since the last call."""
    writer: Any = classic._jvm.io.pylog.spark.PylogWriter  # type: ignore[union-attr]
    return increase_of(writer.encoded)


def streamed(frame: DataFrame, folder: Path) -> DataFrame:
    """A stream with the rows of a frame."""
    frame.write.mode("append").parquet(str(folder))
    return frame.sparkSession.readStream.schema(frame.schema).parquet(str(folder))


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.usefixtures("few")
def test_random_streams_have_the_same_rows(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, encoded: Callable[[], int]
) -> None:
    """In the same partitions, and in their order."""
    rng = random.Random(7)
    counts = [1, 49, 120, 50]
    for number, count in enumerate(counts):
        topic = f"t{number}"
        create(log, topic, 3, message_timestamp_before_max_ms=str(2**62), max_message_bytes="10000000")
        stream = streamed(random_frame(classic, rng, count), tmp_path / topic)
        copy(stream, url, topic, tmp_path / f"{topic}-native")
        copy(stream, url, f"{topic}-python", tmp_path / f"{topic}-python", nativeRead="false")
        native, python = of_both(log, topic)
        assert summary(native, stream.columns) == summary(python, stream.columns)
        assert native
    assert encoded() == 3
    assert verify(log, deep=True) == []


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.parametrize("first", ["true", "false"])
@pytest.mark.usefixtures("few")
def test_a_batch_that_is_run_again_by_the_other_path_is_written_once(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, encoded: Callable[[], int], first: str
) -> None:
    """Spark runs a batch again whose commit it does not find; later batches follow by either path."""
    create(log, "to", 2)
    checkpoint = tmp_path / "checkpoint"
    stream, other = load_stream(classic, url, maxOffsetsPerTrigger="10"), "true" if first == "false" else "false"
    log.append("t", texts(30))
    copy(stream, url, "to", checkpoint, nativeRead=first)
    last_commit(checkpoint).unlink()
    log.append("t", texts(5, first=30))
    copy(stream, url, "to", checkpoint, nativeRead=other)
    log.append("t", texts(5, first=35))
    copy(stream, url, "to", checkpoint, nativeRead=first)
    assert sorted(int(row["value"]) for row in log.read("to").to_pylist()) == list(range(40))
    assert encoded() > 0


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.parametrize("bad", ["partition=3", "key=cast(null as string)"])
@pytest.mark.usefixtures("few")
def test_bad_rows_of_a_stream_are_the_same(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, encoded: Callable[[], int], bad: str
) -> None:
    """Errors, and dead letters."""
    create(log, "t", 2, **RULES)
    stream = streamed(rows_with(classic, bad), tmp_path / "rows")
    said = []
    for topic, native in (("t", "true"), ("t-python", "false")):
        with pytest.raises(PySparkException) as error:
            copy(stream, url, topic, tmp_path / f"refused-{native}", nativeRead=native)
        sentence = re.search(r"InvalidRecord: (.*badRecords[^)]*\))", str(error.value))
        assert sentence is not None
        said.append(sentence[1].replace("t-python", "t"))
        options = {"nativeRead": native, "badRecords": f"topic:dead-{native}"}
        copy(stream, url, topic, tmp_path / f"kept-{native}", **options)
    assert said[0] == said[1]
    native_rows, python_rows = of_both(log, "t")
    assert [(r["key"], r["value"]) for r in native_rows] == [(r["key"], r["value"]) for r in python_rows]
    assert len(native_rows) == 299
    assert log.read("dead-true").num_rows == log.read("dead-false").num_rows == 1
    assert encoded() == 0


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.usefixtures("few")
def test_a_changelog_in_update_mode_is_encoded(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, encoded: Callable[[], int]
) -> None:
    create(log, "to", 2)
    log.append("t", [{"key": b"k%d" % (number % 50), "value": b"v"} for number in range(500)])
    counts = load_stream(classic, url).groupBy("key").count().selectExpr("key", "string(count) value")
    for native, topic in (("true", "to"), ("false", "to-python")):
        writer = counts.writeStream.format("pylog").outputMode("update").options(topic=topic, nativeRead=native)
        query = writer.option("checkpointLocation", str(tmp_path / native)).trigger(availableNow=True).start(url)
        query.awaitTermination()
    native_rows, python_rows = of_both(log, "to")
    changes = {(r["key"], r["value"], r["partition"]) for r in native_rows}
    assert changes == {(r["key"], r["value"], r["partition"]) for r in python_rows}
    assert {value for _, value, _ in changes} == {b"10"}
    assert encoded() > 0


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.usefixtures("few")
def test_rules_are_those_of_the_writer(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int]
) -> None:
    """Other bytes that look like rules are not taken for them: here the name of the mark is in an option."""
    create(log, "t", 3)
    fake = MARK.decode() + "checksum and length"
    frame = numbers(classic, range(60))
    append(frame, url, txnAppId=fake, txnVersion="1")
    append(frame, url, "t-python", nativeRead="false")
    native, python = of_both(log, "t")
    assert sorted(row["value"] for row in native) == sorted(row["value"] for row in python)
    assert encoded() == 1
