"""A consumer of many partitions, most of which have no more records."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

import spark_log
from spark_log.client.consumer.cursor import Cursor
from spark_log.client.consumer.fetch_positions import FetchPosition, FetchPositions
from spark_log.metadata.state import State
from spark_log.model import TopicPartition
from spark_log.store.bounded_waits import Waiter
from tests.client.logs import new_log


def positions_of(log: spark_log.Log, state: State) -> FetchPositions:
    """All partitions, as if their records had been read in this state."""
    found = FetchPositions()
    for name, topic_id in state.names.items():
        for number in range(state.topics[topic_id].partitions):
            tp, key = TopicPartition(name, number), (topic_id, number)
            cursor = Cursor(log.journal, tp, key, state.partitions[key].end, Waiter())
            assert cursor.take(state, 1) is None
            found.add(tp, FetchPosition(key, cursor.at, cursor=cursor))
    for tp in tuple(found.active(state)):
        found.end_turn(tp, state)
    return found


def test_a_version_makes_those_partitions_active_that_it_changes(tmp_path: Path) -> None:
    """In the order of its records; the others stay idle."""
    log = new_log(tmp_path, a=3, b=50)
    positions = positions_of(log, log.journal.state)
    assert positions.active(log.journal.state) == {}
    log.append("b", [{"value": b"x", "partition": 7}])
    log.append("a", [{"value": b"x", "partition": 2}])
    state = log.journal.state
    assert list(positions.active(state)) == [("b", 7), ("a", 2)]
    positions.end_turn(TopicPartition("b", 7), state)
    assert list(positions.active(state)) == [("a", 2), ("b", 7)], "it has records: it is served last"
    log.admin.delete_records({TopicPartition("a", 0): 0})
    assert list(positions.active(log.journal.state)) == [("a", 2), ("b", 7)]


def test_after_a_state_of_unknown_changes_all_partitions_are_compared(tmp_path: Path) -> None:
    """Another process that opened the log at a later version, for example."""
    log = new_log(tmp_path, a=3)
    positions = positions_of(log, log.journal.state)
    log.append("a", [{"value": b"x", "partition": 1}])
    with spark_log.connect(log.url) as other:
        assert other.journal.state.changes_since(log.journal.state) is None
        active = positions.active(other.journal.state)
        assert ("a", 1) in active and len(active) <= 3


@pytest.mark.parametrize("seed", range(12))
def test_every_record_is_returned_once_and_in_order(tmp_path: Path, seed: int) -> None:
    """While others write and add partitions, and the consumer pauses, seeks and reads a few records at a time."""
    rng, count = random.Random(seed), 0
    log = new_log(tmp_path, a=3, b=2)
    reader = spark_log.connect(log.url)
    consumer = reader.consumer(
        auto_offset_reset="earliest", max_poll_records=rng.choice([1, 3, 500]), consumer_timeout_ms=0
    )
    consumer.subscribe(pattern="[ab]")
    written: dict[TopicPartition, list[int]] = defaultdict(list)
    read: dict[TopicPartition, list[int]] = defaultdict(list)

    def write() -> None:
        nonlocal count
        topic = rng.choice("aab")
        partition = rng.randrange(log.journal.state.topics[log.journal.state.names[topic]].partitions)
        values = range(count, count := count + rng.randint(1, 4))
        log.append(topic, [{"value": b"%d" % value, "partition": partition} for value in values])
        written[TopicPartition(topic, partition)] += values

    def poll() -> None:
        for tp, records in consumer.poll().items():
            read[tp] += [int(record.value) for record in records]

    def iterate() -> None:
        for record in consumer:
            read[TopicPartition(record.topic, record.partition)].append(int(record.value))
            if rng.random() < 0.4:
                break

    def repeat() -> None:
        tp = rng.choice(sorted(consumer.assignment()))
        if read[tp]:
            consumer.seek(tp, len(read[tp]) - 1)
            read[tp].pop()

    def pause() -> None:
        consumer.pause(rng.choice(sorted(consumer.assignment())))

    def resume() -> None:
        consumer.resume(*consumer.paused())

    def grow() -> None:
        at = log.journal.state
        log.admin.create_partitions({"a": at.topics[at.names["a"]].partitions + 1})

    poll()
    for _ in range(60):
        rng.choice(
            [write, write, write, poll, poll, iterate, repeat, pause, resume, grow if rng.random() < 0.1 else poll]
        )()
    resume()
    for _ in range(200):
        poll()
    assert {tp: values for tp, values in read.items() if values} == dict(written)
    consumer.close()
    reader.close()
