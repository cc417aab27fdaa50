"""How far groups are behind: records, bytes, time."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log import NewTopic, TopicPartition
from spark_log.client.admin.lag import PartitionLag, lags_of
from spark_log.errors import GroupIdNotFound
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.records import CommitRecord, Piece
from spark_log.model import DataObject, Run
from spark_log.store.base import ObjectStore
from spark_log.store.memory import MemoryStore
from tests.client.logs import log_url
from tests.thinning import thin

NOW_MS = 1_769_853_600_000
"""2026-01-31T10:00Z."""
T0 = TopicPartition("t", 0)
MINUTE_MS = 60_000


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """Topic t: ten records in one append, a minute apart, the last one a minute old."""
    log = spark_log.connect(log_url(tmp_path), durability="os")
    log.admin.incremental_alter_configs({None: {"log.clock.skew.max.ms": "-1"}})
    log.journal.metadata_log.context = replace(log.journal.context, clock=ManualClock(NOW_MS))
    log.append("t", [{"value": b"v" * 100, "timestamp": minutes_ago(10 - n)} for n in range(10)])
    return log


def minutes_ago(minutes: int) -> datetime:
    return datetime.fromtimestamp(NOW_MS / 1000, timezone.utc) - timedelta(minutes=minutes)


def lag(log: spark_log.Log, offset: int, number: int = 0) -> PartitionLag:
    """Of a group that stands at an offset of a partition of t."""
    log.admin.alter_consumer_group_offsets("g", {TopicPartition("t", number): spark_log.OffsetAndMetadata(offset)})
    return next(found for found in lags_of(log.journal, ["g"])["g"] if found.tp.partition == number)


# Promise: monitoring.md#watch-a-query
def test_lag_is_the_records_that_were_not_read(log: spark_log.Log) -> None:
    """Up to the end; none for a group that has read everything, or stands beyond."""
    assert [lag(log, offset).records for offset in (0, 4, 10)] == [10, 6, 0]
    assert lag(log, 12)._replace(position=lag(log, 10).position) == lag(log, 10)


def test_time_is_that_of_the_first_record_behind_holes(log: spark_log.Log) -> None:
    """Embedded, where compaction has removed records: within a slice, in the next one, and up to the end."""
    log.append("t", [{"value": b"v", "timestamp": minutes_ago(30 - n)} for n in range(10)])
    log.append("t", [{"value": b"v", "timestamp": minutes_ago(50)}])
    for number, left in enumerate(({0, 1, 6}, {13, 14}, set[int]())):
        assert thin(log, "t", left.__contains__, first=number, last=number + 1)
    ages = [lag(log, offset).ms // MINUTE_MS for offset in (1, 2, 6, 7, 12, 13, 14, 15, 20, 21)]
    assert ages == [9, 4, 4, 27, 27, 27, 26, 0, 0, 0]
    assert [lag(log, offset).records for offset in (2, 14)] == [19, 7], "as in Kafka, offsets count"


# Promise: monitoring.md#watch-a-query
def test_bytes_are_those_of_what_was_not_read(log: spark_log.Log) -> None:
    """A slice that was read in part counts in proportion; without unread records the size is zero."""
    whole = log.admin.describe_topics(["t"])["t"].bytes
    assert lag(log, 0).bytes == whole > 0
    assert lag(log, 5).bytes == whole // 2
    assert lag(log, 10).bytes == 0


# Promise: monitoring.md#watch-a-query
def test_time_is_the_age_of_the_first_record_that_was_not_read(log: spark_log.Log) -> None:
    """Its own age wherever in an append it is; 0 if nothing is unread."""
    assert [lag(log, offset).ms // MINUTE_MS for offset in (0, 4, 9, 10)] == [10, 6, 1, 0]


def test_a_record_of_the_future_has_no_age(log: spark_log.Log) -> None:
    """Clocks differ."""
    log.append("t", [{"value": b"v", "timestamp": minutes_ago(-5)}])
    assert (lag(log, 10).records, lag(log, 10).ms) == (1, 0)


def test_time_of_a_topic_that_stamps_records_itself(log: spark_log.Log) -> None:
    """The log's time of the append counts, not what its producer said."""
    log.admin.create_topics([NewTopic("t2", 1, {"message.timestamp.type": "LogAppendTime"})])
    log.append("t2", [{"value": b"v", "timestamp": minutes_ago(60 - n)} for n in range(3)])
    log.admin.alter_consumer_group_offsets("g", {TopicPartition("t2", 0): spark_log.OffsetAndMetadata(1)})
    assert [found.ms for found in lags_of(log.journal, ["g"])["g"]] == [0]


# Promise: monitoring.md#watch-a-query, retention.md#when-a-reader-is-too-late
def test_trimmed_records_are_no_lag(log: spark_log.Log) -> None:
    """They are counted apart: nobody can read them."""
    lag(log, 2)
    log.admin.delete_records({T0: 5})
    found = lag(log, 2)
    assert (found.trimmed, found.records, found.ms // MINUTE_MS) == (3, 5, 5)
    assert lag(log, 5).trimmed == 0


def test_lag_is_the_same_after_a_merge(log: spark_log.Log) -> None:
    """A segment of many appends changes neither records nor time."""
    for n in range(20):
        log.append("t", [{"value": b"v", "timestamp": minutes_ago(0)}] * (n + 1))
    before = lag(log, 7)
    maintain_once(log)
    after = lag(log, 7)
    assert len(log.journal.state.partitions[log.journal.state.names["t"], 0].entries) == 1
    assert (after.records, after.ms) == (before.records, before.ms) == (213, 3 * MINUTE_MS)


def test_all_groups_at_once(log: spark_log.Log) -> None:
    """Each with its own lag; one that has committed nothing is an error that names the nearest."""
    for name, offset in (("billing", 3), ("audit", 10)):
        log.admin.alter_consumer_group_offsets(name, {T0: spark_log.OffsetAndMetadata(offset)})
    found = lags_of(log.journal, ["audit", "billing"])
    assert {name: [one.records for one in lags] for name, lags in found.items()} == {"audit": [0], "billing": [7]}
    with pytest.raises(GroupIdNotFound, match="did you mean billing"):
        lags_of(log.journal, ["biling"])


PARTITIONS, COMMITS = 100, 100


def test_lag_of_many_segments_reads_few_objects() -> None:
    """Embedded, on a store that counts: 100 partitions of 100 segments each: an index for each partition at most, and
    no records.
    """
    store = CountingStore(MemoryStore("lag"))
    journal = Journal.open(store, create=True, clock=ManualClock(NOW_MS), rng=random.Random(7))
    log = spark_log.Log(journal)
    log.admin.create_topics([NewTopic("t", PARTITIONS)])
    topic_id = journal.state.names["t"]
    for n in range(COMMITS):
        commit_runs(journal, topic_id, n)
        journal.finish_maintenance()
    start = {TopicPartition("t", number): spark_log.OffsetAndMetadata(1000) for number in range(PARTITIONS)}
    log.admin.alter_consumer_group_offsets("g", start)
    assert any(isinstance(entry, Piece) for entry in journal.state.partitions[topic_id, 0].entries)
    before = store.gets
    lags = lags_of(journal, ["g"])["g"]
    assert sum(one.records for one in lags) == PARTITIONS * (COMMITS - 10) * 100
    assert {one.bytes for one in lags} == {(COMMITS - 10) * 1000}
    assert {one.ms for one in lags} == {NOW_MS - 10 * 1000}
    assert store.gets - before <= PARTITIONS


def commit_runs(journal: Journal, topic_id: str, n: int) -> None:
    """A commit of 100 records in each partition; its objects do not exist."""
    name = f"data/{journal.state.version:016x}/{n}.seg"
    runs = tuple(
        (0, Run(topic_id, number, 1000 * number, 1000, 0, 100, 1, n * 1_000_000, n * 1_000_000 + 999))
        for number in range(PARTITIONS)
    )
    commit = CommitRecord(
        producer="p",
        sequence=n,
        upload_epoch=journal.state.version,
        objects=(DataObject(name, 10**6, 10**6),),
        slices=runs,
    )
    journal.propose(lambda state, now: decide_commit(state, commit))


class CountingStore(Wrapper):
    """Counts gets."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gets = 0

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        return super().get(key, start, end)
