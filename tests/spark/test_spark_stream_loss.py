"""What is gone, what is new and what is another: a stream over a log that changes, by Spark's call order without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark_pylog.batch import LogReader
from pyspark_pylog.options import read_options

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.errors import DataLoss, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State
from tests.spark.builders import finished_job, script, texts
from tests.spark.driver import SCHEMA, Row, Stream, rows, rows_of

GOING_ON = "going on with what is there (failOnDataLoss=false)"


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings of losses so far."""
    return [message for message in caplog.messages if "failOnDataLoss=false" in message]


def trim(log: spark_log.Log, first: int, partition: int = 0, topic: str = "t") -> None:
    log.admin.delete_records({TopicPartition(topic, partition): first})


def put(log: spark_log.Log, count: int, partition: int = 0, topic: str = "t") -> None:
    log.append(topic, [{"value": "v", "partition": partition}] * count)


def recreate(log: spark_log.Log, count: int, topic: str = "t") -> None:
    log.admin.delete_topics([topic])
    put(log, count, topic=topic)


def drop_objects(url: str) -> None:
    """As garbage collection does with what nobody names any more."""
    for path in Path(url).rglob("*.seg"):
        path.unlink()


# ------------------------------------------------------------------------------------------------------- trimmed and expired


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
    """Only up to its end; what the trim took beyond is the next batch's."""
    put(log, 10)
    stream = Stream(url, maxOffsetsPerTrigger=4)
    stream.plan()
    trim(log, 6)
    with pytest.raises(DataLoss, match=r"offsets \[0, 4\) of t-0 are gone, 4 records"):
        stream.read()
    assert stream.restart(failOnDataLoss="false").read() == []
    assert stream.batch() == rows("t-0", 6, 10)
    assert [message.partition(" of")[0] for message in losses(caplog)] == ["offsets [0, 4)", "offsets [4, 6)"]


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
    journal = Hurried.open(stream.reader.journal.store, create=False)
    assert isinstance(journal, Hurried)
    journal.trims, stream.reader._journal = trims, journal


@pytest.mark.parametrize("trigger", ["available-now", "once"])
def test_records_trimmed_while_a_batch_is_planned_are_no_other_error(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    """Before it is settled how far it goes, or which task reads what: the range is told, and the rest is read."""
    put(log, 9)
    stream = Stream(url, failOnDataLoss="false", maxBytesPerTrigger=500).restart(trigger)
    if trigger == "available-now":
        stream.reader.initialOffset()
        hurry(stream, lambda: trim(log, 2))
        stream.plan()
    else:
        stream.plan()
        hurry(stream, lambda: trim(log, 2))
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
        list(readers[0].read(task))
    assert list(rows_of(readers[1].read(task))) == [] and len(losses(caplog)) == 1


def test_what_is_trimmed_is_lost_only_as_far_as_a_batch_asks_for_it(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """A range of which nothing is left is told to its end, and one of no records is no loss."""
    put(log, 8)
    trim(log, 6)

    def read(start: int, end: int, fail: bool) -> list[Row]:
        options = {"path": url, "subscribe": "t", "startingoffsets": str(start), "endingoffsets": str(end)}
        reader = LogReader(read_options({**options, "failondataloss": str(fail)}, streaming=False), SCHEMA)
        return [row for task in reader.partitions() for row in rows_of(reader.read(task))]

    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of t-0 are gone, 3 records"):
        read(0, 3, fail=True)
    assert read(0, 3, fail=False) == []
    assert [message.partition(" are")[0] for message in losses(caplog)] == ["offsets [0, 3) of t-0"]
    assert read(3, 3, fail=True) == []
    assert read(0, 7, fail=False) == rows("t-0", 6, 7)


def test_a_read_that_goes_on_from_a_group_tells_what_was_trimmed_unread(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """In all partitions at once, like a read from numbers."""
    log.admin.create_topics([NewTopic("t", 2)])
    for number in (0, 1):
        put(log, 8, partition=number)
        log.admin.alter_consumer_group_offsets("g", {TopicPartition("t", number): 2})
        trim(log, 5 + number, partition=number)
    options = {"path": url, "subscribe": "t", "startingoffsets": "group:g", "endingoffsets": "7"}
    with pytest.raises(DataLoss, match=r"offsets \[2, 5\) of t-0 are gone, .*; offsets \[2, 6\) of t-1 are gone"):
        LogReader(read_options(options, streaming=False), SCHEMA).partitions()
    reader = LogReader(read_options({**options, "failondataloss": "false"}, streaming=False), SCHEMA)
    read = [row for task in reader.partitions() for row in rows_of(reader.read(task))]
    assert read == [*rows("t-0", 5, 7), *rows("t-1", 6, 7)]
    assert len(losses(caplog)) == 2


# ----------------------------------------------------------------------------------------------------------- topics that go


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_is_read_by_name_must_not_go(url: str, log: spark_log.Log, fail: str) -> None:
    """Whatever failOnDataLoss says; the sentence names it."""
    put(log, 1)
    put(log, 1, topic="u")
    stream = Stream(url, "t,u", failOnDataLoss=fail)
    stream.run()
    log.admin.delete_topics(["u"])
    with pytest.raises(UnknownTopicOrPartition, match="topic 'u' was deleted, and the stream reads it by its name"):
        stream.batch()


def test_a_topic_that_goes_under_a_pattern_is_a_loss(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """With the records that were not read; after it was allowed once the stream goes on without the topic."""
    put(log, 4, topic="in-a")
    put(log, 1, topic="in-b")
    stream = Stream(url, None, subscribePattern="^in-", maxOffsetsPerTrigger=3)
    stream.batch()
    log.admin.delete_topics(["in-a"])
    with pytest.raises(
        DataLoss, match=r"offsets \[2, 4\) of in-a-0 are gone, 2 records: topic 'in-a' was deleted; set"
    ):
        stream.batch()
    stream.restart(failOnDataLoss="false").run()
    assert "in-a" not in stream.offsets[-1] and len(losses(caplog)) == 1
    put(log, 1, topic="in-b")
    assert stream.restart(failOnDataLoss="true").run() == rows("in-b-0", 1, 2)


def test_a_topic_that_goes_after_it_was_read_is_told_as_such(url: str, log: spark_log.Log) -> None:
    """Nobody knows what else it would have got, so it is a loss all the same; the message says that no record is missed."""
    put(log, 4, topic="in-a")
    stream = Stream(url, None, subscribePattern="^in-")
    stream.run()
    log.admin.delete_topics(["in-a"])
    with pytest.raises(DataLoss, match="in-a-0 is gone, all of it had been read: topic 'in-a' was deleted"):
        stream.batch()


def test_when_all_topics_are_gone_the_offset_stays(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """An offset without a topic is never written; what comes later is read from its first record."""
    put(log, 2, topic="in-a")
    stream = Stream(url, None, subscribePattern="^in-", failOnDataLoss="false")
    stream.run()
    log.admin.delete_topics(["in-a"])
    assert stream.batch() is None and stream.batch() is None
    assert "in-a" in stream.offsets[-1] and len(losses(caplog)) == 1
    put(log, 2, topic="in-b")
    assert stream.batch() == rows("in-b-0", 0, 2)


def test_a_pattern_that_matches_nothing_yet_waits(url: str, log: spark_log.Log) -> None:
    """A stream may begin before its topics."""
    put(log, 1)
    stream = Stream(url, None, subscribePattern="^in-", startingOffsets="latest")
    assert stream.batch() == [] and stream.batch() is None
    put(log, 2, topic="in-a")
    assert stream.batch() == rows("in-a-0", 0, 2)


def test_a_topic_that_goes_after_a_batch_was_planned_is_a_loss_of_that_batch(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Exactly what was planned of it."""
    put(log, 3, topic="in-a")
    put(log, 2, topic="in-b")
    stream = Stream(url, None, subscribePattern="^in-")
    stream.plan()
    log.admin.delete_topics(["in-a"])
    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of in-a-0 are gone, 3 records: topic 'in-a' was deleted"):
        stream.read()
    assert stream.restart(failOnDataLoss="false").read() == rows("in-b-0", 0, 2)
    assert len(losses(caplog)) == 1


def test_a_topic_that_goes_during_an_available_now_run_does_not_hang_it(url: str, log: spark_log.Log) -> None:
    """Nor does one that is created again: it waits for the next run."""
    put(log, 4, topic="in-a")
    put(log, 4, topic="in-b")
    put(log, 4, topic="in-c")
    stream = Stream(url, None, subscribePattern="^in-", failOnDataLoss="false", maxOffsetsPerTrigger=3)
    stream.restart("available-now").batch()
    log.admin.delete_topics(["in-a"])
    recreate(log, 6, "in-b")
    assert stream.run() == rows("in-c-0", 1, 4)
    assert stream.restart("available-now").run() == rows("in-b-0", 0, 6)


# ------------------------------------------------------------------------------------------------------ topics created again


@pytest.mark.parametrize("count", [2, 3, 9])
def test_a_topic_created_again_is_recognised(url: str, log: spark_log.Log, count: int) -> None:
    """Shorter than the checkpoint, as long, or longer: Kafka's connector passes over the first records of the last."""
    put(log, 3)
    stream = Stream(url)
    stream.run()
    recreate(log, count)
    with pytest.raises(DataLoss, match="t-0 is gone, all of it had been read: topic 't' was deleted and created again"):
        stream.batch()
    assert stream.restart(failOnDataLoss="false").run() == rows("t-0", 0, count)


def test_what_was_not_read_of_a_topic_created_again_is_named(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The range of the old one; with a limit, too, the new one is read from its first record."""
    put(log, 5)
    stream = Stream(url, maxOffsetsPerTrigger=2, failOnDataLoss="false")
    stream.batch()
    recreate(log, 5)
    assert stream.batch() == rows("t-0", 0, 2) and stream.restart().batch() == rows("t-0", 2, 4)
    why = "topic 't' was deleted and created again"
    assert losses(caplog) == [f"offsets [2, 5) of t-0 are gone, 3 records: {why}; {GOING_ON}"]


def test_a_topic_created_again_after_a_batch_was_planned_is_not_read_in_its_place(url: str, log: spark_log.Log) -> None:
    """The planned records are lost, the new ones are the next batch's."""
    put(log, 3)
    stream = Stream(url, failOnDataLoss="false")
    stream.plan()
    recreate(log, 5)
    assert stream.read() == [] and stream.batch() == rows("t-0", 0, 5)


# -------------------------------------------------------------------------------------------------- new partitions and topics


def test_new_partitions_are_read_from_their_first_record(url: str, log: spark_log.Log) -> None:
    """Also where the stream began at the end."""
    put(log, 2)
    stream = Stream(url, startingOffsets="latest")
    stream.run()
    log.admin.create_partitions({"t": 3})
    put(log, 3, 1)
    assert stream.run() == rows("t-1", 0, 3)
    put(log, 1, 2)
    assert stream.restart().run() == rows("t-2", 0, 1)


def test_a_new_partition_whose_first_records_are_gone_is_a_loss(url: str, log: spark_log.Log) -> None:
    """Nobody had read them; the query would have."""
    put(log, 2)
    stream = Stream(url)
    stream.run()
    log.admin.create_partitions({"t": 2})
    put(log, 5, 1)
    trim(log, 3, 1)
    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of t-1 are gone, 3 records"):
        stream.batch()
    assert stream.restart(failOnDataLoss="false").run() == rows("t-1", 3, 5)


def test_a_new_partition_trimmed_after_the_batch_was_planned_is_a_loss_of_that_batch(
    url: str, log: spark_log.Log
) -> None:
    """Where the batch begins in it is in the checkpoint."""
    put(log, 2)
    stream = Stream(url)
    stream.run()
    log.admin.create_partitions({"t": 2})
    put(log, 5, 1)
    stream.plan()
    trim(log, 3, 1)
    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of t-1 are gone, 3 records"):
        stream.read()


def test_new_topics_under_a_pattern_are_read_from_their_first_record(url: str, log: spark_log.Log) -> None:
    """One that was trimmed before it was read is a loss, as a partition is."""
    put(log, 1, topic="in-a")
    stream = Stream(url, None, subscribePattern="^in-", startingOffsets="latest")
    stream.run()
    put(log, 2, topic="in-b")
    put(log, 2)
    assert stream.run() == rows("in-b-0", 0, 2)
    put(log, 3, topic="in-c")
    trim(log, 1, topic="in-c")
    with pytest.raises(DataLoss, match=r"offsets \[0, 1\) of in-c-0 are gone, 1 record"):
        stream.batch()


def test_an_assigned_partition_is_read_once_it_is_there(url: str, log: spark_log.Log) -> None:
    """Kafka's connector never picks it up."""
    put(log, 2)
    stream = Stream(url, None, assign='{"t":[0,2]}')
    assert stream.run() == rows("t-0", 0, 2)
    log.admin.create_partitions({"t": 3})
    put(log, 1, 1)
    put(log, 2, 2)
    assert stream.run() == rows("t-2", 0, 2)


# --------------------------------------------------------------------------------------------- another subscription, another log


def test_a_query_may_read_other_topics_than_before(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is no longer named stops, also when it was deleted; one that is added starts at its first record that is there."""
    put(log, 2)
    put(log, 2, topic="u")
    put(log, 5, topic="v")
    trim(log, 3, topic="v")
    stream = Stream(url, "t,u")
    stream.run()
    put(log, 1)
    put(log, 1, topic="u")
    assert sorted(stream.restart(subscribe="t,v").run()) == [*rows("t-0", 2, 3), *rows("v-0", 3, 5)]
    log.admin.delete_topics(["u"])
    put(log, 1)
    assert stream.restart().run() == rows("t-0", 3, 4)
    assert set(stream.offsets[-1]) == {"t", "v", "@topics"} and losses(caplog) == []


def test_a_batch_that_was_planned_reads_the_topics_it_was_planned_with(url: str, log: spark_log.Log) -> None:
    """Run again after a crash, under another subscription: it must be the same batch to be recognised as such."""
    put(log, 2)
    put(log, 2, topic="u")
    stream = Stream(url, "t,u")
    first = stream.batch()
    assert stream.restart(subscribe="u").read() == first


def test_a_query_may_be_assigned_other_partitions(url: str, log: spark_log.Log) -> None:
    """One that is added starts at its first record that is there."""
    log.admin.create_topics([NewTopic("t", 3)])
    for partition in range(3):
        put(log, 2, partition)
    trim(log, 1, 2)
    stream = Stream(url, None, assign='{"t":[0,1]}')
    stream.run()
    put(log, 1, 0)
    assert sorted(stream.restart(assign='{"t":[0,2]}').run()) == [("t-0", 2), ("t-2", 1)]


def older_copy(url: str, tmp_path: Path, log: spark_log.Log, count: int) -> None:
    """The log as it is, to which `count` more records are appended before the copy takes its place."""
    shutil.copytree(url, tmp_path / "copy")
    put(log, count)


def restore(url: str, tmp_path: Path) -> None:
    shutil.rmtree(url)
    shutil.copytree(tmp_path / "copy", url)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_checkpoint_beyond_the_end_of_the_log_is_refused(
    url: str, log: spark_log.Log, tmp_path: Path, fail: str
) -> None:
    """An older copy was restored: to wait for its end to come would pass over records in silence."""
    put(log, 3)
    stream = Stream(url, failOnDataLoss=fail)
    stream.run()
    older_copy(url, tmp_path, log, 4)
    stream.run()
    restore(url, tmp_path)
    with pytest.raises(DataLoss, match="stands at offset 7 of t-0, beyond the end of the log, 3: this log is an older"):
        stream.restart().batch()


def test_a_planned_batch_beyond_the_end_of_the_log_is_refused(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """The same where Spark runs its last batch again."""
    put(log, 3)
    stream = Stream(url, failOnDataLoss="false")
    stream.run()
    older_copy(url, tmp_path, log, 4)
    stream.plan()
    restore(url, tmp_path)
    with pytest.raises(DataLoss, match="stands at offset 7 of t-0, beyond the end of the log, 3"):
        stream.restart().read()


def test_partitions_that_an_older_copy_lacks_are_a_loss(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """A topic never gets fewer partitions otherwise."""
    put(log, 3)
    stream = Stream(url)
    older_copy(url, tmp_path, log, 0)
    log.admin.create_partitions({"t": 2})
    put(log, 1, 1)
    stream.run()
    restore(url, tmp_path)
    with pytest.raises(
        DataLoss, match="offsets from 1 on of t-1 are gone, .*: topic 't' has fewer partitions now; set failOnDataLoss"
    ):
        stream.restart().batch()


# ------------------------------------------------------------------------------------------------------- checkpoints and places


def test_a_checkpoint_of_the_first_version_is_read(url: str, log: spark_log.Log) -> None:
    """It knows positions and topics' ids, or positions alone; also a batch that it planned and did not read."""
    put(log, 4)
    stream = Stream(url)
    stream.plan()
    ids = stream.offsets[-1]["@topics"]
    log.admin.create_partitions({"t": 2})
    put(log, 3, 1)
    stream.offsets = [{"t": {"0": 2}, "@topics": ids}, {"t": {"0": 4, "1": 2}, "@topics": ids}]
    assert stream.restart().read() == [*rows("t-0", 2, 4), *rows("t-1", 0, 2)]
    assert stream.run() == rows("t-1", 2, 3)
    stream.offsets = [{"t": {"0": 3, "1": 3}}]
    assert stream.restart().run() == rows("t-0", 3, 4)
    assert stream.restart("4.0").run() == []


def test_offsets_stay_readable(url: str, log: spark_log.Log) -> None:
    """What a batch in good order leaves in the progress of a query: positions and ids."""
    put(log, 2)
    stream = Stream(url)
    stream.run()
    put(log, 2)
    stream.run()
    (topic_id,) = stream.offsets[-1]["@topics"].values()
    assert stream.offsets[-1] == {"t": {"0": 4}, "@topics": {"t": topic_id}}


def test_keys_of_others_are_carried_along(url: str, log: spark_log.Log) -> None:
    """What begins with @ and is not ours stays in the checkpoint."""
    put(log, 2)
    stream = Stream(url)
    stream.run()
    stream.offsets[-1]["@other"] = {"name": "x"}
    put(log, 2)
    assert stream.restart().run() == rows("t-0", 2, 4) and stream.offsets[-1]["@other"] == {"name": "x"}


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
    """Where Spark's own lines go; the default limit of bytes as well.  As an error it is one sentence without our traceback."""
    log.append("t", texts(4))
    done = finished_job(script(tmp_path / "job.py", LOSSES), url, str(tmp_path / "checkpoint"))
    warned = [line.partition("WARNING ")[2] for line in done.stderr.splitlines() if "pylog: offsets" in line]
    assert warned[:1] == [f"pylog: offsets [4, 7) of t-0 are gone, 3 records: trimmed or expired; {GOING_ON}"]
    # A batch read with an open end says so where it is planned and where it runs.
    assert set(warned[1:]) == {f"pylog: offsets [8, 9) of t-0 are gone, 1 record: trimmed or expired; {GOING_ON}"}
    assert done.stderr.count("INFO pylog: maxBytesPerTrigger is 1g by default") == 3
    assert "DataLoss: offsets [4, 7) of t-0 are gone, 3 records" in done.stdout and "spark_log/" not in done.stdout
    assert "rows 1" in done.stdout
