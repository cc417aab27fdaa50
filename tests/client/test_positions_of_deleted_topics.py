"""Positions in a topic that was deleted do not count in the one that has its name now, however they are committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from spark_log.client.consumer.consumer import Consumer
from spark_log.errors import UnknownTopicOrPartition
from spark_log.model import TopicPartition
from tests.client.logs import new_log

P0 = TopicPartition("t", 0)
Commit = Callable[[spark_log.Log, Consumer, int], None]


def by_number(log: spark_log.Log, consumer: Consumer, end: int) -> None:
    consumer.commit({P0: end})


def in_the_background(log: spark_log.Log, consumer: Consumer, end: int) -> None:
    told: list[object] = []
    consumer.commit_async({P0: end}, lambda offsets, error: told.append((offsets[P0].offset, error)))
    assert consumer.committed(P0) is None and told == [(end, None)]


def with_records(log: spark_log.Log, consumer: Consumer, end: int) -> None:
    with log.transaction("copy") as txn:
        txn.append("out", [{"value": "derived"}])
        txn.commit_offsets(consumer, {P0: end})


def by_default(log: spark_log.Log, consumer: Consumer, end: int) -> None:
    consumer.commit()


EVERY = [by_number, in_the_background, with_records, by_default]


def made_again(log: spark_log.Log, records: int = 10) -> None:
    """By another client."""
    log.admin.delete_topics(["t"])
    log.append("t", [{"value": f"new {n}"} for n in range(records)])


def two_clients(folder: Path) -> tuple[spark_log.Log, spark_log.Log]:
    log = new_log(folder, t=1, out=1)
    log.append("t", [{"value": f"old {n}"} for n in range(5)])
    return log, spark_log.connect(log.url)


def reader(log: spark_log.Log) -> Consumer:
    return log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)


def next_values(consumer: Consumer, wanted: int = 10) -> list[bytes | None]:
    found: list[bytes | None] = []
    deadline = time.monotonic() + 20
    while len(found) < wanted and time.monotonic() < deadline:
        found += [record.value for records in consumer.poll(500).values() for record in records]
    return found


NEW = [b"new %d" % n for n in range(10)]


# Promise: clients.md#consumer
@pytest.mark.parametrize("commit", EVERY)
def test_what_was_read_before_the_deletion_does_not_count(tmp_path: Path, commit: Commit) -> None:
    """Neither for the running consumer nor for the next one, which read the new topic from its start."""
    log, other = two_clients(tmp_path)
    with reader(log) as consumer:
        assert len(next_values(consumer, 5)) == 5
        made_again(other)
        log.append("out", [{"value": "shows the newest version"}])
        commit(log, consumer, 5)
        assert next_values(consumer) == NEW
    with reader(log) as consumer:
        assert next_values(consumer) == NEW


# Promise: clients.md#consumer
def test_what_is_committed_after_the_consumer_has_the_new_topic_does_not_count_either(tmp_path: Path) -> None:
    """A worker that is late commits a position beyond what the consumer has returned of the new topic."""
    log, other = two_clients(tmp_path)
    with reader(log) as consumer:
        next_values(consumer, 5)
        made_again(other)
        assert [record.value for records in consumer.poll(20_000, 2).values() for record in records] == NEW[:2]
        consumer.commit({P0: 5})
        assert consumer.committed(P0) is None
        consumer.commit({P0: 1})
        assert consumer.committed(P0) == 1
        consumer.seek(P0, 7)
        consumer.commit({P0: 7})
        assert consumer.committed(P0) == 7


def test_partitions_that_are_assigned_anew_by_hand_are_others(tmp_path: Path) -> None:
    log, other = two_clients(tmp_path)
    consumer = log.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([P0])
    next_values(consumer, 5)
    made_again(other)
    log.append("out", [{"value": "shows the newest version"}])
    consumer.unsubscribe()
    consumer.commit({P0: 5})
    consumer.assign([P0])
    consumer.commit({P0: 5})
    assert consumer.committed(P0) is None
    assert next_values(consumer) == NEW
    consumer.commit({P0: 9})
    assert consumer.committed(P0) == 9
    consumer.close()


def test_a_transaction_that_names_a_group_means_the_topics_that_it_found(tmp_path: Path) -> None:
    log, other = two_clients(tmp_path)
    with log.transaction("copy") as txn:
        txn.append("out", [{"value": "derived"}])
        made_again(other)
        txn.commit_offsets("g", {P0: 5, TopicPartition("out", 0): 0})
    positions = log.admin.list_consumer_group_offsets("g")
    assert {tp: at.offset for tp, at in positions.items()} == {TopicPartition("out", 0): 0}


def test_positions_of_other_topics_are_committed(tmp_path: Path) -> None:
    log, other = two_clients(tmp_path)
    with log.consumer("t", "out", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        next_values(consumer, 5)
        made_again(other)
        log.append("out", [{"value": "x"}] * 3)
        consumer.commit({P0: 5, TopicPartition("out", 0): 2})
    positions = log.admin.list_consumer_group_offsets("g")
    assert {tp: at.offset for tp, at in positions.items()} == {TopicPartition("out", 0): 2}


# Promise: clients.md#consumer
@pytest.mark.parametrize("group", [None, "g"])
def test_an_assigned_partition_that_was_deleted_is_an_error_until_it_is_assigned_again(
    tmp_path: Path, group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the topic of that name is read from its start, whatever the reset policy is."""
    log, other = two_clients(tmp_path)
    consumer = log.consumer(group_id=group, auto_offset_reset="latest")
    consumer.assign([P0])
    consumer.seek(P0, 0)
    assert len(next_values(consumer, 5)) == 5
    made_again(other)
    for _ in range(3):
        with pytest.raises(UnknownTopicOrPartition, match="t-0 is assigned, but was deleted; assign"):
            consumer.poll(100)
    consumer.assign([P0])
    assert next_values(consumer) == [b"new %d" % n for n in range(10)]
    assert "topic 't' was deleted and created again: reading continues at" in caplog.text
