"""Queries over logs that were restored from an older copy and have new records at the same offsets, without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.source.consumer_offsets_topic import ProgressStreamReader

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.errors import ConcurrentChange, DataLoss
from tests.logged import logged
from tests.restored import copy_of, restored, set_back
from tests.spark.driver import SCHEMA, Stream, rows
from tests.spark.lossy import put


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_query_that_is_ahead_of_the_copy_is_refused_also_when_the_log_has_grown(
    url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """With the offsets at which a new checkpoint is to start, so that nothing is skipped."""
    log.admin.create_topics([NewTopic("t", 2)])
    put(log, 6)
    put(log, 2, 1)
    copy = copy_of(log, tmp_path / "copy")
    put(log, 4)
    stream = Stream(url)
    stream.run()
    put(restored(url, copy), 7)
    with pytest.raises(DataLoss) as error:
        stream.restart().batch()
    assert str(error.value) == (
        f"the checkpoint is at offset 10 of t-0, and {url} was restored from a copy that ended at 6: the records from "
        'there on are others; start the query with a new checkpoint and startingOffsets={"t":{"0":6,"1":2}}, where the '
        "copy ended, or set failOnDataLoss=false to continue"
    )
    assert sorted(Stream(url, startingoffsets='{"t":{"0":6,"1":2}}').run()) == rows("t-0", 6, 13)


# Promise: spark-streams.md#when-the-log-changes
@pytest.mark.parametrize("trigger", ["default", "available-now", "once", "4.0"])
def test_a_query_that_may_lose_records_continues_at_the_end_of_the_copy(
    url: str, log: spark_log.Log, tmp_path: Path, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    """It reads the new records at offsets that it had before, and is not asked again."""
    put(log, 6)
    copy = copy_of(log, tmp_path / "copy")
    put(log, 4)
    stream = Stream(url, failOnDataLoss="false")
    stream.run()
    log = restored(url, copy)
    assert stream.restart(trigger).run() == []
    put(log, 7)
    assert stream.restart(trigger).run() == rows("t-0", 6, 13)
    put(log, 1)
    assert stream.restart(trigger, failOnDataLoss="true").run() == rows("t-0", 13, 14)
    assert len(logged(caplog, "was restored from a copy that ended at 6")) == 2


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_batch_that_is_read_during_the_restore_does_not_mix_records_of_both(
    url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """A part of its tasks has read lost records.  The batch is planned again when the query starts again."""
    log.admin.create_topics([NewTopic("t", 2)])
    copy = copy_of(log, tmp_path / "copy")
    put(log, 3)
    put(log, 3, 1)
    stream = Stream(url, minPartitions=2)
    assert stream.plan()
    first, second = stream.tasks()
    assert len(list(stream._read(first))) == 3
    log = restored(url, copy)
    put(log, 4)
    put(log, 4, 1)
    with pytest.raises(
        ConcurrentChange, match="t-[01] cannot be read on: the log was restored from a copy that ended at 0"
    ):
        list(stream._read(second))


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_query_that_has_read_only_what_is_in_the_copy_continues(
    url: str, log: spark_log.Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over several restores; a later one may be of an older copy."""
    put(log, 6)
    stream = Stream(url)
    stream.run()
    old = copy_of(log, tmp_path / "old")
    put(log, 2)
    log = restored(url, copy_of(log, tmp_path / "copy"))
    put(log, 1)
    log = restored(url, copy_of(log, tmp_path / "again"))
    put(log, 1)
    assert stream.restart().run() == rows("t-0", 6, 10)
    put(restored(url, old), 9)
    with pytest.raises(DataLoss, match="is at offset 10 of t-0, .* a copy that was made before what the query"):
        stream.restart().batch()
    assert Stream(url).run() == rows("t-0", 0, 15)
    assert logged(caplog, "restored from a copy") == []


def test_a_batch_that_was_planned_beyond_the_copy_is_refused(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    put(log, 3)
    stream = Stream(url)
    stream.run()
    copy = copy_of(log, tmp_path / "copy")
    put(log, 4)
    stream.plan()
    put(restored(url, copy), 9)
    with pytest.raises(DataLoss, match="is at offset 7 of t-0, and .* ended at 3"):
        stream.restart().read()


def test_a_running_query_is_refused_as_well(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """Its process opens the log again, as it has reached the version that the query knows."""
    put(log, 3)
    copy = copy_of(log, tmp_path / "copy")
    put(log, 4)
    stream = Stream(url)
    stream.run()
    log = restored(url, copy)
    for _ in range(20):
        put(log, 1)
    with pytest.raises(DataLoss, match="is at offset 7 of t-0, and .* ended at 3"):
        stream.batch()


# Promise: copies.md#if-you-restore-a-disk-snapshot
@pytest.mark.parametrize("more", [1, 50], ids=["behind", "grown"])
def test_a_log_whose_disk_was_set_back_is_noticed(url: str, log: spark_log.Log, tmp_path: Path, more: int) -> None:
    """No command says so: it has fewer versions than the query has seen, or another record at that version."""
    put(log, 6)
    shutil.copytree(url, tmp_path / "copy")
    for _ in range(10):
        put(log, 1)
    stream = Stream(url)
    stream.run()
    log = set_back(url, tmp_path / "copy")
    put(log, 20)
    for _ in range(more):
        put(log, 1)
    with pytest.raises(DataLoss, match=r"has seen version \d+ of the log, and .* was set back to an older copy since"):
        stream.restart().batch()
    assert stream.restart(failOnDataLoss="false").run() == rows("t-0", 16, 26 + more)


def test_a_mirror_that_is_behind_was_not_set_back(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """A query may read from there as long as it is not ahead of it."""
    put(log, 6)
    copy = copy_of(log, tmp_path / "copy")
    log.append("other", [{"value": "x"}])
    stream = Stream(url)
    stream.run()
    assert stream.restart(path=copy).run() == []


class Progress(Stream):
    def _new_reader(self, options: ReadOptions) -> ProgressStreamReader:
        return ProgressStreamReader(options, SCHEMA, self.clock)


def test_a_query_of_committed_offsets_that_is_ahead_of_the_copy_is_refused(
    url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """The offsets of that topic are versions, which the log has a second time."""
    put(log, 9)

    def commit(to: spark_log.Log, offset: int) -> None:
        to.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): offset})

    commit(log, 1)
    copy = copy_of(log, tmp_path / "copy")
    commit(log, 2)
    commit(log, 3)
    stream = Progress(url, "__consumer_offsets", failOnDataLoss="true")
    stream.plan()
    log = restored(url, copy)
    for offset in range(4, 9):
        commit(log, offset)
    with pytest.raises(DataLoss, match="of __consumer_offsets-0, and .* was restored from a copy"):
        stream.restart().plan()
    stream.restart(failOnDataLoss="false").plan()
    assert json.loads(json.dumps(stream.offsets[-1]["@starts"]))["__consumer_offsets"]["0"] < 8


def test_a_running_query_of_committed_offsets_is_refused_as_well(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """It sees the restored log while it plans a batch, of which only the start is of the time before."""
    put(log, 9)

    def commit(to: spark_log.Log, group: str) -> None:
        to.admin.alter_consumer_group_offsets(group, {TopicPartition("t", 0): 1})

    commit(log, "g0")
    copy = copy_of(log, tmp_path / "copy")
    for number in range(1, 5):
        commit(log, f"g{number}")
    stream = Progress(url, "__consumer_offsets", failOnDataLoss="true")
    stream.plan()
    stream.tasks()
    log = restored(url, copy)
    for number in range(10):
        commit(log, f"h{number}")
    stream.plan()
    with pytest.raises(DataLoss, match="of __consumer_offsets-0, and .* was restored from a copy"):
        stream.tasks()


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_running_query_moves_its_group_not_beyond_the_copy(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """A query with a new checkpoint begins at the group's position, and would leave out the records before."""
    log.admin.create_topics([NewTopic("t", 1)])
    put(log, 3)
    stream = Stream(url, **{"group.id": "g"})
    stream.run()
    copy = copy_of(log, tmp_path / "copy")
    put(log, 4)
    stream.batch()
    log = restored(url, copy)
    for _ in range(20):
        put(log, 1)
    with pytest.raises(DataLoss, match="is at offset 7 of t-0, and .* ended at 3"):
        stream.batch()
    stream.reader._progress.flush()
    assert {at.offset for at in log.admin.list_consumer_group_offsets("g").values()} <= {3}
