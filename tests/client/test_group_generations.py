"""Groups that come back, and groups that are kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.stores import ClockedStore
from spark_log.errors import IllegalGeneration
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from tests.client.logs import log_url, quick_store


def test_a_consumer_of_a_deleted_group_stays_fenced_when_the_group_is_made_again(tmp_path: Path) -> None:
    """Its generation is never given out a second time."""
    log = spark_log.connect(log_url(tmp_path))
    log.append("t", [{"value": "x"}] * 3)
    tp = spark_log.TopicPartition("t", 0)
    old = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    old.poll(timeout_ms=2000)
    log.admin.remove_members_from_consumer_group("g")
    log.admin.delete_consumer_groups(["g"])
    new = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    new.poll(timeout_ms=2000, max_records=1)
    new.commit()
    with pytest.raises(IllegalGeneration):
        old.commit()
    assert log.admin.list_consumer_group_offsets("g")[tp].offset == 1
    old.close()
    new.close()


def test_commits_on_their_way_are_in_before_a_consumer_leaves(tmp_path: Path) -> None:
    """None is refused because it was late, and none comes after the group was given up."""
    log = spark_log.connect(log_url(tmp_path), durability="os")
    log.append("t", [{"value": "x"}] * 30)
    tp, errors = spark_log.TopicPartition("t", 0), []
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.poll(timeout_ms=5000)
    for offset in range(1, 21):
        consumer.commit_async({tp: offset}, lambda _, error: errors.append(error))
    consumer.close()
    assert errors == [None] * 20
    assert log.admin.list_consumer_group_offsets("g")[tp].offset == 20


def test_commits_on_their_way_of_a_consumer_that_was_replaced_are_refused(tmp_path: Path) -> None:
    """Embedded, where a newer one takes all: also when it has subscribed again by then."""
    log, other = (spark_log.connect(log_url(tmp_path), durability="os") for _ in range(2))
    log.append("t", [{"value": "x"}] * 30)
    tp, errors = spark_log.TopicPartition("t", 0), []
    old, new = (
        one.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) for one in (log, other)
    )
    old.poll()
    new.poll()
    new.commit({tp: 20})
    log.journal.refresh()
    for offset in range(1, 6):
        old.commit_async({tp: offset}, lambda _, error: errors.append(type(error)))
    old.subscribe("t")
    old.close()
    assert errors == [IllegalGeneration] * 5
    assert other.admin.list_consumer_group_offsets("g")[tp].offset == 20


def test_positions_of_a_deleted_topic_are_not_those_of_its_successor(tmp_path: Path) -> None:
    """A consumer that leaves after the topic was created again commits where it stands in others, and nothing there."""
    log = spark_log.connect(log_url(tmp_path), durability="os")
    for topic in ("gone", "stays"):
        log.append(topic, [{"value": "x"}] * 5)
    consumer = log.consumer("gone", "stays", group_id="g", auto_offset_reset="earliest")
    consumer.poll(timeout_ms=5000)
    log.admin.delete_topics(["gone"])
    log.append("gone", [{"value": "new"}] * 9)
    consumer.close()
    assert list(log.admin.list_consumer_group_offsets("g")) == [spark_log.TopicPartition("stays", 0)]
    with log.consumer("gone", group_id="g", auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll(timeout_ms=5000)[spark_log.TopicPartition("gone", 0)]) == 9


def test_a_commit_that_did_not_know_of_a_deletion_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither is it refused as a whole, nor does a group stand in a topic that is not there."""
    log, other = (spark_log.connect(log_url(tmp_path), durability="os") for _ in range(2))
    for topic in ("gone", "stays"):
        log.append(topic, [{"value": "x"}] * 5)
    consumer = log.consumer("gone", "stays", group_id="g", auto_offset_reset="earliest")
    consumer.poll(timeout_ms=5000)
    other.admin.delete_topics(["gone"])
    consumer.close()
    assert list(other.admin.list_consumer_group_offsets("g")) == [spark_log.TopicPartition("stays", 0)]
    maintain_once(other)
    assert list(other.admin.list_consumer_group_offsets("g")) == [spark_log.TopicPartition("stays", 0)]


def test_a_consumer_of_a_quiet_topic_keeps_its_group(tmp_path: Path) -> None:
    """Positions that have not changed for longer than they are kept are those of a group in use, and stay."""
    clock = ManualClock()
    log = spark_log.Log(
        Journal.open(ClockedStore(quick_store(tmp_path), clock), create=True, clock=clock, rng=random.Random(7))
    )
    log.append("t", [{"value": "x"}])
    with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.poll()
        for _ in range(10):  # days; positions are kept for seven
            clock.ms += 24 * 3_600_000
            consumer.poll()
            maintain_once(log)
        log.append("t", [{"value": "y"}])
        assert [record.offset for record in consumer.poll()[spark_log.TopicPartition("t", 0)]] == [1]
    assert log.admin.list_consumer_group_offsets("g")[spark_log.TopicPartition("t", 0)].offset == 2
