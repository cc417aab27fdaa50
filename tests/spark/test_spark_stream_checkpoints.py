"""A checkpoint over another subscription, another log, or of another pylog, by Spark's call order without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import spark_log
from spark_log import NewTopic
from spark_log.errors import DataLoss
from tests.logged import logged
from tests.spark.driver import Stream, rows
from tests.spark.lossy import losses, put, trim

# --------------------------------------------------------------------------------------------- another subscription, another log


# Promise: spark-streams.md#when-the-log-changes
def test_a_query_may_read_other_topics_than_before(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is no longer named stops, also when it was deleted; one that is added starts at its first record that is
    there.
    """
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
    assert set(stream.offsets[-1]) == {"t", "v", "@topics", "@log", "@seen"} and losses(caplog) == []


def test_a_start_counts_only_without_a_checkpoint(url: str, log: spark_log.Log) -> None:
    """Later options do not matter: a query continues from its checkpoint."""
    put(log, 3)
    stream = Stream(url)
    stream.run()
    put(log, 2)
    assert stream.restart(startingOffsets="latest").run() == rows("t-0", 3, 5)
    put(log, 2)
    assert stream.restart(startingOffsets='{"t":{"0":0}}', startingTimestamp="0").run() == rows("t-0", 5, 7)


# Promise: spark-streams.md#when-the-log-changes
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


# Promise: spark-streams.md#when-the-log-changes
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_checkpoint_beyond_the_end_of_the_log_is_refused(
    url: str, log: spark_log.Log, tmp_path: Path, fail: str
) -> None:
    """An older copy was restored: waiting for its end would skip records without notice."""
    put(log, 3)
    stream = Stream(url, failOnDataLoss=fail)
    stream.run()
    older_copy(url, tmp_path, log, 4)
    stream.run()
    restore(url, tmp_path)
    with pytest.raises(DataLoss, match="is at offset 7 of t-0, beyond the end of the log, 3: this log is an older"):
        stream.restart().batch()


def test_a_planned_batch_beyond_the_end_of_the_log_is_refused(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """The same where Spark runs its last batch again."""
    put(log, 3)
    stream = Stream(url, failOnDataLoss="false")
    stream.run()
    older_copy(url, tmp_path, log, 4)
    stream.plan()
    restore(url, tmp_path)
    with pytest.raises(DataLoss, match="is at offset 7 of t-0, beyond the end of the log, 3"):
        stream.restart().read()


# Promise: spark-streams.md#when-the-log-changes
@pytest.mark.parametrize("trigger", ["default", "available-now", "once", "4.0"])
def test_a_checkpoint_of_another_log_is_refused(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    """A log that was restored from a backup has the topics of the former one, and another id."""
    put(log, 3)
    stream = Stream(url)
    stream.run()
    stream.offsets[-1]["@log"] = "former"
    put(log, 2)
    with pytest.raises(DataLoss, match=f"of a log with the id former, and .* has the id {log.cluster_id}"):
        stream.restart(trigger).batch()
    assert stream.restart(trigger, failOnDataLoss="false").run() == rows("t-0", 3, 5)
    assert stream.offsets[-1]["@log"] == log.cluster_id
    assert len(logged(caplog, "of a log with the id former")) == 1


# Promise: spark-streams.md#when-the-log-changes
def test_a_planned_batch_of_another_log_is_refused(url: str, log: spark_log.Log) -> None:
    """The same where Spark runs its last batch again."""
    put(log, 3)
    stream = Stream(url)
    stream.plan()
    stream.offsets[-1]["@log"] = "former"
    with pytest.raises(DataLoss, match="of a log with the id former"):
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
    """The entries of a normal batch in the progress of a query: positions, and ids of topics and of the log."""
    put(log, 2)
    stream = Stream(url)
    stream.run()
    put(log, 2)
    stream.run()
    (topic_id,) = stream.offsets[-1]["@topics"].values()
    state = log.journal.refresh()
    seen = stream.offsets[-1].pop("@seen")
    assert seen[:2] == [state.version, state.time] and len(seen[2]) == 12
    assert stream.offsets[-1] == {"t": {"0": 4}, "@topics": {"t": topic_id}, "@log": log.cluster_id}


def test_keys_of_others_are_carried_along(url: str, log: spark_log.Log) -> None:
    """Keys that begin with @ and are unknown stay in the checkpoint."""
    put(log, 2)
    stream = Stream(url)
    stream.run()
    stream.offsets[-1]["@other"] = {"name": "x"}
    put(log, 2)
    assert stream.restart().run() == rows("t-0", 2, 4) and stream.offsets[-1]["@other"] == {"name": "x"}


def test_a_batch_after_an_empty_first_one_is_the_same_whether_or_not_the_query_was_restarted(
    url: str, log: spark_log.Log
) -> None:
    """Its offset does not say where it begins: a checkpoint that forgot the batch plans it alike, and it is recognised
    as a repeat.
    """
    log.admin.create_topics([NewTopic("t", 1)])
    stream = Stream(url)
    assert stream.batch() == []
    put(log, 2)
    assert stream.batch() == rows("t-0", 0, 2)
    planned = stream.offsets.pop()
    assert stream.restart().batch() == rows("t-0", 0, 2)
    assert stream.offsets[-1] == planned
