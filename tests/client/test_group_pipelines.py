"""Producers that write to several placement groups, of which one has no leader or too few replicas for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import spark_log
from simulation.harness.broker_roots import register_broker
from spark_log.client.producer.delivery import BlockedPlace
from spark_log.client.producer.futures import WIDTH, AssignedOffsets, Ints, RecordFuture, SentBatch
from spark_log.client.producer.placement_pipelines import _Pipeline, can_be_written
from spark_log.errors import LeaderNotAvailable, NotEnoughReplicas
from spark_log.runtime.threads import SystemThreads


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    """A topic "t": partition 0 on broker 0, and partition 1 on broker 1."""
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        register_broker(log, 1, str(tmp_path / "broker1"))
        log.create_topic(spark_log.NewTopic("t", 2, replica_assignment={0: (0,), 1: (1,)}))
        yield log


def send(producer: spark_log.Producer, numbers: range) -> list[tuple[RecordFuture, RecordFuture]]:
    """Records with these numbers to both partitions; waits for those of partition 0."""
    sent = []
    for number in numbers:
        sent.append(tuple(producer.send("t", b"%d" % number, partition=partition) for partition in (0, 1)))
        assert sent[-1][0].result(5).offset == number
    return sent  # type: ignore[return-value]


def values(log: spark_log.Log, partition: int) -> list[bytes]:
    return [row["value"] for row in log.read("t", partition).to_pylist()]


# Promise: replicas.md#limits
def test_a_partition_without_a_leader_delays_no_other(log: spark_log.Log) -> None:
    """Its records wait, are in the log once, in order, when a replica is back, and rounds are shared again."""
    with log.producer() as producer:
        before = send(producer, range(2))
        assert [second.result(5).offset for _, second in before] == [0, 1]
        log.admin.fence_broker(1)
        waiting = [second for _, second in send(producer, range(2, 7))]
        called: list[int] = []
        for future in waiting:
            future.add_callback(lambda found: called.append(found.offset))
        assert not any(future.done() for future in waiting)
        with pytest.raises(TimeoutError):
            producer.flush(0.05)
        with pytest.raises(TimeoutError):
            waiting[0].result(0.05)
        log.admin.unfence_broker(1)
        producer.flush(20)
        assert called == [future.result().offset for future in waiting] == [2, 3, 4, 5, 6]
        after = send(producer, range(7, 9))
        assert [second.result(5).offset for _, second in after] == [7, 8]
        version = log.journal.refresh().version
        both = [producer.send("t", b"9", partition=partition) for partition in (0, 1)]
        producer.flush()
        assert [future.result().offset for future in both] == [9, 9]
        assert log.journal.refresh().version == version + 1
    assert values(log, 0) == values(log, 1) == [b"%d" % number for number in range(10)]


def test_records_that_wait_end_with_their_delivery_timeout(log: spark_log.Log) -> None:
    """Each with its own; the producer can be closed meanwhile."""
    log.admin.fence_broker(1)
    began = time.monotonic()
    with log.producer(delivery_timeout_ms=800) as producer:
        first = send(producer, range(1))[0][1]
        time.sleep(0.3)
        second = producer.send("t", b"later", partition=1)
        assert isinstance(first.exception(5), LeaderNotAvailable)
        assert not second.done()
    assert isinstance(second.exception(), LeaderNotAvailable)
    assert 1.0 < time.monotonic() - began < 5
    assert values(log, 1) == []


def test_too_few_replicas_of_one_group_delay_no_other(log: spark_log.Log, tmp_path: Path) -> None:
    """Also if their roots are away and not fenced yet."""
    log.create_topic(spark_log.NewTopic("u", replica_assignment={0: (0, 1)}, configs={"min.insync.replicas": "2"}))
    log.create_topic(spark_log.NewTopic("own"))
    (tmp_path / "broker1").rename(tmp_path / "unmounted")
    with log.producer(delivery_timeout_ms=2000) as producer:
        few, none, own = producer.send("u", b"x"), producer.send("t", b"x", partition=1), producer.send("own", b"x")
        assert own.result(1.9).offset == 0
        assert not few.done() and not none.done()
        assert producer.send("own", b"y").result(1.9).offset == 1
        assert isinstance(few.exception(20), NotEnoughReplicas)
        assert none.exception(20) is not None
        (tmp_path / "unmounted").rename(tmp_path / "broker1")
        both = producer.send("u", b"z"), producer.send("t", b"z", partition=1)
        assert [future.result(20).offset for future in both] == [0, 0]


def test_a_write_without_acks_all_needs_the_leader_only(log: spark_log.Log) -> None:
    log.create_topic(spark_log.NewTopic("u", replica_assignment={0: (0, 1)}, configs={"min.insync.replicas": "2"}))
    group = log.journal.state.assignments[log.journal.state.names["u"]][0]
    assert can_be_written(log.journal.state, BlockedPlace(group), ["u"])
    log.admin.fence_broker(1)
    assert not can_be_written(log.journal.refresh(), BlockedPlace(group), ["u", "gone"])
    assert can_be_written(log.journal.state, BlockedPlace(group), [])


def batch_of(*values: bytes) -> tuple[SentBatch, list[RecordFuture]]:
    """A batch that was taken and encoded: each record is of the partition that its value is."""
    batch = SentBatch("t", lambda: None, SystemThreads())
    futures = [RecordFuture(batch, number * WIDTH) for number in range(len(values))]
    for future, value in zip(futures, values, strict=True):
        assert batch.rows is not None
        batch.rows += (future, None, value, 0)
    batch.close(0, 100)
    batch.take()
    numbers = ints(*map(int, values))
    batch.assignment = AssignedOffsets("id", numbers, numbers)
    return batch, futures


def ints(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def test_the_time_of_a_batch_that_waits_is_looked_at_once() -> None:
    """It passes meanwhile: a second look at a batch that had some left could find less than none."""
    pipeline, left = _Pipeline(BlockedPlace(1)), iter((1, -1, 5, 0))
    batches = [batch_of(b"1")[0] for _ in range(4)]
    pipeline.queue.extend(batches)
    assert pipeline.take_late(lambda batch: next(left)) == ([batches[1], batches[3]], 1)
    assert list(pipeline.queue) == [batches[0], batches[2]]


def test_each_part_of_a_split_batch_has_its_own_outcome() -> None:
    """Also a part that is split again."""
    batch, futures = batch_of(b"0", b"1", b"2", b"0", b"1")
    seen: list[tuple[int, int]] = []
    for number, future in enumerate(futures):
        future.add_callback(lambda found, number=number: seen.append((number, found.offset)))
    zeros, others = batch.split([ints(0, 3), ints(1, 2, 4)])
    assert not any(future.done() for future in futures)
    zeros.resolve(ints(0, 0), ints(10, 11), ints(1, 1), {})
    assert [future.done() for future in futures] == [True, False, False, True, False]
    assert others.columns is not None and others.columns.partitions == [1, 2, 1]
    others.assignment = AssignedOffsets("id", ints(1, 2, 1), ints(1, 2, 1))
    ones, twos = others.split([ints(0, 2), ints(1)])
    twos.fail(LeaderNotAvailable("no"))
    assert not batch.wait_for_callbacks(lambda: 0.01)
    ones.resolve(ints(1, 1), ints(20, 21), ints(1, 1), {})
    assert batch.wait_for_callbacks(lambda: 0.01)
    assert [future.failed() for future in futures] == [False, False, True, False, False]
    assert seen == [(0, 10), (3, 11), (1, 20), (4, 21)]
    assert futures[4].result().offset == 21
    assert (zeros.bytes, others.bytes, ones.bytes) == (40, 60, 40)


def test_a_batch_that_nobody_waits_for_stays_acknowledged_when_it_is_split() -> None:
    """acks=0."""
    batch, futures = batch_of(b"0", b"1")
    batch.acknowledge()
    for part in batch.split([ints(0), ints(1)]):
        part.fail(LeaderNotAvailable("no"))
    assert [future.result().offset for future in futures] == [-1, -1]
