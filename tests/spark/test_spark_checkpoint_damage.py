"""Queries whose checkpoint is behind the log: lost files, an older copy, two runs at the same time."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark_pylog.sink.source_offsets import fingerprint_of
from pyspark_pylog.sink.writer import TaskWritten, stream_writer

import spark_log
from spark_log.errors import SequenceConflict
from spark_log.metadata.commits.last_commit import source_offsets
from tests.logged import logged
from tests.spark.builders import (
    DEADLINE_S,
    Batches,
    as_bytes,
    copy,
    environment,
    is_connect,
    load_stream,
    script,
    texts,
    to_sink,
    wait_until,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def forget(checkpoint: Path, batches: Iterable[int], *kinds: str) -> None:
    """Delete batches from the checkpoint, as a power cut does before Spark's files are on the disk."""
    for kind in kinds or ("offsets", "commits"):
        for batch in batches:
            for name in (str(batch), f".{batch}.crc"):
                (checkpoint / kind / name).unlink(missing_ok=True)


def copied(log: spark_log.Log, topic: str = "copy") -> list[bytes]:
    return sorted(log.read(topic).column("value").to_pylist())


def three_batches(spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path, **options: Any) -> None:
    """Of two records each; then the checkpoint forgets the last two of them, and two records come."""
    log.append("t", texts(6))
    copy(load_stream(spark, url, maxOffsetsPerTrigger=2), url, "copy", checkpoint, **options)
    assert copied(log) == as_bytes(range(6))
    forget(checkpoint, [1, 2])
    log.append("t", texts(2, 6))


# -------------------------------------------------------------------------------------------------------------- another log


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
@pytest.mark.parametrize("is_sink", [False, True], ids=["stream", "sink"])
def test_a_query_writes_to_no_other_log_than_before(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path, tmp_path: Path, is_sink: bool
) -> None:
    """The disk of its log is away: it begins no log in the empty folder, and does not use one that is begun there."""
    place = tmp_path / "place" / "log"
    log.append("t", texts(2))
    frame = load_stream(classic, url)

    def run() -> None:
        if is_sink:
            to_sink(frame, spark_log.sink(str(place), topic="copy", checkpoint=str(checkpoint)), checkpoint)
        else:
            copy(frame, str(place), "copy", checkpoint)

    run()
    ((noted,),) = [[*(checkpoint / "pylog").iterdir()]]
    assert noted.read_text() == spark_log.connect(place, create=False).cluster_id
    log.append("t", texts(2, 2))
    place.rename(tmp_path / "disk")
    gone = f"has written to the log {noted.read_text()}, which is not there any more: bring its disk back, or start"
    with pytest.raises(StreamingQueryException, match=gone) as raised:
        run()
    assert "topic create" not in str(raised.value)
    assert not place.exists()
    other = spark_log.connect(place)
    version = other.journal.state.version
    with pytest.raises(StreamingQueryException, match=f"Start the query with a new checkpoint.* delete {noted}"):
        run()
    assert other.journal.refresh().version == version
    place.rename(tmp_path / "begun")
    (tmp_path / "disk").rename(place)
    run()
    assert copied(spark_log.connect(place)) == as_bytes(range(4))
    for folder in (place, checkpoint):
        shutil.rmtree(folder)
    run()
    assert copied(spark_log.connect(place)) == as_bytes(range(4)), "a new query begins a new log"


# ---------------------------------------------------------------------------------------------------- streams into the log


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
def test_a_batch_older_than_the_last_one_in_the_log_is_refused(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """Its rows would be lost: the message has both numbers and the ways out."""
    three_batches(spark, url, log, checkpoint)
    with pytest.raises(PySparkException) as raised:
        copy(load_stream(spark, url, maxOffsetsPerTrigger=2), url, "copy", checkpoint)
    told = str(raised.value)
    assert "this is batch 1, and the last batch of the query in the log is 2 (version " in told
    assert "set producerId to a new name" in told and "onOlderBatch=skip" in told
    assert copied(log) == as_bytes(range(6))


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
def test_a_new_producer_id_writes_the_batches_again(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """The first way out: nothing is lost, rows written after the checkpoint exist twice, and the query continues."""
    three_batches(classic, url, log, checkpoint)
    frame = load_stream(classic, url, maxOffsetsPerTrigger=2)
    copy(frame, url, "copy", checkpoint, producerId="copier-2")
    assert copied(log) == as_bytes([*range(6), *range(2, 8)])
    log.append("t", texts(1, 8))
    copy(frame, url, "copy", checkpoint, producerId="copier-2")
    assert copied(log) == as_bytes([*range(6), *range(2, 9)])


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
def test_a_new_checkpoint_takes_a_producer_id_over(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path, tmp_path: Path
) -> None:
    """The other way out in the message of a query with a producerId: a new epoch, whose batches count from 0."""
    three_batches(classic, url, log, checkpoint, producerId="copier")
    with pytest.raises(StreamingQueryException, match="new checkpoint, which takes over producerId 'copier'"):
        copy(load_stream(classic, url, maxOffsetsPerTrigger=2), url, "copy", checkpoint, producerId="copier")
    frame = load_stream(classic, url, startingOffsets='{"t":{"0":6}}', maxOffsetsPerTrigger=1)
    copy(frame, url, "copy", tmp_path / "new", producerId="copier")
    assert copied(log) == as_bytes(range(8))


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
def test_older_batches_are_skipped_where_that_is_asked_for(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """The other way out: the log has what it had, and what comes later is written."""
    three_batches(classic, url, log, checkpoint)
    frame = load_stream(classic, url, maxOffsetsPerTrigger=2)
    copy(frame, url, "copy", checkpoint, onOlderBatch="skip")
    assert copied(log) == as_bytes(range(8))


def test_a_batch_that_was_planned_again_alike_is_a_repeat(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """Its file of offsets was lost and nothing has come since: the same records, the same batch, let go at another
    time.
    """
    log.append("t", texts(6))
    frame = load_stream(classic, url, maxOffsetsPerTrigger=2, minOffsetsPerTrigger=1)
    copy(frame, url, "copy", checkpoint)
    forget(checkpoint, [2])
    copy(frame, url, "copy", checkpoint)
    log.append("t", texts(2, 6))
    copy(frame, url, "copy", checkpoint)
    assert copied(log) == as_bytes(range(8))


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
def test_the_last_batch_with_more_rows_is_refused(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """It has grown since.  Without the checkpoint in Spark's settings, a sink compares only the rows."""
    log.append("t", texts(4))
    copy(load_stream(classic, url, maxOffsetsPerTrigger=2), url, "copy", checkpoint)
    forget(checkpoint, [1])
    log.append("t", texts(2, 4))
    frame = load_stream(classic, url)
    with pytest.raises(StreamingQueryException, match="batch 1 is in the log .* read other source offsets"):
        copy(frame, url, "copy", checkpoint)
    classic.conf.set("spark.sql.streaming.checkpointLocation", str(checkpoint.parent))
    try:
        writer = frame.writeStream.format("pylog").option("topic", "copy").queryName(checkpoint.name)
        query = writer.trigger(availableNow=True).start(url)
        with pytest.raises(StreamingQueryException, match="commit 1 has 4 rows, and in the log it has 2 rows"):
            query.awaitTermination()
    finally:
        classic.conf.unset("spark.sql.streaming.checkpointLocation")
    assert copied(log) == as_bytes(range(4))


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
def test_the_last_batch_with_other_records_in_the_same_number_is_refused(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """maxOffsetsPerTrigger makes all batches as large: the source offsets tell them apart."""
    log.admin.create_topics([spark_log.NewTopic("t", 2)])
    log.append("t", [{**row, "partition": 0} for row in texts(4)])
    frame = load_stream(classic, url, maxOffsetsPerTrigger=2).select("value")
    copy(frame, url, "copy", checkpoint)
    forget(checkpoint, [1])
    log.append("t", [{**row, "partition": 1} for row in texts(4, 4)])
    with pytest.raises(StreamingQueryException, match="batch 1 is in the log .* read other source offsets"):
        copy(frame, url, "copy", checkpoint)
    assert copied(log) == as_bytes(range(4))


def test_an_older_copy_of_a_checkpoint_is_noticed(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path, tmp_path: Path
) -> None:
    """As restored from a backup; with the newer copy the query continues."""
    frame = load_stream(classic, url)
    log.append("t", texts(2))
    copy(frame, url, "copy", checkpoint)
    shutil.copytree(checkpoint, tmp_path / "backup")
    for first in (2, 4):
        log.append("t", texts(2, first))
        copy(frame, url, "copy", checkpoint)
    checkpoint.rename(tmp_path / "newer")
    shutil.copytree(tmp_path / "backup", checkpoint)
    log.append("t", texts(1, 6))
    with pytest.raises(StreamingQueryException, match="this is batch 1, and the last batch .* is 2"):
        copy(frame, url, "copy", checkpoint)
    shutil.rmtree(checkpoint)
    (tmp_path / "newer").rename(checkpoint)
    copy(frame, url, "copy", checkpoint)
    assert copied(log) == as_bytes(range(7))


def batch_of(url: str, number: int, rows: int, **options: str) -> None:
    """A micro-batch of query q, without Spark."""
    schema = StructType().add("value", "string")
    writer = stream_writer({"path": url, "topic": "t", **options}, schema, overwrite=False)
    written = writer.write(iter([pa.record_batch({"value": ["x"] * rows})]))
    assert isinstance(written, TaskWritten)
    writer.commit([replace(written, query_id="q", batch_id=number)], number)


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
def test_what_is_not_written_is_in_the_drivers_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A repeat, and each batch that is skipped on request, with the rows that Spark's progress counts as written."""
    with caplog.at_level(logging.INFO, "spark_log"):
        for number, rows in ((4, 2), (5, 3), (5, 3)):
            batch_of(url, number, rows)
        for number, rows in ((4, 2), (5, 1)):
            with pytest.raises(SequenceConflict):
                batch_of(url, number, rows)
            batch_of(url, number, rows, onolderbatch="skip")
    log = spark_log.connect(url)
    version = log.journal.state.producers["query:q"].version
    assert log.read("t").num_rows == 5
    assert logged(caplog, "query q: batch") == [
        f"query q: batch 5 is in the log since version {version}; its 3 rows are not written again",
        f"query q: batch 4 is skipped, 2 rows not written: the last batch in the log is 5 (version {version})",
        f"query q: batch 5 is skipped, 1 row not written: the last batch in the log is 5 (version {version})",
    ]


def test_a_fingerprint_is_of_what_offsets_say_of_records() -> None:
    """Not of the time of the batch, nor of notes that change when it is planned again; the start of a batch is one that
    counts.
    """
    one = (
        'v1\n{"batchTimestampMs":1}\n{"t": {"0": 4}, "@topics": {"t": "i"}, "@fired": 7, "@query": "a"}\n{"version":2}'
    )
    two = 'v1\n{"batchTimestampMs":2}\n{"@topics":{"t":"i"},"t":{"0":4},"@fired":8}\n{"version":2}'
    assert fingerprint_of(one) == fingerprint_of(two) != ""
    others = [
        one.replace("4", "5"),
        one.replace('"i"', '"j"'),
        one.replace(":2}", ":3}"),
        one.replace("@query", "@starts"),
    ]
    assert len({fingerprint_of(text) for text in (one, *others)}) == 5
    first, again, other = (
        f'v2\n{{}}\n{name}:{{"t": {{"0": 4}}, "@seen": {seen}}}' for name, seen in (("a", 1), ("a", 2), ("b", 1))
    )
    assert fingerprint_of(first) == fingerprint_of(again) != fingerprint_of(other)
    assert fingerprint_of('v1\n{"batchTimestampMs":1}') == "" and fingerprint_of("v1\n{}\n-") != ""


def test_an_offset_of_files_is_known_to_be_the_same_only_in_the_same_plan() -> None:
    """It counts lists of files, and a list that was lost is made again of other files."""
    one, later, other = (
        fingerprint_of(f'v1\n{{"batchTimestampMs":{time}}}\n{{"logOffset":{number}}}')
        for time, number in ((1, 2), (5, 2), (1, 3))
    )
    assert source_offsets(one) == source_offsets(later) != source_offsets(other)
    assert len({one, later, other}) == 3


# ------------------------------------------------------------------------------------------------------ spark_log.sink


def sink(spark: SparkSession, url: str, checkpoint: Path, **options: str) -> Callable[[DataFrame, int], None]:
    """With what it must be told under Spark Connect."""
    return spark_log.sink(url, **({"checkpoint": str(checkpoint)} if is_connect(spark) else {}), **options)


def test_a_sink_refuses_an_older_batch(spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path) -> None:
    """As a stream does; another name writes it, and an option skips it."""
    log.append("t", texts(6))
    frame = load_stream(spark, url, maxOffsetsPerTrigger=2)
    to_sink(frame, sink(spark, url, checkpoint, topic="copy"), checkpoint)
    forget(checkpoint, [1, 2])
    log.append("t", texts(2, 6))
    with pytest.raises(PySparkException) as raised:
        to_sink(frame, sink(spark, url, checkpoint, topic="copy"), checkpoint)
    assert "this is batch 1, and the last batch of the query in the log is 2" in str(raised.value)
    assert "spark_log.sink(URL, name=" in str(raised.value)
    to_sink(frame, sink(spark, url, checkpoint, topic="copy", onOlderBatch="skip"), checkpoint)
    assert copied(log) == as_bytes(range(8))
    forget(checkpoint, [2, 3])
    to_sink(frame, sink(spark, url, checkpoint, topic="copy", name="again"), checkpoint)
    assert copied(log) == as_bytes([*range(8), *range(4, 8)])


def test_a_sink_of_totals_compares_source_offsets(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """Each batch of them has as many rows as there are keys."""
    log.append("t", [{"key": key, "value": "x"} for key in "ab"])
    totals = load_stream(spark, url).groupBy("key").count().selectExpr("key", "string(count) as value")
    to_sink(totals, sink(spark, url, checkpoint, topic="totals"), checkpoint, "update")
    log.append("t", [{"key": key, "value": "x"} for key in "ab"])
    to_sink(totals, sink(spark, url, checkpoint, topic="totals"), checkpoint, "update")
    forget(checkpoint, [1])
    log.append("t", [{"key": key, "value": "x"} for key in "ab"])
    with pytest.raises(PySparkException, match="batch 1 is in the log .* read other source offsets"):
        to_sink(totals, sink(spark, url, checkpoint, topic="totals"), checkpoint, "update")
    assert copied(log, "totals") == as_bytes([1, 1, 2, 2])


def test_a_batch_is_the_same_whatever_topics_its_rows_name(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """A replay that names one more topic does not add all of its rows again, nor does one with more rows."""
    log.append("t", texts(2))
    named = load_stream(classic, url).selectExpr("'a' as topic", "value")
    to_sink(named, sink(classic, url, checkpoint), checkpoint)
    forget(checkpoint, [0], "commits")
    other = load_stream(classic, url).selectExpr("if(value = '1', 'b', 'a') as topic", "value")
    to_sink(other, sink(classic, url, checkpoint), checkpoint)
    assert log.read("a").num_rows == 2 and log.read("b").num_rows == 0
    forget(checkpoint, [0], "commits")
    more = load_stream(classic, url).selectExpr("explode(array('a', 'b')) as topic", "value")
    to_sink(more, sink(classic, url, checkpoint), checkpoint)
    assert log.read("a").num_rows == 2 and log.read("b").num_rows == 0


def test_two_sinks_whose_rows_name_other_topics_are_no_repeat(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """One batch to two topics, which the rows name, has as many rows each time; the second needs a separate name."""
    log.append("t", texts(2))
    log.admin.create_topics([spark_log.NewTopic("a", 1), spark_log.NewTopic("b", 1)])

    def both(names: tuple[str, str]) -> Callable[[DataFrame, int], None]:
        one, two = (sink(spark, url, checkpoint, name=name) for name in names)

        def append(frame: DataFrame, batch_id: int) -> None:
            one(frame.selectExpr("'a' as topic", "value"), batch_id)
            two(frame.selectExpr("'b' as topic", "value"), batch_id)

        return append

    with pytest.raises(
        PySparkException, match="batch 0 has two frames for the topics that rows name under the name 'sink'"
    ):
        to_sink(load_stream(spark, url), both(("sink", "sink")), checkpoint)
    for _ in range(2):
        to_sink(load_stream(spark, url), both(("sink", "two")), checkpoint)
        assert copied(log, "a") == copied(log, "b") == as_bytes(range(2))
        forget(checkpoint, [0], "commits")


# Promise: spark-streams.md#exactly-once
def test_two_frames_of_a_batch_need_two_names(
    spark: SparkSession, url: str, log: spark_log.Log, checkpoint: Path
) -> None:
    """With one name the second counted as a repeat of the first: the same topic, as many rows, the same offsets."""
    log.append("t", texts(2))

    def halves(names: tuple[str, str]) -> Callable[[DataFrame, int], None]:
        one, two = (sink(spark, url, checkpoint, topic="copy", name=name) for name in names)

        def append(frame: DataFrame, batch_id: int) -> None:
            one(frame.where("value = '0'"), batch_id)
            one(frame.where("value = '0'"), batch_id)
            two(frame.where("value = '1'"), batch_id)

        return append

    with pytest.raises(PySparkException, match="batch 0 has two frames for topic 'copy' under the name 'sink'"):
        to_sink(load_stream(spark, url), halves(("sink", "sink")), checkpoint)
    assert copied(log) == as_bytes(range(1))
    to_sink(load_stream(spark, url), halves(("sink", "two")), checkpoint)
    assert copied(log) == as_bytes(range(2))


# ------------------------------------------------------------------------------------------------- streams from the log


def test_a_stream_from_the_log_reads_again_what_its_checkpoint_forgot(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path, tmp_path: Path
) -> None:
    """Lost files or an older copy: it continues from the checkpoint's position, and skips nothing."""
    log.append("t", texts(6))
    batches = Batches()
    frame = load_stream(classic, url, maxOffsetsPerTrigger=2)
    to_sink(frame, batches, checkpoint)
    shutil.copytree(checkpoint, tmp_path / "backup")
    log.append("t", texts(3, 6))
    to_sink(frame, batches, checkpoint)
    assert batches.rows == list(range(9))
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    forget(checkpoint, [2])
    again = Batches()
    shutil.rmtree(again.folder)
    to_sink(frame, again, checkpoint)
    assert again.rows == list(range(4, 9))


# --------------------------------------------------------------------------------------------- two runs at the same time


TWICE = """
import sys, time
from pathlib import Path
from pyspark.errors import StreamingQueryException
url, checkpoint, mine, other = sys.argv[1:]
spark = session("local[2]")
stream = spark.readStream.format("pylog").option("subscribe", "t").option("startingOffsets", "earliest")
stream = stream.option("maxOffsetsPerTrigger", 5).load(url)
writer = stream.writeStream.format("pylog").option("topic", "copy").option("checkpointLocation", checkpoint)
Path(mine).touch()
while not Path(other).exists():
    time.sleep(0.01)
try:
    writer.trigger(availableNow=True).start(url).awaitTermination()
except StreamingQueryException as error:
    print("failed:", str(error)[:2000])
"""


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
@pytest.mark.slow
def test_two_runs_of_one_checkpoint_at_once_lose_nothing(
    classic: SparkSession, url: str, log: spark_log.Log, checkpoint: Path, tmp_path: Path
) -> None:
    """In two processes: either may fail, each record is there once, and the next run continues."""
    log.append("t", texts(5))
    frame = load_stream(classic, url, maxOffsetsPerTrigger=5)
    copy(frame, url, "copy", checkpoint)
    log.append("t", texts(55, 5))
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    command = [sys.executable, str(script(tmp_path / "job.py", TWICE)), url, *map(str, (checkpoint, theirs, mine))]
    run = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert wait_until(theirs.exists)
    mine.touch()
    with suppress(StreamingQueryException):
        copy(frame, url, "copy", checkpoint)
    said, _ = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0, said
    copy(frame, url, "copy", checkpoint)
    assert copied(log) == as_bytes(range(60)), said
