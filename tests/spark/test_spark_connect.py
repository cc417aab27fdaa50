"""Differences under Spark Connect; the tests that run on both show the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_log
from tests.spark.builders import append, as_bytes, connect_session, load, load_stream, numbers, texts, to_sink, values

only_connect = pytest.mark.parametrize("spark", ["connect"], indirect=True)


# Promise: spark.md#under-spark-connect
@only_connect
def test_a_sink_that_cannot_know_its_query_is_refused(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """A batch does not know its query's id there, and exactly once would be a guess: the message says what to give."""
    log.append("t", texts(1))
    with pytest.raises(Exception, match="give the sink the query's checkpointLocation"):
        to_sink(load_stream(spark, url), spark_log.sink(url, topic="copy"), tmp_path / "checkpoint")
    assert log.admin.list_topics() == ["t"]


@pytest.fixture
def another(server: str) -> Iterator[SparkSession]:
    """A second client of the server."""
    session = connect_session(server)
    yield session
    session.stop()


# Promise: spark.md#how-spark-finds-it
@only_connect
def test_a_client_registers_the_source(spark: SparkSession, another: SparkSession, url: str) -> None:
    """For a server that did not find it automatically; the session then reads and writes."""
    spark_log.register(another)
    append(numbers(another, range(3)), url)
    assert values(load(another, url)) == as_bytes(range(3))


# Promise: spark.md#under-spark-connect
@only_connect
def test_clients_of_one_server_see_each_others_records(spark: SparkSession, another: SparkSession, url: str) -> None:
    """Each query pins its own version, also where frames were loaded before."""
    append(numbers(spark, range(2)), url)
    frames = [load(session, url) for session in (spark, another)]
    assert [frame.count() for frame in frames] == [2, 2]
    append(numbers(another, range(2, 5)), url)
    assert [values(frame) for frame in frames] == [as_bytes(range(5))] * 2


@only_connect
def test_an_option_is_refused_when_the_server_is_asked(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """`load()` of a client asks nothing; the columns do, so that a script can check its options early."""
    batch, stream = load(spark, url, startingOffset="1"), load_stream(spark, url, None)
    for frame, expected in ((batch, "did you mean startingOffsets"), (stream, "found none")):
        with pytest.raises(Exception, match=expected) as error:
            frame.columns  # noqa: B018
        assert "pyspark_pylog/" not in str(error.value)
