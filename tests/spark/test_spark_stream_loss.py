"""Records that are gone before a stream, a task or a batch has read them, by Spark's call order without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.source.batch import LogReader
from pyspark_pylog.source.stream import LogStreamReader

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.errors import DataLoss, ObjectNotFound
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import checkpoint
from spark_log.metadata.state import State
from tests.spark.builders import finished_job, script, texts
from tests.spark.driver import SCHEMA, Row, Stream, read_task, rows, rows_of
from tests.spark.lossy import GOING_ON, losses, put, trim


def drop_objects(url: str) -> None:
    """As garbage collection does with what nobody names any more."""
    for path in Path(url).rglob("*.seg"):
        path.unlink()


# ------------------------------------------------------------------------------------------------------- trimmed and expired


# Promise: retention.md#when-a-reader-is-too-late, spark-streams.md#when-the-log-changes, tasks/replay.md#replay-a-topic
def test_trimmed_records_stop_a_stream(url: str, log: spark_log.Log) -> None:
    """With every range that is gone, and what to do."""
    log.admin.create_topics([NewTopic("t", 2)])
    put(log, 4)
    put(log, 4, 1)
    stream = Stream(url)
    stream.run()
    put(log, 6)
    put(log, 2, 1)
    trim(log, 7)
    trim(log, 5, 1)
    with pytest.raises(DataLoss) as error:
        stream.batch()
    assert str(error.value) == (
        "offsets [4, 7) of t-0 are gone, 3 records: trimmed or expired; "
        "offsets [4, 5) of t-1 are gone, 1 record: trimmed or expired; set failOnDataLoss=false to go on with what is there"
    )


# Promise: spark-streams.md#when-the-log-changes
def test_trimmed_records_are_passed_over_with_a_warning_for_each_range(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """failOnDataLoss=false: said once, not at every look."""
    log.admin.create_topics([NewTopic("t", 2)])
    put(log, 4)
    put(log, 4, 1)
    stream = Stream(url, failOnDataLoss="false")
    stream.run()
    put(log, 6)
    put(log, 2, 1)
    trim(log, 7)
    trim(log, 5, 1)
    assert sorted(stream.run()) == [*rows("t-0", 7, 10), *rows("t-1", 5, 6)]
    stream.restart()
    assert stream.run() == []
    assert losses(caplog) == [
        f"offsets [4, 7) of t-0 are gone, 3 records: trimmed or expired; {GOING_ON}",
        f"offsets [4, 5) of t-1 are gone, 1 record: trimmed or expired; {GOING_ON}",
    ]


def test_a_partition_that_was_trimmed_to_its_end_is_told_once(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint moves on without a record, so that the loss need not be allowed for ever."""
    put(log, 4)
    stream = Stream(url)
    stream.run()
    put(log, 3)
    trim(log, 7)
    assert stream.restart(failOnDataLoss="false").run() == []
    put(log, 1)
    assert stream.restart(failOnDataLoss="true").run() == rows("t-0", 7, 8)
    assert len(losses(caplog)) == 1


def test_records_trimmed_after_a_batch_was_planned_are_a_loss_of_that_batch(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """When it is run again: only up to its end; what the trim took beyond is the next batch's."""
    put(log, 10)
    stream = Stream(url, maxOffsetsPerTrigger=4)
    stream.plan()
    trim(log, 6)
    stream.restart()
    with pytest.raises(DataLoss, match=r"offsets \[0, 4\) of t-0 are gone, 4 records"):
        stream.read()
    assert stream.restart(failOnDataLoss="false").read() == []
    assert stream.batch() == rows("t-0", 6, 10)
    assert [message.partition(" of")[0] for message in losses(caplog)] == ["offsets [0, 4)", "offsets [4, 6)"]


def test_a_batch_is_read_as_of_the_state_that_settled_its_end(url: str, log: spark_log.Log) -> None:
    """A trim, or a topic deleted or created again, before the tasks are made: they read the planned records."""
    put(log, 4)
    stream = Stream(url)
    stream.plan()
    trim(log, 2)
    reader = stream.reader
    known = reader.journal.state
    assert stream.read() == rows("t-0", 0, 4) and reader.journal.state is known


def test_a_planned_batch_begins_where_it_was_planned_to(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss that was allowed when it was planned is not asked about again when it is read, nor after a restart."""
    put(log, 4)
    stream = Stream(url)
    stream.run()
    put(log, 6)
    trim(log, 7)
    stream.restart(failOnDataLoss="false").plan()
    assert stream.restart(failOnDataLoss="true").read() == rows("t-0", 7, 10)
    assert len(losses(caplog)) == 1 and stream.offsets[-1]["t"] == {"0": 10}


class Hurried(Journal):
    """A journal that moves on as soon as it was read, as another thread may make it: somebody trims."""

    trims: Callable[[], None] | None = None

    def refresh(self) -> State:
        state = super().refresh()
        if self.trims is not None:
            trims, self.trims = self.trims, None
            trims()
            super().refresh()
        return state


def hurry(stream: Stream, trims: Callable[[], None]) -> None:
    journal = Hurried.open(stream.reader.journal.metadata, create=False)
    assert isinstance(journal, Hurried)
    journal.trims, stream.reader._journal = trims, journal


@pytest.mark.parametrize("trigger", ["available-now", "once"])
def test_records_trimmed_while_a_batch_is_planned_are_no_other_error(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    """Before its range or its tasks are settled: the range is reported, and the rest is read."""
    put(log, 9)
    stream = Stream(url, failOnDataLoss="false", maxBytesPerTrigger=500).restart(trigger)
    if trigger == "available-now":
        stream.reader.initialOffset()
        hurry(stream, lambda: trim(log, 2))
        stream.plan()
    else:
        stream.plan()
        trim(log, 2)
        stream.restart(trigger)
    found = stream.read()
    assert found == rows("t-0", 2, 9)[: len(found)] and found != []
    assert [message.partition(" are")[0] for message in losses(caplog)] == ["offsets [0, 2) of t-0"]


def test_records_that_vanish_under_a_task_are_a_loss(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Trimmed and collected between planning and reading: an error, or passed over and told; what is there is read."""
    put(log, 3)
    stream = Stream(url)
    stream.plan()
    tasks = stream.tasks()
    trim(log, 3)
    drop_objects(url)
    put(log, 2)
    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of t-0 are gone, 3 records"):
        stream.read(tasks)
    stream.restart(failOnDataLoss="false")
    assert stream.read(tasks) == [] and stream.batch() == rows("t-0", 3, 5)
    assert losses(caplog) == [f"offsets [0, 3) of t-0 are gone, 3 records: trimmed or expired; {GOING_ON}"]


def test_a_task_reads_what_a_trim_left_of_an_object_that_was_merged_away(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Planned again by offset: the loss ends where records are."""
    put(log, 3)
    put(log, 3)
    stream = Stream(url, failOnDataLoss="false")
    stream.plan()
    (task,) = stream.tasks()
    first, second = task.reads or ()
    trim(log, 3)
    Path(url, first.slice.object).unlink()
    assert stream.read([task]) == rows("t-0", 3, 6)
    assert [message.partition(" are")[0] for message in losses(caplog)] == ["offsets [0, 3) of t-0"]
    assert second.start == 3


# Promise: spark-streams.md#when-the-log-changes
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_missing_index_is_named_by_streams_and_batch_reads(url: str, log: spark_log.Log, fail: str) -> None:
    """The records may be there, and `pylog verify` says what to do: `failOnDataLoss=false` does not pass over it."""
    put(log, 1)
    stream = Stream(url, failOnDataLoss=fail)
    for _ in range(270):
        put(log, 1)
    checkpoint(log)
    for path in Path(url).rglob("*.idx"):
        path.unlink()
    named = r"\.idx is missing, .* of topic 't', partition 0: `pylog verify`"
    with pytest.raises(ObjectNotFound, match=named):
        stream.batch()
    batch = LogReader(read_options({"path": url, "subscribe": "t", "failondataloss": fail}, streaming=False), SCHEMA)
    with pytest.raises(ObjectNotFound, match=named):
        batch.partitions()


# Promise: spark-streams.md#when-the-log-changes
def test_a_missing_segment_is_a_loss(url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture) -> None:
    """An error names it; with `failOnDataLoss=false` a warning names the offsets, and other records are read."""
    for _ in range(3):
        put(log, 2)
    stream = Stream(url)
    stream.plan()
    (task,) = stream.tasks()
    missing = task.reads[1].slice.object
    Path(url, missing).unlink()
    with pytest.raises(ObjectNotFound, match="offsets 2 to 3 of topic 't', partition 0: `pylog verify`"):
        stream.read([task])
    stream.restart(failOnDataLoss="false")
    assert stream.read([task]) == [*rows("t-0", 0, 2), *rows("t-0", 4, 6)]
    gone = f"offsets [2, 4) of t-0 are gone, 2 records: {log.url}/{missing} is not there; {GOING_ON}"
    assert losses(caplog) == [gone]
    batch = LogReader(read_options({"path": url, "subscribe": "t", "failondataloss": "false"}, streaming=False), SCHEMA)
    found = [row for task in batch.partitions() for row in rows_of(read_task(batch, task))]
    assert found == [*rows("t-0", 0, 2), *rows("t-0", 4, 6)] and losses(caplog) == [gone, gone]


def test_records_that_vanish_under_a_batch_read_are_a_loss(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The same for `spark.read`: an error, or told and passed over."""
    put(log, 3)
    options = {"path": url, "subscribe": "t", "endingoffsets": "3"}
    readers = [
        LogReader(read_options({**options, "failondataloss": fail}, streaming=False), SCHEMA)
        for fail in ("true", "false")
    ]
    (task,) = readers[0].partitions()
    log.admin.delete_topics(["t"])
    drop_objects(url)
    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of t-0 are gone, 3 records: topic 't' was deleted"):
        list(read_task(readers[0], task))
    assert list(rows_of(read_task(readers[1], task))) == [] and len(losses(caplog)) == 1


def test_a_loss_that_was_allowed_is_not_asked_about_again_where_nothing_was_left_to_read(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch that was planned over it is run again under failOnDataLoss=true, and is the same."""
    log.admin.create_topics([NewTopic("t", 2)])
    stream = Stream(url)
    stream.run()
    put(log, 2, partition=0)
    put(log, 3, partition=1)
    trim(log, 3, partition=1)
    stream.restart(failOnDataLoss="false").plan()
    assert len(losses(caplog)) == 1
    assert stream.restart(failOnDataLoss="true").read() == rows("t-0", 0, 2)
    assert stream.batch() is None


def test_what_is_trimmed_is_lost_only_as_far_as_a_batch_asks_for_it(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty remaining range is reported to its end, and a range without records is not a loss."""
    put(log, 8)
    trim(log, 6)

    def read(start: int, end: int, fail: bool) -> list[Row]:
        options = {"path": url, "subscribe": "t", "startingoffsets": str(start), "endingoffsets": str(end)}
        reader = LogReader(read_options({**options, "failondataloss": str(fail)}, streaming=False), SCHEMA)
        return [row for task in reader.partitions() for row in rows_of(read_task(reader, task))]

    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of t-0 are gone, 3 records"):
        read(0, 3, fail=True)
    assert read(0, 3, fail=False) == []
    assert [message.partition(" are")[0] for message in losses(caplog)] == ["offsets [0, 3) of t-0"]
    assert read(3, 3, fail=True) == []
    assert read(0, 7, fail=False) == rows("t-0", 6, 7)


def test_a_read_that_goes_on_from_a_group_tells_what_was_trimmed_unread(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """In all partitions at the same time, like a read from numbers."""
    log.admin.create_topics([NewTopic("t", 2)])
    for number in (0, 1):
        put(log, 8, partition=number)
        log.admin.alter_consumer_group_offsets("g", {TopicPartition("t", number): 2})
        trim(log, 5 + number, partition=number)
    options = {"path": url, "subscribe": "t", "startingoffsets": "group:g", "endingoffsets": "7"}
    with pytest.raises(DataLoss, match=r"offsets \[2, 5\) of t-0 are gone, .*; offsets \[2, 6\) of t-1 are gone"):
        LogReader(read_options(options, streaming=False), SCHEMA).partitions()
    reader = LogReader(read_options({**options, "failondataloss": "false"}, streaming=False), SCHEMA)
    read = [row for task in reader.partitions() for row in rows_of(read_task(reader, task))]
    assert read == [*rows("t-0", 5, 7), *rows("t-1", 6, 7)]
    assert len(losses(caplog)) == 2


class BusyReader(LogStreamReader):
    """Of a log to which others append between any two refreshes."""

    log: spark_log.Log
    refreshes = 0

    def _refreshed(self) -> State:
        self.refreshes += 1
        assert self.refreshes < 20
        put(self.log, 1, 1)
        return super()._refreshed()


def test_a_batch_beyond_the_end_of_a_busy_log_fails(url: str, log: spark_log.Log) -> None:
    """Although each look at the log shows something new, by which the batch could be planned again."""
    log.admin.create_topics([NewTopic("t", 2)])
    put(log, 4)
    stream = Stream(url)
    stream.run()
    put(log, 4)
    stream.plan()
    start, end = stream.offsets[-2:]
    end["t"]["0"] = 50
    busy = BusyReader(stream.reader.options, SCHEMA, stream.clock)
    busy.log = log
    with pytest.raises(DataLoss, match="is at offset 50 of t-0, beyond the end of the log, 8"):
        busy.partitions(start, end)


LOSSES = """
import sys
import spark_log
from spark_log import TopicPartition
url, checkpoint = sys.argv[1:]
log = spark_log.connect(url)
spark = session("local[2]")
def run(**options):
    stream = spark.readStream.format("pylog").options(subscribe="t", startingOffsets="earliest", **options).load(url)
    writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
run()
log.append("t", [{"value": "v"}] * 6)
log.admin.delete_records({TopicPartition("t", 0): 7})
try:
    run()
except Exception as error:
    print(str(error))
run(failOnDataLoss="false")
log.admin.delete_records({TopicPartition("t", 0): 9})
try:
    spark.read.format("pylog").options(subscribe="t", startingOffsets="8").load(url).collect()
except Exception as error:
    print(str(error))
rows = spark.read.format("pylog").options(subscribe="t", startingOffsets="8", failOnDataLoss="false").load(url).collect()
print("rows", len(rows))
"""


@pytest.mark.slow
def test_what_was_lost_is_in_the_log_of_the_driver(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """With Spark's own lines; the default limit of bytes as well.  As an error it is one message without pylog's
    traceback.
    """
    log.append("t", texts(4))
    done = finished_job(script(tmp_path / "job.py", LOSSES), url, str(tmp_path / "checkpoint"))
    warned = [line.partition("WARNING ")[2] for line in done.stderr.splitlines() if "pylog: offsets" in line]
    assert warned[:1] == [f"pylog: offsets [4, 7) of t-0 are gone, 3 records: trimmed or expired; {GOING_ON}"]
    # A batch read with an open end says so where it is planned and where it runs.
    assert set(warned[1:]) == {f"pylog: offsets [8, 9) of t-0 are gone, 1 record: trimmed or expired; {GOING_ON}"}
    assert done.stderr.count("INFO pylog: maxBytesPerTrigger is 1g by default") == 3
    assert "DataLoss: offsets [4, 7) of t-0 are gone, 3 records" in done.stdout and "spark_log/" not in done.stdout
    assert "rows 1" in done.stdout
