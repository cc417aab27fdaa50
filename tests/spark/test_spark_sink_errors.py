"""Errors of `spark_log.sink` as users see them, and refusals of Spark that the pages quote."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_log
from tests.spark.builders import DEADLINE_S, load_stream, numbers, started, texts

ROOT = Path(__file__).parents[2]
BEFORE_MAX = 420
"""Characters before the sentence: Spark's names of the query, of the error's class and of the batch function."""


def message(spark: SparkSession, url: str, function: object, checkpoint: Path, *columns: str) -> str:
    """The error of an available-now run whose batches are those columns."""
    stream = load_stream(spark, url, startingOffsets="earliest").selectExpr("value", *columns)
    writer = stream.writeStream.foreachBatch(function)  # type: ignore[arg-type]
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    with pytest.raises(PySparkException) as raised:
        started(writer).awaitTermination(DEADLINE_S)
    return str(raised.value)


CASES = {
    "before tasks run": (
        "'k' as kye",
        "spark_log.errors.InvalidRecord: column 'kye' would be ignored: did you mean 'key'?",
    ),
    "in a task": ("5 as partition", "spark_log.errors.InvalidRecord: a record names partition 5 of topic 't'"),
}


# Promise: spark.md#troubleshooting
@pytest.mark.parametrize("case", CASES)
def test_an_error_of_a_sink_is_its_sentence(spark: SparkSession, log: spark_log.Log, tmp_path: Path, case: str) -> None:
    """The sentence comes first, without a traceback."""
    log.append("t", texts(1))
    column, expected = CASES[case]
    found = message(
        spark, log.url, spark_log.sink(log.url, topic="t", checkpoint=str(tmp_path / "c")), tmp_path / "c", column
    )
    assert "Traceback (most recent call last)" not in found
    assert 0 <= found.find(expected) < BEFORE_MAX, found


def test_an_error_of_the_sink_itself_is_its_sentence(spark: SparkSession, log: spark_log.Log, tmp_path: Path) -> None:
    """Two frames of one batch under one name."""
    log.append("t", texts(1))
    sink = spark_log.sink(log.url, topic="t", checkpoint=str(tmp_path / "c"))

    def twice(frame: DataFrame, batch: int) -> None:
        sink(frame.where("value is null"), batch)
        sink(frame, batch)

    assert "spark_log.sink: batch 0 has two frames for topic 't'" in message(spark, log.url, twice, tmp_path / "c")


# Promise: spark.md#troubleshooting
@pytest.mark.classic("Spark Connect runs the function in another process")
def test_a_function_that_calls_a_sink_can_handle_its_error(
    spark: SparkSession, log: spark_log.Log, tmp_path: Path
) -> None:
    """The error that it gets is one of Spark, as that of any write; its own errors keep their traceback."""
    log.append("t", texts(1))
    sink, seen = spark_log.sink(log.url, topic="t"), list[str]()

    def careful(frame: DataFrame, batch: int) -> None:
        try:
            sink(frame, batch)
        except PySparkException as error:
            seen.append(str(error))
        raise KeyError("of the user")

    found = message(spark, log.url, careful, tmp_path / "c", "'k' as kye")
    assert len(seen) == 1
    assert "column 'kye' would be ignored" in seen[0]
    assert "in careful" in found
    assert "of the user" in found


# Promise: spark.md#limits-of-spark-and-workarounds
@pytest.mark.classic("the words are Spark's, and the same")
def test_pages_have_the_words_of_sparks_refusals(spark: SparkSession, log: spark_log.Log, tmp_path: Path) -> None:
    """So that a search for them leads to the way out: the README, the page on Spark and that on trouble."""
    log.append("t", texts(1))
    before = spark.conf.get("spark.pylog.pushDown")
    spark.conf.set("spark.pylog.pushDown", "false")
    update = load_stream(spark, log.url).writeStream.format("pylog").option("topic", "u").outputMode("update")
    try:
        with pytest.raises(PySparkException) as of_mode:
            numbers(spark, [1]).write.format("pylog").option("topic", "u").save(log.url)
        with pytest.raises(PySparkException) as of_update:
            update.option("checkpointLocation", str(tmp_path / "c")).start(log.url).awaitTermination(DEADLINE_S)
    finally:
        spark.conf.set("spark.pylog.pushDown", before)
    for page in ("README.md", "docs/spark.md", "docs/troubleshooting.md"):
        text = (ROOT / page).read_text()
        for words, raised in (
            ("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", of_mode),
            ("pylog does not support Update mode", of_update),
        ):
            assert words in text, page
            assert words in str(raised.value)
