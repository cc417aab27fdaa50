"""Topics and partitions that go, come, and come again under a stream, by Spark's call order without Spark."""

from __future__ import annotations

import pytest

import spark_log
from spark_log.errors import DataLoss, UnknownTopicOrPartition
from spark_log.recovery.repair import repair
from spark_log.store.object_names import log_key
from tests.spark.driver import Stream, rows
from tests.spark.lossy import GOING_ON, losses, put, recreate, trim

# ----------------------------------------------------------------------------------------------------------- topics that go


# Promise: spark-streams.md#when-the-log-changes
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


# Promise: spark-streams.md#when-the-log-changes
def test_a_topic_that_goes_under_a_pattern_is_a_loss(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """With the records that were not read; once it was allowed, the stream continues without the topic."""
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
    """Nobody knows what else it would have got, so it is still a loss; the message says that no record is missed."""
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
    """When it is run again: exactly what was planned of it."""
    put(log, 3, topic="in-a")
    put(log, 2, topic="in-b")
    stream = Stream(url, None, subscribePattern="^in-")
    stream.plan()
    log.admin.delete_topics(["in-a"])
    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of in-a-0 are gone, 3 records: topic 'in-a' was deleted"):
        stream.restart().read()
    assert stream.restart(failOnDataLoss="false").read() == rows("in-b-0", 0, 2)
    assert len(losses(caplog)) == 1


# Promise: spark-streams.md#when-the-log-changes
@pytest.mark.parametrize("change", ["was deleted", "was deleted and created again"])
@pytest.mark.parametrize("count", [2, 9])
def test_a_topic_that_goes_during_an_available_now_run_ends_it(
    url: str, log: spark_log.Log, change: str, count: int
) -> None:
    """As with Kafka's connector, whatever failOnDataLoss says and however long the new one is; the next run decides by
    that.
    """
    put(log, 4, topic="in-a")
    put(log, 4, topic="in-b")
    stream = Stream(url, None, subscribePattern="^in-", failOnDataLoss="false", maxOffsetsPerTrigger=4)
    first = stream.restart("available-now").batch()
    assert first == [*rows("in-a-0", 0, 2), *rows("in-b-0", 0, 2)]
    log.admin.delete_topics(["in-a"])
    if change.endswith("again"):
        put(log, count, topic="in-a")
    with pytest.raises(DataLoss, match=f"topic 'in-a' {change} during this available-now run"):
        stream.batch()
    new = rows("in-a-0", 0, count) if change.endswith("again") else []
    assert sorted(stream.restart("available-now").run()) == [*new, *rows("in-b-0", 2, 4)]


def test_a_topic_that_goes_after_an_available_now_run_has_read_all_is_for_the_next_run(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """It has reached its end: there is nothing to plan any more."""
    put(log, 2)
    stream = Stream(url).restart("available-now")
    stream.batch()
    recreate(log, 3)
    assert stream.batch() is None and losses(caplog) == []
    with pytest.raises(DataLoss, match="topic 't' was deleted and created again; set failOnDataLoss=false"):
        stream.restart("available-now").batch()
    assert stream.restart("available-now", failOnDataLoss="false").run() == rows("t-0", 0, 3)


# ------------------------------------------------------------------------------------------------------ topics created again


# Promise: spark-streams.md#when-the-log-changes
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


# Promise: storage-failures.md#continue-without-what-is-lost
@pytest.mark.parametrize("more", [0, 9])
def test_offsets_of_a_version_whose_loss_was_accepted_stop_a_stream(url: str, log: spark_log.Log, more: int) -> None:
    """However many records follow by now: at these offsets lie others."""
    put(log, 3)
    put(log, 2)
    put(log, 1)
    stream = Stream(url)
    stream.run()
    store = log.journal.metadata
    store.delete([log_key(log.journal.refresh().version - 1)])
    repair(store, is_alive=lambda holder: False, accept_loss=True)
    put(spark_log.connect(url), more)
    with pytest.raises(DataLoss, match="topic 't' was deleted and created again"):
        stream.restart().batch()
    assert len(stream.restart(failOnDataLoss="false").run()) == 4 + more


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
    """When it is run again, the planned records are lost, the new ones are the next batch's."""
    put(log, 3)
    stream = Stream(url, failOnDataLoss="false")
    stream.plan()
    recreate(log, 5)
    stream.restart()
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
    """When it is run again: where the batch begins in it is in the checkpoint."""
    put(log, 2)
    stream = Stream(url)
    stream.run()
    log.admin.create_partitions({"t": 2})
    put(log, 5, 1)
    stream.plan()
    trim(log, 3, 1)
    with pytest.raises(DataLoss, match=r"offsets \[0, 3\) of t-1 are gone, 3 records"):
        stream.restart().read()


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
