"""Which error a set of several bad options shows: the first in the order in which Kafka's connector checks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.options.parse import load_options, read_options

from spark_log.errors import InvalidRequest
from tests.spark.builders import asked, load, load_stream

GENERAL: list[tuple[dict[str, str], dict[str, str], str]] = [
    ({}, {"subscribe": "t"}, "give exactly one of the options subscribe, subscribePattern and assign"),
    ({"startingOffsetsByTimestampStrategy": "x"}, {}, "option startingOffsetsByTimestampStrategy"),
    ({"minPartitions": "0"}, {}, "option minPartitions"),
    ({"maxRecordsPerPartition": "0"}, {}, "option maxRecordsPerPartition"),
    ({"kafka.auto.offset.reset": "x"}, {}, "option kafka.auto.offset.reset"),
    ({"kafka.key.deserializer": "x"}, {}, "option kafka.key.deserializer"),
    ({"kafka.value.deserializer": "x"}, {}, "option kafka.value.deserializer"),
    ({"kafka.enable.auto.commit": "x"}, {}, "option kafka.enable.auto.commit"),
    ({"kafka.interceptor.classes": "x"}, {}, "option kafka.interceptor.classes"),
    ({}, {"path": "/log"}, "where is the log?"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, {}, "option minOffsetsPerTrigger"),
]
"""(what is wrong, what is missing, the error), in order."""
STREAM = [
    ({"endingOffsets": "latest"}, {}, "option endingOffsets"),
    ({"endingOffsetsByTimestamp": "x"}, {}, "option endingOffsetsByTimestamp"),
    *GENERAL,
]
BATCH = [
    ({"startingOffsets": "latest"}, {}, "option startingOffsets"),
    ({"endingOffsets": "earliest"}, {}, "option endingOffsets"),
    *GENERAL,
    ({"startingOffsets": "9", "endingOffsets": "8"}, {}, "option startingOffsets: every partition would start at 9"),
]


def first_errors(
    steps: list[tuple[dict[str, str], dict[str, str], str]], ask: Callable[[dict[str, str]], object]
) -> list[str]:
    """The error with all that is wrong, then without the first, and so on, each as long as the one that is expected."""
    errors = []
    for number, (_, _, expected) in enumerate(steps):
        given: dict[str, str] = {}
        for wrong, _, _ in reversed(steps[number:]):
            given |= wrong
        for _, missing, _ in steps[:number]:
            given |= missing
        with pytest.raises(InvalidRequest) as error:
            ask(asked("", None, **given) if "path" not in given else asked(given.pop("path"), None, **given))
        errors.append(str(error.value)[: len(expected)])
    return errors


def test_a_stream_shows_the_error_that_kafkas_connector_would_show() -> None:
    """Ends first, then the strategy, splitting, what is refused, the place, and limits that contradict each other."""
    assert first_errors(STREAM, lambda given: read_options(given, streaming=True)) == [step[2] for step in STREAM]


# Promise: spark-read.md#options-of-a-read
def test_a_batch_shows_the_error_that_kafkas_connector_would_show() -> None:
    """Start and end first, then the same, and whether they fit each other last."""
    assert first_errors(BATCH, lambda given: read_options(given, streaming=False)) == [step[2] for step in BATCH]


# Promise: from-kafka.md#what-differs
def test_what_both_refuse_is_said_at_load_in_the_same_order() -> None:
    """Where it is not known yet what kind of read it is."""
    assert first_errors(GENERAL, load_options) == [step[2] for step in GENERAL]


@pytest.mark.parametrize("end", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_what_an_end_makes_a_batch_is_checked_as_one_at_load(end: str) -> None:
    """A stream has none, so nothing has to wait until Spark says which of the two it is."""
    ends = {"endingOffsets": "latest", "endingOffsetsByTimestamp": '{"t":{"0":5}}'}
    with pytest.raises(InvalidRequest, match="option startingOffsets: a batch cannot start at latest"):
        load_options(asked("/log", **{"startingOffsets": "latest", end: ends[end]}))


def test_a_start_at_latest_may_be_a_stream_at_load() -> None:
    """Spark asks the same of the source for both, so a batch of it is refused when its first query is planned."""
    load_options(asked("/log", startingOffsets="latest"))
    with pytest.raises(InvalidRequest, match="a batch cannot start at latest"):
        read_options(asked("/log", startingOffsets="latest"), streaming=False)


# Promise: spark.md#pylog-in-spark
def test_a_name_that_nobody_knows_is_the_first_of_all() -> None:
    """It may be why another one is missing."""
    with pytest.raises(InvalidRequest, match="option subscibe is not known; did you mean subscribe"):
        read_options(asked("/log", None, subscibe="t", endingOffsets="latest"), streaming=True)


# Promise: from-kafka.md#what-differs
@pytest.mark.classic("a Spark Connect client asks the server nothing at load()")
@pytest.mark.parametrize("read", [load, load_stream], ids=["batch", "stream"])
@pytest.mark.parametrize("options", [{"minPartitions": "0"}, {"kafka.auto.offset.reset": "latest"}], ids=str)
def test_spark_says_it_at_load(
    spark: SparkSession, url: str, read: Callable[..., object], options: dict[str, str]
) -> None:
    """For batches and streams."""
    with pytest.raises(Exception, match=f"option {next(iter(options))}"):
        read(spark, url, **options)
