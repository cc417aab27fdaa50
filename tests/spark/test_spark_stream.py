"""Streams: from the log, into the log, and both; restarted, replayed, and next to each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import spark_log
from spark_log import NewTopic, TopicPartition
from tests.spark.builders import (
    DEADLINE_S,
    Batches,
    append,
    as_bytes,
    copy,
    is_connect,
    last_commit,
    load_stream,
    texts,
    to_sink,
    wait_until,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def copied(log: spark_log.Log, topic: str = "copy") -> list[bytes]:
    return sorted(log.read(topic).column("value").to_pylist())


def test_an_available_now_run_reads_what_there_is(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """In batches of exactly maxOffsetsPerTrigger; the next run continues from there."""
    log.admin.create_topics([NewTopic("t", 2)])
    log.append("t", texts(13), partitioner="round-robin")
    batches = Batches()
    frame = load_stream(spark, url, maxOffsetsPerTrigger=5)
    to_sink(frame, batches, checkpoint)
    assert [len(batch) for batch in batches.seen] == [5, 5, 3]
    log.append("t", texts(2, 13))
    to_sink(frame, batches, checkpoint)
    assert sorted(batches.rows) == list(range(15))


@pytest.mark.tasks
def test_max_bytes_per_trigger_limits_batches(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """A backlog does not come as one batch."""
    for first in range(0, 40, 10):
        log.append("t", [{"value": b"%d" % (first + n) + b" " * 1000} for n in range(10)], compression="none")
    batches = Batches()
    to_sink(load_stream(spark, url, maxBytesPerTrigger="12k"), batches, checkpoint)
    assert len(batches.seen) >= 4 and sorted(batches.rows) == list(range(40))


def test_a_stream_starts_at_the_end_by_default(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """Later records are read by the next run, from the checkpoint."""
    log.append("t", texts(3))
    batches = Batches()
    frame = spark.readStream.format("pylog").option("subscribe", "t").load(url)
    to_sink(frame, batches, checkpoint)
    log.append("t", texts(2, 3))
    to_sink(frame, batches, checkpoint)
    assert batches.rows == [3, 4]


# Promise: ../README.md#why, spark-streams.md#exactly-once
def test_a_copy_restarted_from_its_checkpoint_has_every_record_once(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """Also when the last batch is run again because Spark did not note that it was done."""
    log.append("t", texts(10))
    frame = load_stream(spark, url, maxOffsetsPerTrigger=4)
    copy(frame, url, "copy", checkpoint)
    assert copied(log) == as_bytes(range(10))
    last_commit(checkpoint).unlink()
    copy(frame, url, "copy", checkpoint)
    assert copied(log) == as_bytes(range(10))
    log.append("t", texts(5, 10))
    copy(frame, url, "copy", checkpoint)
    assert copied(log) == as_bytes(range(15))


# Promise: ../README.md#why
@pytest.mark.tasks
def test_a_replayed_batch_of_many_topics_adds_nothing(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """One record commits all topics of a micro-batch."""
    log.append("t", texts(6))
    frame = load_stream(spark, url).selectExpr("concat('topic-', int(string(value)) % 3) as topic", "value")
    for _ in range(2):
        writer = frame.writeStream.format("pylog").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start(url).awaitTermination(DEADLINE_S)
        assert [log.read(f"topic-{n}").num_rows for n in range(3)] == [2, 2, 2]
        last_commit(checkpoint).unlink()


def test_two_appends_in_one_foreach_batch_both_land(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """Though Spark gives both the same query and batch id."""
    log.append("t", texts(3))

    def twice(frame: DataFrame, batch_id: int) -> None:
        append(frame.select("value"), url, "copy")
        append(frame.select("value"), url, "copy")

    to_sink(load_stream(spark, url), twice, checkpoint)
    assert copied(log) == as_bytes([0, 0, 1, 1, 2, 2])


# Promise: spark-streams.md#exactly-once
@pytest.mark.tasks
def test_a_sink_appends_aggregates_exactly_once(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """spark_log.sink, update mode, with the last batch run again."""
    log.append("t", [{"key": key, "value": "x"} for key in "aab"])
    totals = load_stream(spark, url).groupBy("key").count().selectExpr("key", "string(count) as value")
    sink = spark_log.sink(url, topic="totals", **where(spark, checkpoint))
    for _ in range(2):
        to_sink(totals, sink, checkpoint, "update")
        assert copied(log, "totals") == as_bytes([1, 2])
        last_commit(checkpoint).unlink()
    to_sink(totals, sink, checkpoint, "update")
    log.append("t", [{"key": "b", "value": "x"}])
    to_sink(totals, sink, checkpoint, "update")
    assert copied(log, "totals") == as_bytes([1, 2, 2])


def where(spark: SparkSession, checkpoint: Path) -> dict[str, str]:
    """Options that a sink needs under Spark Connect."""
    return {"checkpoint": str(checkpoint)} if is_connect(spark) else {}


# Promise: spark-streams.md#exactly-once
def test_two_sinks_of_one_query_are_told_apart_by_name(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """Two appends to one topic, each exactly once."""
    log.append("t", texts(2))
    one, two = (spark_log.sink(url, topic="copy", name=name, **where(spark, checkpoint)) for name in ("one", "two"))

    def both(frame: DataFrame, batch_id: int) -> None:
        one(frame, batch_id)
        two(frame, batch_id)

    for _ in range(2):
        to_sink(load_stream(spark, url), both, checkpoint)
        assert copied(log) == as_bytes([0, 0, 1, 1])
        last_commit(checkpoint).unlink()


# Promise: spark-streams.md#exactly-once
@pytest.mark.tasks
def test_a_reset_checkpoint_under_one_producer_id_loses_nothing(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """Batch 0 of the new query is not taken for batch 0 of the old one."""
    log.append("t", texts(4))
    copy(load_stream(spark, url), url, "copy", tmp_path / "one", producerId="copier")
    assert copied(log) == as_bytes(range(4))
    log.append("t", texts(3, 4))
    frame = load_stream(spark, url, startingOffsets="4")
    copy(frame, url, "copy", tmp_path / "two", producerId="copier")
    assert copied(log) == as_bytes(range(7))
    last_commit(tmp_path / "two").unlink()
    copy(frame, url, "copy", tmp_path / "two", producerId="copier")
    assert copied(log) == as_bytes(range(7))


# Promise: spark-streams.md#exactly-once
@pytest.mark.tasks
def test_the_old_query_of_a_producer_id_is_fenced(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """Once a new one has taken over, it cannot write any more."""
    log.append("t", texts(2))
    copy(load_stream(spark, url), url, "copy", tmp_path / "old", producerId="copier")
    copy(load_stream(spark, url), url, "copy", tmp_path / "new", producerId="copier")
    log.append("t", texts(1, 2))
    with pytest.raises(Exception, match="(?i)taken over|fenced|newer"):
        copy(load_stream(spark, url), url, "copy", tmp_path / "old", producerId="copier")
    assert copied(log) == as_bytes([0, 0, 1, 1])


@pytest.mark.tasks
@pytest.mark.parametrize("fail", [True, False])
def test_trimmed_records_stop_a_stream_or_are_passed_over(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path, fail: bool
) -> None:
    """failOnDataLoss: true stops with the range that is gone, false continues with the existing records."""
    log.append("t", texts(4))
    batches = Batches()
    to_sink(load_stream(spark, url), batches, checkpoint)
    log.append("t", texts(6, 4))
    log.admin.delete_records({TopicPartition("t", 0): 7})
    frame = load_stream(spark, url, failOnDataLoss=str(fail))
    if fail:
        with pytest.raises(Exception, match=r"offsets \[4, 7\) of t-0 are gone"):
            to_sink(frame, batches, checkpoint)
        return
    to_sink(frame, batches, checkpoint)
    assert batches.rows == [0, 1, 2, 3, 7, 8, 9]


# Promise: spark-streams.md#streams
@pytest.mark.tasks
def test_a_running_query_sees_an_append_soon(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """The default trigger: the source waits for news instead of being asked for it 70 times a second."""
    log.append("t", texts(1))
    batches = Batches()
    query = batches.writer(load_stream(spark, url)).option("checkpointLocation", str(checkpoint)).start()
    assert wait_until(lambda: batches.seen == [[0]])
    for number in (1, 2):
        log.append("t", texts(1, number))
        assert wait_until(lambda: [number] in batches.seen)  # noqa: B023
    progress: dict[str, Any] = json.loads(query.recentProgress[-1].json)
    assert progress["sources"][0]["latestOffset"] is not None
    query.stop()
    assert batches.rows == [0, 1, 2]


class Ends(StreamingQueryListener):
    """Notes where each batch of a topic ended."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.ended = False

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  Spark's name
        self.seen += [json.loads(source.endOffset)["t"]["0"] for source in event.progress.sources]

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  Spark's name
        self.ended = True


def test_a_listener_is_told_the_offsets(spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path) -> None:
    """As tools that watch streams read them."""
    log.append("t", texts(13))
    listener = Ends()
    spark.streams.addListener(listener)
    try:
        copy(load_stream(spark, url, maxOffsetsPerTrigger=5), url, "copy", checkpoint)
        assert wait_until(lambda: listener.ended)
    finally:
        spark.streams.removeListener(listener)
    assert listener.seen == [5, 10, 13]


def test_progress_tells_how_many_rows_were_written(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """By batch, as of Kafka's sink."""
    log.append("t", texts(13))
    query = copy(load_stream(spark, url, maxOffsetsPerTrigger=5), url, "copy", checkpoint)
    told = [progress["sink"]["numOutputRows"] for progress in query.recentProgress]
    assert [count for count in told if count > 0] == [5, 5, 3]


@pytest.mark.tasks
def test_two_queries_write_one_topic_at_once(spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """Every record of both, once."""
    log.append("t", texts(40))
    queries = []
    for name in ("one", "two"):
        writer = load_stream(spark, url, maxOffsetsPerTrigger=10).writeStream.format("pylog").option("topic", "copy")
        writer = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True)
        queries.append(writer.start(url))
    for query in queries:
        query.awaitTermination(DEADLINE_S)
    assert copied(log) == as_bytes([*range(40), *range(40)])


@pytest.mark.tasks
def test_headers_keys_and_times_pass_through_a_stream(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """A copy is a copy."""
    log.append("t", [{"key": "k", "value": None, "timestamp": 1_769_853_600_000, "headers": [("h", b"1")]}])
    copy(load_stream(spark, url, includeHeaders="true"), url, "copy", checkpoint)
    one, two = (log.read(topic).select(["key", "value", "timestamp", "headers"]).to_pylist() for topic in ("t", "copy"))
    assert one == two


@pytest.mark.tasks
def test_a_stream_of_rows_that_all_filter_away_writes_nothing(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """An empty batch commits nothing, and the next one is still accepted."""
    log.append("t", texts(2))
    frame = load_stream(spark, url).where("string(value) >= '2'")
    copy(frame, url, "copy", checkpoint)
    assert copied(log) == []
    log.append("t", texts(2, 2))
    copy(frame, url, "copy", checkpoint)
    assert copied(log) == as_bytes([2, 3])
