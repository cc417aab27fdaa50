"""Writes to topics with three replicas, one of which hangs, fails, is full, swapped, unmounted or away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import spark_log
from simulation.harness.broker_roots import ControlledRoots, register_broker, write_broker_file
from spark_log.client.producer.append import upload_rows
from spark_log.client.producer.commit import PlainProducer
from spark_log.errors import InvalidRequest, LeaderNotAvailable, NotEnoughReplicas, WrongRoot
from spark_log.metadata.replicas.replica_commands import FenceBroker, ReturnBroker
from spark_log.metadata.replicas.replicas import copies_of
from spark_log.metadata.state import State
from spark_log.roots.broker_roots import BrokerFile
from spark_log.store.local import LocalStore
from tests.services import Services

ROWS = [{"value": b"%d" % number} for number in range(9)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    """Brokers 0, 1 and 2, and a topic "t" with a replica on each."""
    log = spark_log.connect(tmp_path / "log", durability="os")
    for broker in (1, 2):
        register_broker(log, broker, str(tmp_path / f"broker{broker}"))
    log.admin.create_topics([spark_log.NewTopic("t", replica_assignment={0: (0, 1, 2)})])
    (tmp_path / "orders").mkdir()
    yield log
    log.close()


@pytest.fixture
def roots(log: spark_log.Log, tmp_path: Path) -> Iterator[ControlledRoots]:
    roots = ControlledRoots.of(log, tmp_path / "orders")
    yield roots
    for broker in (1, 2):
        roots.order(broker, "")  # threads that hang end


def isr(log: spark_log.Log) -> tuple[int, ...]:
    return log.journal.refresh().placement_groups[1].isr


def held(state: State) -> dict[str, tuple[int, ...]]:
    """The holders of each object."""
    found = {name: copies_of(state, row) for name, row in state.objects.items()}
    return {name: copies.brokers for name, copies in found.items() if copies is not None}


def files(log: spark_log.Log, tmp_path: Path) -> dict[int, set[str]]:
    """The names of the objects on each root."""
    folders = {0: tmp_path / "log"} | {
        broker: tmp_path / f"broker{broker}" / known.directory for broker, known in log.journal.state.brokers.items()
    }
    return {
        broker: {str(path.relative_to(folder)) for path in folder.rglob("*.seg")} for broker, folder in folders.items()
    }


def timed_append(log: spark_log.Log) -> float:
    began = time.monotonic()
    log.append("t", ROWS)
    return time.monotonic() - began


def test_each_replica_gets_each_object(log: spark_log.Log, tmp_path: Path) -> None:
    log.append("t", ROWS)
    with log.producer() as producer:
        producer.send("t", b"one")
    with log.transaction("x") as txn:
        txn.append("t", ROWS)
    state = log.journal.refresh()
    assert len(state.objects) == 3
    assert set(held(state).values()) == {(0, 1, 2)}
    assert files(log, tmp_path) == {broker: set(state.objects) for broker in (0, 1, 2)}
    contents = [
        (folder / name).read_bytes()
        for name in state.objects
        for folder in (tmp_path / "log", *(tmp_path / f"broker{b}" / state.brokers[b].directory for b in (1, 2)))
    ]
    assert len(set(contents)) == 3


def test_partitions_of_several_groups_are_in_several_objects(log: spark_log.Log, tmp_path: Path) -> None:
    """A row of another partition is not on the brokers of the first."""
    assigned = {0: (1,), 1: (2,), 2: (0,)}
    log.admin.create_topics([spark_log.NewTopic("u", 3, replica_assignment=assigned)])
    log.append("u", [{"value": b"x", "partition": number} for number in (0, 1, 2)])
    state = log.journal.refresh()
    assert sorted(held(state).values()) == [(1,), (2,)]
    assert {broker: len(names) for broker, names in files(log, tmp_path).items()} == {0: 1, 1: 1, 2: 1}


# Promise: replicas.md#what-an-acknowledged-record-survives
@pytest.mark.parametrize("order", ["hang", "fail", "full"])
def test_a_commit_succeeds_without_a_root(
    log: spark_log.Log, roots: ControlledRoots, order: str, tmp_path: Path
) -> None:
    """The ISR loses the root; the next writes do not wait for it."""
    log.append("t", ROWS)
    roots.order(2, order)
    first = timed_append(log)
    assert isr(log) == (0, 1)
    later = [timed_append(log) for _ in range(3)]
    assert first < 4, "a second, and what the machine takes"
    assert max(later) < 0.9, "nobody waits for a replica that is out"
    assert sorted(held(log.journal.refresh()).values()) == [*[(0, 1)] * 4, (0, 1, 2)]


# Promise: replicas.md#what-an-acknowledged-record-survives
def test_a_hung_root_is_waited_for_once_in_a_second(log: spark_log.Log, roots: ControlledRoots) -> None:
    roots.order(1, "hang")
    took = timed_append(log)
    assert 0.9 < took < 3
    assert timed_append(log) < 0.9


def test_a_hung_root_keeps_no_thread_that_the_process_waits_for(log: spark_log.Log, roots: ControlledRoots) -> None:
    roots.order(1, "hang")
    log.append("t", ROWS)
    assert [thread.daemon for thread in threading.enumerate() if thread.name.startswith("pylog-put")] == [True]


# Promise: replicas.md#when-a-disk-fails
def test_a_root_of_another_broker_gets_nothing(log: spark_log.Log, tmp_path: Path) -> None:
    """A swapped disk: its broker.json names another directory."""
    write_broker_file(
        LocalStore(str(tmp_path / "broker2")), BrokerFile(cluster_id=log.cluster_id, broker=2, directory="other")
    )
    log.append("t", ROWS)
    assert isr(log) == (0, 1)
    assert files(log, tmp_path)[2] == set()


def test_a_root_that_is_unmounted_between_puts_is_noticed(log: spark_log.Log, tmp_path: Path) -> None:
    """The first write has checked it; the second put goes to the empty folder, and is not counted."""
    log.append("t", ROWS)
    (tmp_path / "broker2").rename(tmp_path / "unmounted")
    (tmp_path / "broker2").mkdir()
    log.append("t", ROWS)
    assert isr(log) == (0, 1)


def test_a_root_that_is_a_symbolic_link(log: spark_log.Log, tmp_path: Path) -> None:
    """It may lead to another folder later: that one is not the root, until the link leads back."""
    link, other = tmp_path / "broker2", tmp_path / "other"
    link.rename(tmp_path / "disk2")
    link.symlink_to(tmp_path / "disk2")
    log.append("t", ROWS)
    assert isr(log) == (0, 1, 2)
    with pytest.raises(InvalidRequest, match="is the root of broker 2"):
        log.admin.add_broker(3, str(tmp_path / "disk2"))
    other.mkdir()
    link.unlink()
    link.symlink_to(other)
    log.append("t", ROWS)
    assert isr(log) == (0, 1) and not list(other.iterdir())
    link.unlink()
    link.symlink_to(tmp_path / "disk2")
    log.journal.roots.check(2, again=True)
    assert {len(brokers) for brokers in held(log.journal.refresh()).values()} == {2, 3}


# Promise: replicas.md#when-a-disk-fails
def test_nothing_is_written_where_the_logs_own_root_is_not_mounted(log: spark_log.Log, tmp_path: Path) -> None:
    """As on a machine that has the metadata from a coordinator: the records would be in a folder that nobody reads."""
    log.admin.create_topics([spark_log.NewTopic("own", 1)])
    (tmp_path / "log").rename(tmp_path / "away")
    with pytest.raises(WrongRoot, match="is its disk mounted"):
        log.append("own", ROWS)
    assert not (tmp_path / "log").exists()


# Promise: replicas.md#when-a-disk-fails
def test_all_three_are_required_until_the_third_is_back(log: spark_log.Log, tmp_path: Path) -> None:
    """The same commit succeeds when the root is there again: its object is copied from another root."""
    log.admin.incremental_alter_configs({"t": {"min.insync.replicas": "3"}})
    (tmp_path / "broker2").rename(tmp_path / "unmounted")
    offsets: list[object] = []
    writing = threading.Thread(target=lambda: offsets.append(log.append("t", ROWS)))
    writing.start()
    time.sleep(1.5)
    assert writing.is_alive()
    assert not log.journal.refresh().objects
    (uploaded,) = files(log, tmp_path)[1]
    (tmp_path / "unmounted").rename(tmp_path / "broker2")
    writing.join(30)
    assert len(offsets) == 1
    assert held(log.journal.refresh()) == {uploaded: (0, 1, 2)}
    assert isr(log) == (0, 1, 2)


# Promise: replicas.md#what-an-acknowledged-record-survives
def test_too_few_replicas_are_an_error_when_time_is_over(log: spark_log.Log, tmp_path: Path) -> None:
    log.admin.incremental_alter_configs({"t": {"min.insync.replicas": "3"}})
    (tmp_path / "broker2").rename(tmp_path / "unmounted")
    with log.producer(delivery_timeout_ms=1500) as producer:
        sent = producer.send("t", b"x")
        with pytest.raises(NotEnoughReplicas, match=r"2 of the in-sync replicas 0, 1, 2 have the records"):
            sent.result(30)
    state = log.journal.refresh()
    assert not state.objects
    assert isr(log) == (0, 1, 2)


# Promise: replicas.md#when-a-disk-fails
def test_without_a_leader_nothing_is_appended(log: spark_log.Log, tmp_path: Path) -> None:
    """It waits until the delivery timeout; a broker that returns meanwhile takes the records."""
    log.admin.create_topics([spark_log.NewTopic("u", replica_assignment={0: (1,)})])
    journal = log.journal
    journal.propose(FenceBroker(broker=1, reason="test"))
    with log.producer(delivery_timeout_ms=1000) as producer, pytest.raises(LeaderNotAvailable):
        producer.send("u", b"x").result(30)
    assert not journal.refresh().objects
    with log.producer(delivery_timeout_ms=20_000) as producer:
        sent = producer.send("u", b"y")
        time.sleep(0.5)
        journal.propose(ReturnBroker(broker=1, epoch=journal.refresh().brokers[1].epoch))
        assert sent.result(30).offset == 0


def test_many_slices_are_in_an_index_in_the_own_root(log: spark_log.Log, tmp_path: Path) -> None:
    log.admin.create_topics([spark_log.NewTopic("wide", 1200, replication_factor=3)])
    log.append("wide", [{"value": b"x", "partition": number} for number in range(1200)])
    state = log.journal.refresh()
    (index,) = [name for name in state.objects if name.endswith(".idx")]
    assert copies_of(state, state.objects[index]) is None
    assert (tmp_path / "log" / index).exists()
    assert set(held(state).values()) == {(0, 1, 2)}
    assert len(held(state)) == 3, "one for each leader"


def test_clients_of_a_coordinator_put_to_all_roots(log: spark_log.Log, services: Services, tmp_path: Path) -> None:
    """They hold some topics, with the brokers and groups of the log; the root that is away leaves the ISR."""
    with spark_log.connect(services.url(tmp_path / "log")) as client:
        client.append("t", ROWS)
        assert held(log.journal.refresh()) == dict.fromkeys(log.journal.state.objects, (0, 1, 2))
        (tmp_path / "broker2").rename(tmp_path / "unmounted")
        client.admin.incremental_alter_configs({"t": {"min.insync.replicas": "3"}})
        with client.producer(delivery_timeout_ms=1500) as producer, pytest.raises(NotEnoughReplicas) as raised:
            producer.send("t", b"x").result(30)
        assert list(raised.value.lacking.values()) in ([(2,)], []), "the coordinator may have fenced it already"
        back = threading.Timer(1, lambda: (tmp_path / "unmounted").rename(tmp_path / "broker2"))
        back.start()
        client.append("t", ROWS)
        back.join()
        assert isr(log) == (0, 1, 2)
        client.admin.incremental_alter_configs({"t": {"min.insync.replicas": None}})
        (tmp_path / "broker2").rename(tmp_path / "unmounted")
        client.append("t", ROWS)
        assert isr(log) == (0, 1)


def test_a_transaction_waits_for_enough_replicas(log: spark_log.Log, tmp_path: Path) -> None:
    log.admin.incremental_alter_configs({"t": {"min.insync.replicas": "3"}})
    (tmp_path / "broker1").rename(tmp_path / "unmounted")
    back = threading.Timer(1, lambda: (tmp_path / "unmounted").rename(tmp_path / "broker1"))
    back.start()
    with log.transaction("x") as txn:
        txn.append("t", ROWS)
    back.join()
    assert set(held(log.journal.refresh()).values()) == {(0, 1, 2)}
    assert log.append("t", ROWS, "app", 1) == log.append("t", ROWS, "app", 1)


def test_a_broker_that_returns_between_the_upload_and_the_commit(log: spark_log.Log) -> None:
    """It is the only replica, and has what was put: the commit looks at it, and does not wait for others."""
    journal = log.journal
    log.admin.create_topics([spark_log.NewTopic("alone", replica_assignment={0: (1,)})])
    epoch = journal.refresh().version
    uploaded = upload_rows(journal, "alone", ROWS, epoch)
    journal.propose(FenceBroker(broker=1))
    assert journal.propose(ReturnBroker(broker=1, epoch=journal.state.brokers[1].epoch))
    began = time.monotonic()
    PlainProducer(journal).commit(epoch, [uploaded])
    assert time.monotonic() - began < 10
    assert log.read("alone").num_rows == len(ROWS)


def test_a_writer_notices_what_another_process_has_healed(log: spark_log.Log, tmp_path: Path) -> None:
    """Its state is as old as its last commit: it reads the log again before it tries again."""
    log.admin.create_topics(
        [spark_log.NewTopic("u", replica_assignment={0: (1, 2)}, configs={"min.insync.replicas": "2"})]
    )
    log.append("u", ROWS)
    other = spark_log.connect(tmp_path / "log", durability="os")
    for broker in (1, 2):
        other.admin.fence_broker(broker)
    log.journal.refresh()
    with log.producer(delivery_timeout_ms=30_000) as producer:
        sent = producer.send("u", b"x")
        time.sleep(0.5)
        assert not sent.done()
        for broker in (1, 2):
            other.admin.unfence_broker(broker)
        assert sent.result(20).offset == len(ROWS)
    for broker in (1, 2):
        other.admin.fence_broker(broker)
    with log.producer(delivery_timeout_ms=500) as producer, pytest.raises((LeaderNotAvailable, NotEnoughReplicas)):
        producer.send("u", b"y").result(20)
    for broker in (1, 2):
        other.admin.unfence_broker(broker)
    assert log.append("u", ROWS)[spark_log.TopicPartition("u", 0)].start == len(ROWS) + 1
    other.close()


def test_roots_that_are_all_away_for_a_moment_are_waited_for(log: spark_log.Log, tmp_path: Path) -> None:
    """They may not be fenced yet; appends and producers wait in the same way."""
    log.admin.create_topics([spark_log.NewTopic("u", replica_assignment={0: (1,)})])
    (tmp_path / "broker1").rename(tmp_path / "unmounted")
    with log.producer(delivery_timeout_ms=30_000) as producer, ThreadPoolExecutor() as pool:
        sent = producer.send("u", b"x")
        appended = pool.submit(log.append, "u", ROWS)
        time.sleep(0.5)
        assert not sent.done() and not appended.done()
        (tmp_path / "unmounted").rename(tmp_path / "broker1")
        offsets = {sent.result(20).offset, appended.result(20)[spark_log.TopicPartition("u", 0)].start}
    assert offsets in ({0, 1}, {0, len(ROWS)})


# Promise: replicas.md#what-an-acknowledged-record-survives
def test_an_append_waits_for_a_leader(log: spark_log.Log) -> None:
    """As a producer does, although its upload finds no replica to put to."""
    log.admin.create_topics([spark_log.NewTopic("u", replica_assignment={0: (1,)})])
    log.journal.propose(FenceBroker(broker=1, reason="test"))
    with ThreadPoolExecutor() as pool:
        appended = pool.submit(log.append, "u", ROWS)
        time.sleep(0.5)
        assert not appended.done()
        log.admin.unfence_broker(1)
        assert appended.result(20)[spark_log.TopicPartition("u", 0)] == range(len(ROWS))
