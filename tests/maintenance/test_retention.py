"""Retention: whole slices, from the front, by age and by size."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_log import Log, NewTopic, TopicPartition
from spark_log.journal.context import Context
from spark_log.journal.sealing import prune, seal
from spark_log.journal.store_operations import Steps
from spark_log.maintenance.maintain import checkpoint, expire, maintain_once, merge, plan_round
from spark_log.maintenance.retention import ExpiredTopic, RetentionLimits, expired, find_expired, limits_of
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.model import Slice
from spark_log.recovery.verify import verify
from spark_log.rewriting.merge_policy import RETENTION_PARTS
from tests.logged import logged
from tests.maintenance.logs import HOUR_MS, append_small, maintenance, new_log, slices

MINUTE_MS = 60_000


def offsets(log: Log) -> list[int]:
    return list(log.read("t")["offset"].to_pylist())


# Promise: retention.md#keep-records-for-a-time
def test_old_records_go(tmp_path: Path) -> None:
    """Slices whose newest record is older than retention.ms go, and their objects are dropped."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 4, age_ms=2 * HOUR_MS)
    append_small(log, 2, first=4)
    report = maintain_once(log)
    assert report.expired_records == 12
    assert offsets(log) == list(range(12, 18))
    assert verify(log) == []


# Promise: spark.md#columns
def test_records_that_are_too_old_when_they_are_written_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Event times of a backfill would vanish soon; maintenance says of which topic it removed records."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 1, age_ms=HOUR_MS // 2)
    assert not logged(caplog, "topic t: records with timestamps")
    append_small(log, 2, age_ms=2 * HOUR_MS)
    (warning,) = logged(caplog, "topic t: records with timestamps up to")
    assert "set retention.ms=-1 to keep them" in warning
    with caplog.at_level("INFO", "spark_log"):
        log.create_topic(NewTopic("old", 1, {"retention.ms": "1"}))
        log.append("old", [{"value": b"x", "timestamp": 1}])
        expire(log)
    assert any(one.startswith("topic old: retention removed 1 records, ") for one in caplog.messages)


def test_records_that_are_gone_keep_no_others(tmp_path: Path) -> None:
    """Younger ones before them were trimmed, and are still in the slice index; or go by size in the same round."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 2)
    append_small(log, 2, first=2, age_ms=2 * HOUR_MS)
    maintenance(log.journal, seal)
    log.admin.delete_records({TopicPartition("t", 0): 6})
    assert expire(log) == 6
    append_small(log, 2)
    append_small(log, 2, first=2, age_ms=2 * HOUR_MS)
    log.admin.incremental_alter_configs({"t": {"retention.bytes": str(sum(one.length for one in slices(log)[2:]))}})
    assert expire(log) == 12


# Promise: monitoring.md#watch-a-coordinator
def test_a_report_says_what_each_topic_lost(tmp_path: Path) -> None:
    """Records, and the bytes of the removed slices, sealed or not; a topic that lost nothing is not listed."""
    log = new_log(tmp_path, partitions=2, retention_ms=str(HOUR_MS))
    log.create_topic(NewTopic("kept"))
    log.append("kept", [{"value": b"x"}])
    append_small(log, 2, partitions=2, age_ms=2 * HOUR_MS)
    maintenance(log.journal, seal)
    append_small(log, 1, partitions=2, first=2, age_ms=2 * HOUR_MS)
    stored = log.admin.describe_topics(["t"])["t"].bytes
    append_small(log, 1, partitions=2, first=3)
    plan, report = plan_round(log), maintain_once(log)
    assert report.expired_topics == (ExpiredTopic("t", 18, stored),)
    assert (report.expired_records, report.expired_bytes) == (plan.expired_records, plan.expired_bytes) == (18, stored)
    assert maintain_once(log).expired_topics == ()


def append_trickle(log: Log, began_ms: int, minutes: int) -> None:
    """A record a minute, merged every 10 minutes."""
    for minute in range(minutes):
        log.append("t", [{"value": b"%d" % minute, "timestamp": began_ms + minute * MINUTE_MS}])
        if minute % 10 == 9:
            merge(log)


def run_and_check(log: Log, began_ms: int, run: Callable[[Log], object]) -> None:
    """The kept part of a trickle: the last hour, and at most an eighth of it more."""
    before_ms = int(time.time() * 1000)
    run(log)
    after_ms = int(time.time() * 1000)
    oldest_ms = began_ms + offsets(log)[0] * MINUTE_MS
    assert before_ms - HOUR_MS - HOUR_MS // RETENTION_PARTS - MINUTE_MS <= oldest_ms <= after_ms - HOUR_MS + MINUTE_MS
    assert verify(log, deep=True) == []


TIERS = 4
"""Slices that wait at the end of a partition where a window has 8 records."""


# Promise: retention.md#keep-records-for-a-time, topic-configs.md#when-records-expire
def test_a_trickle_expires_although_it_is_merged(tmp_path: Path) -> None:
    """Retention is late by an eighth at most, and a few slices are left."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    began_ms = int(time.time() * 1000) - 6 * HOUR_MS
    append_trickle(log, began_ms, 360)
    assert len(slices(log)) <= 6 * RETENTION_PARTS + 1 + TIERS
    run_and_check(log, began_ms, maintain_once)
    assert len(slices(log)) <= RETENTION_PARTS + 2 + TIERS


# Promise: topic-configs.md#when-records-expire
def test_a_segment_spans_segment_ms(tmp_path: Path) -> None:
    """Also where nothing expires."""
    log = new_log(tmp_path, retention_ms="-1", segment_ms=str(HOUR_MS))
    append_trickle(log, 0, 600)
    merge(log)
    assert [(piece.start, piece.end) for piece in slices(log)] == [(60 * n, 60 * n + 60) for n in range(10)]


def test_merged_slices_expire_when_they_are_sealed(tmp_path: Path) -> None:
    """In an index they go one by one, as they do outside."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    began_ms = int(time.time() * 1000) - 6 * HOUR_MS
    append_trickle(log, began_ms, 360)
    maintenance(log.journal, seal)
    assert slices(log) == []
    run_and_check(log, began_ms, expire)


def test_a_whole_topic_can_expire(tmp_path: Path) -> None:
    """An idle topic ends empty, and continues at the same offset."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 4, age_ms=2 * HOUR_MS)
    assert expire(log) == 12
    assert offsets(log) == []
    append_small(log, 1, first=4)
    assert offsets(log) == [12, 13, 14]


# Promise: topic-configs.md#when-records-expire
def test_a_young_slice_keeps_those_behind_it(tmp_path: Path) -> None:
    """Only the front goes: offsets have no holes."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 1)
    append_small(log, 3, first=1, age_ms=2 * HOUR_MS)
    assert expire(log) == 0


def test_sealed_slices_expire_one_by_one(tmp_path: Path) -> None:
    """A piece that holds old and young slices is looked into."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 200, age_ms=2 * HOUR_MS)
    append_small(log, 100, first=200)
    checkpoint(log)
    state = log.journal.refresh()
    assert any(isinstance(entry, Piece) for entry in state.partitions[state.names["t"], 0].entries)
    assert expire(log) == 600
    assert offsets(log)[0] == 600
    assert verify(log, deep=True) == []


def test_a_partition_whose_index_is_gone_from_an_old_state_waits_for_the_next_round(tmp_path: Path) -> None:
    """Another process has trimmed it meanwhile, and collected it.  Records of other partitions go."""
    log = new_log(tmp_path, partitions=2, retention_ms=str(HOUR_MS))
    append_small(log, 2, partitions=2, age_ms=2 * HOUR_MS)
    append_small(log, 1, first=2, age_ms=2 * HOUR_MS)
    append_small(log, 1, first=3)
    maintenance(log.journal, seal)

    def starts(state: State, context: Context) -> Steps[dict[int, int]]:
        found = yield from find_expired(state, context.clock.now_ms())
        return {partition: front.start for (_, partition), front in found.items()}

    def starts_late(state: State, context: Context) -> Steps[dict[int, int]]:
        (index,) = state.partitions[state.names["t"], 0].entries
        assert isinstance(index, Piece)
        append_small(log, 1, first=4)
        log.admin.delete_records({TopicPartition("t", 0): 13})
        maintenance(log.journal, prune)
        assert index not in log.journal.refresh().partitions[state.names["t"], 0].entries
        (tmp_path / index.object).unlink()
        return (yield from starts(state, context))

    assert maintenance(log.journal, starts) == {0: 9, 1: 6}
    assert maintenance(log.journal, starts_late) == {1: 6}


# Promise: retention.md#keep-records-for-a-time, topic-configs.md#topics
def test_by_size_the_oldest_go_while_enough_stays(tmp_path: Path) -> None:
    """The remaining slices have at least retention.bytes, and would have less without the first one."""
    log = new_log(tmp_path)
    append_small(log, 10)
    size = slices(log)[0].length
    limit = str(3 * size + 1)
    log.journal.propose(lambda s, now: decide_set_configs(s, "t", {"retention.bytes": limit}))
    expire(log)
    assert 3 <= len(slices(log)) <= 5
    kept = sum(piece.length for piece in slices(log))
    assert kept >= 3 * size + 1 > kept - slices(log)[0].length


# Promise: topic-configs.md#topics
def test_without_delete_in_the_policy_records_stay(tmp_path: Path) -> None:
    """cleanup.policy decides whether there is retention at all."""
    now = int(time.time() * 1000)
    assert limits_of({"cleanup.policy": "compact", "retention.ms": "1"}, now) == RetentionLimits(None, None)
    assert limits_of({"retention.ms": "-1"}, now) == RetentionLimits(None, None)
    assert limits_of({"retention.ms": "1000", "retention.bytes": "5"}, 2000) == RetentionLimits(1_000_000, 5)


def piece(size: int, max_us: int) -> Slice:
    return Slice(0, 1, "o", 0, size, 0, 1, 0, max_us)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (RetentionLimits(None, None), 0),
        (RetentionLimits(10, None), 1),
        (RetentionLimits(21, None), 2),
        (RetentionLimits(99, None), 4),
        (RetentionLimits(None, 40), 0),
        (RetentionLimits(None, 25), 1),
        (RetentionLimits(None, 0), 4),
        (RetentionLimits(10, 15), 2),
    ],
)
def test_counts(limits: RetentionLimits, expected: int) -> None:
    """By time strictly older ones, by size while the rest is not below the limit; the larger of the two."""
    entries = [piece(10, 9), piece(10, 20), piece(10, 30), piece(10, 40)]
    assert expired(entries, limits) == expected
