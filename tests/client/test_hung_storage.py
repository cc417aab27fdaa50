"""A storage that does not answer: polls and records still end in time."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock, SkewedClock
from simulation.harness.slow_store import SlowStore
from simulation.harness.stores import ControlledStore, Wrapper
from spark_log.client.consumer.consumer import READ_GRACE_MS
from spark_log.errors import (
    CommitUnknown,
    CoordinatorNotAvailable,
    CorruptObject,
    RequestTimedOut,
    StorageUnavailable,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.commit_protocol import STALLED_TRIES
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.bounded_waits import CALLS_MAX, Slot, Unfinished, Waiter
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from tests.services import Services

BOUND_S = 20.0
"""Far below the minutes for which a storage may hang, and far above the second that a poll may be late."""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "control"
    yield path
    path.unlink(missing_ok=True)  # threads that hang in the storage end


@pytest.fixture
def log(tmp_path: Path, control: Path) -> spark_log.Log:
    """In a store as far away as a bucket."""
    bucket = SlowStore(LocalStore(str(tmp_path / "log"), "os"), get_ms=1, put_ms=1)
    log = spark_log.Log(Journal.open(ControlledStore(bucket, control), create=True))
    log.admin.create_topics([spark_log.NewTopic("t")])
    return log


def values(consumer: spark_log.Consumer, **limits: float) -> list[bytes]:
    return [record.value for records in consumer.poll(**limits).values() for record in records]


# Promise: clients.md#consumer
@pytest.mark.parametrize("timeout_ms", [0, 100])
def test_a_poll_ends_in_its_time_and_a_later_one_has_the_records(
    log: spark_log.Log, control: Path, timeout_ms: float
) -> None:
    """Records that were read before are returned meanwhile; nothing is lost or returned twice."""
    log.append("t", [{"value": b"%d" % number} for number in range(3)])
    consumer = log.consumer("t", auto_offset_reset="earliest")
    assert values(consumer, timeout_ms=BOUND_S * 1000, max_records=1) == [b"0"]
    log.append("t", [{"value": b"3"}])
    control.write_text("hang")
    began = time.monotonic()
    given = [values(consumer, timeout_ms=timeout_ms) for _ in range(3)]
    assert time.monotonic() - began < BOUND_S
    assert [value for some in given for value in some] == [b"1", b"2"]
    control.unlink()
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"3"]
    assert values(consumer, timeout_ms=0) == []


# Promise: clients.md#consumer
def test_an_error_of_a_read_that_went_on_is_raised_by_a_later_poll(log: spark_log.Log, control: Path) -> None:
    """With the name of the storage; the one after reads again."""
    log.append("t", [{"value": b"0"}])
    consumer = log.consumer("t", auto_offset_reset="earliest")
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"0"]
    log.append("t", [{"value": b"1"}])
    (read,) = log.plan("t", start=1)
    file = Path(log.url.removeprefix("file://")) / read.slice.object
    data = file.read_bytes()
    control.write_text("hang")
    assert values(consumer, timeout_ms=0) == []
    file.write_bytes(bytes(len(data)))
    control.unlink()
    with pytest.raises(CorruptObject, match=read.slice.object):
        consumer.poll(BOUND_S * 1000)
    file.write_bytes(data)
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"1"]


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
@pytest.mark.parametrize("hangs", ["before the upload", "before the commit"])
def test_a_record_ends_near_its_delivery_timeout(tmp_path: Path, control: Path, hangs: str) -> None:
    """With an error that names the storage and says whether it may be in; it is in once at most."""
    bucket = SlowStore(LocalStore(str(tmp_path / "log"), "os"), get_ms=1, put_ms=1)
    held = HeldStore(bucket, control, "data/" if hangs == "before the upload" else "meta/log/")
    log = spark_log.Log(Journal.open(held, create=True))
    log.admin.create_topics([spark_log.NewTopic("t")])
    producer = log.producer(delivery_timeout_ms=1500, linger_ms=0)
    assert producer.send("t", b"0").result(60).offset == 0
    control.write_text("hang")
    began = time.monotonic()
    with pytest.raises(RequestTimedOut if hangs == "before the upload" else CommitUnknown, match="log did not answer"):
        producer.send("t", b"1").result(60)
    assert time.monotonic() - began < BOUND_S
    control.unlink()
    again = log.producer(linger_ms=0)
    assert again.send("t", b"2").result(60).offset > 0
    assert [value for value in log.read("t")["value"].to_pylist() if value != b"1"] == [b"0", b"2"]
    producer.close()
    again.close()


# Promise: clients.md#producer
@pytest.mark.parametrize("hangs", ["reads", "the creation"])
def test_a_send_to_a_topic_that_cannot_be_found_times_out(tmp_path: Path, control: Path, hangs: str) -> None:
    """After max_block_ms, as with a coordinator that does not answer; the record is not sent."""
    bucket = SlowStore(LocalStore(str(tmp_path / "log"), "os"), get_ms=1, put_ms=1)
    held = ControlledStore(bucket, control) if hangs == "reads" else HeldStore(bucket, control, "meta/log/")
    log = spark_log.Log(Journal.open(held, create=True))
    producer = log.producer(max_block_ms=100, linger_ms=0)
    control.write_text("hang")
    with pytest.raises(RequestTimedOut, match="topic 'new' was not found or created within max_block_ms=100"):
        producer.send("new", b"0")
    control.unlink()
    again = log.producer(linger_ms=0)
    assert again.send("new", b"1").result(60).offset == 0
    producer.close()
    again.close()


class HeldStore(ControlledStore):
    """Hangs at puts under a prefix only."""

    def __init__(self, inner: ObjectStore, control: Path, prefix: str) -> None:
        super().__init__(inner, control)
        self._prefix = prefix

    def _pass(self, key: str, *, writes: bool = False) -> None:
        if writes and key.startswith(self._prefix):
            super()._pass(key, writes=writes)


# Promise: service.md#leadership
def test_a_coordinator_that_is_slow_does_not_keep_a_record_beyond_its_delivery_timeout(
    services: Services, tmp_path: Path, control: Path
) -> None:
    """The process answers, its storage does not: the outcome of the record is unknown, and finally it is in the log
    once.
    """
    running = services.start(
        tmp_path / "led",
        ControlledStore(LocalStore(str(tmp_path / "led"), "os"), control),
        storage_timeout_ms=3_600_000,
    )
    with spark_log.connect(f"pylog://{running.coordinator.address}") as client:
        client.admin.create_topics([spark_log.NewTopic("t")])
        producer = client.producer(delivery_timeout_ms=1500, linger_ms=0)
        assert producer.send("t", b"0").result(60).offset == 0
        control.write_text("hang")
        began = time.monotonic()
        with pytest.raises(CommitUnknown, match=running.coordinator.address):
            producer.send("t", b"1").result(60)
        assert time.monotonic() - began < BOUND_S
        control.unlink()
        again = client.producer(linger_ms=0)
        assert again.send("t", b"2").result(60).offset == 2
        producer.close()
        again.close()
    services.stop(running)


class LateStore(Wrapper):
    """As far away as a bucket.  While it holds answers back, those to reads under a prefix say how things were when it
    was asked.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(SlowStore(LocalStore(str(root), "os"), get_ms=1, put_ms=1))
        self.held: list[str] = []
        self._prefix = ""
        self._free = threading.Event()
        self._free.set()

    def hold(self, prefix: str) -> None:
        self.held, self._prefix = [], prefix
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            return super().get(key, start, end)
        finally:
            if key.startswith(self._prefix) and not self._free.is_set():
                self.held.append(key)
                self._free.wait()


@pytest.fixture
def late(tmp_path: Path) -> Iterator[LateStore]:
    store = LateStore(tmp_path / "late")
    yield store
    store.release()


def opened(store: ObjectStore, clock: Clock | None = None) -> spark_log.Log:
    return spark_log.Log(Journal.open(store, create=True, clock=clock))


def test_a_seek_does_not_go_by_a_look_that_began_before_it(late: LateStore) -> None:
    """The record that it goes to is there, and was committed after that look had been answered."""
    writer = opened(LocalStore(late.url.removeprefix("file://"), "os"))
    writer.append("t", [{"value": b"0"}])
    consumer = opened(late).consumer(auto_offset_reset="none")
    partition = spark_log.TopicPartition("t", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"0"]
    late.hold("meta/")
    assert values(consumer, timeout_ms=0) == [] and late.held
    writer.append("t", [{"value": b"1"}, {"value": b"2"}])
    consumer.seek(partition, 2)
    assert values(consumer, timeout_ms=0) == []
    late.release()
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"2"]


def test_a_consumer_is_not_replaced_by_itself(late: LateStore) -> None:
    """A look that began before it had joined knows nothing of its place in the group."""
    log = opened(late)
    log.append("t", [{"value": b"%d" % number} for number in range(3)])
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
    late.hold("meta/")
    assert values(consumer, timeout_ms=0) == [] and late.held
    late.release()
    consumer.commit({spark_log.TopicPartition("t", 0): 1})
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"1", b"2"]


def hold_longer_than_a_poll(late: LateStore) -> None:
    late.hold("meta/")
    threading.Timer(1.5 * READ_GRACE_MS / 1000, late.release).start()


class Seeking:
    """Seeks beyond the position that it is assigned, while the storage does not answer."""

    def __init__(self, late: LateStore, consumer: spark_log.Consumer) -> None:
        self._late, self._consumer = late, consumer

    def on_partitions_assigned(self, partitions: list[spark_log.TopicPartition]) -> None:
        hold_longer_than_a_poll(self._late)
        for partition in partitions:
            self._consumer.seek(partition, self._consumer.position(partition) + 2)


# Promise: clients.md#consumer
def test_a_listener_is_not_broken_off(late: LateStore) -> None:
    """It is called once with its partitions, and its seeks count."""
    log = opened(late)
    log.append("t", [{"value": b"%d" % number} for number in range(3)])
    consumer = log.consumer(auto_offset_reset="earliest")
    consumer.subscribe(["t"], listener=Seeking(late, consumer))
    given = values(consumer, timeout_ms=0)
    assert given + values(consumer, timeout_ms=BOUND_S * 100) == [b"2"]


# Promise: clients.md#consumer
def test_a_callback_of_a_commit_is_not_broken_off(late: LateStore) -> None:
    """It asks for a position, which a poll that is over does not wait for."""
    log, partition = opened(late), spark_log.TopicPartition("t", 0)
    log.append("t", [{"value": b"%d" % number} for number in range(3)])
    consumer = log.consumer("t", group_id="g", enable_auto_commit=False)
    positions: list[int] = []

    def called_back(*_: object) -> None:
        hold_longer_than_a_poll(late)
        positions.append(consumer.position(partition))

    consumer.commit_async({partition: 1}, called_back)
    while not log.journal.refresh().groups["g"].offsets:
        pass
    began = time.monotonic()
    while not positions and time.monotonic() - began < BOUND_S:
        values(consumer, timeout_ms=0)
    assert len(positions) == 1


class Unwritable(Wrapper):
    """Takes no record of the log once it is away, and says so when the test allows it."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.is_away, self.tries, self.answers = False, 0, threading.Event()

    def put_new(self, key: str, data: bytes) -> bool:
        if not self.is_away:
            return super().put_new(key, data)
        assert self.answers.wait(60)
        self.tries += 1
        raise StorageUnavailable("the storage is away")


def test_commits_that_wait_for_one_without_an_answer_fail_with_it() -> None:
    """Otherwise each would wait as long, and `close` for all of them: hours, after some minutes without a storage."""
    store, errors = Unwritable(MemoryStore(uuid.uuid4().hex)), list[Exception | None]()
    partition = spark_log.TopicPartition("t", 0)
    log = spark_log.Log(Journal.open(store, create=True, clock=ManualClock()))
    log.append("t", [{"value": b"x"} for _ in range(12)])
    with log.consumer("t", group_id="g", enable_auto_commit=False) as consumer:
        consumer.commit({partition: 0})
        store.is_away = True
        for offset in range(1, 11):
            consumer.commit_async({partition: offset}, lambda _, error: errors.append(error))
        store.answers.set()
        with pytest.raises(CommitUnknown):
            consumer.commit({partition: 11})
        store.is_away = False
    assert [type(error) for error in errors] == [CommitUnknown] + 9 * [CoordinatorNotAvailable]
    assert store.tries == 2 * STALLED_TRIES


# Promise: clients.md#consumer
def test_reads_that_hang_are_few(late: LateStore) -> None:
    """However many partitions are sought: a poll whose time is over begins none."""
    log = opened(late)
    log.admin.create_topics([spark_log.NewTopic("many", 20)])
    log.append("many", [{"value": b"v", "partition": number} for number in range(20)])
    consumer = log.consumer()
    consumer.assign([spark_log.TopicPartition("many", number) for number in range(20)])
    late.hold("data/")
    for _ in range(2):
        consumer.seek_to_beginning(*consumer.assignment())
        assert values(consumer, timeout_ms=0) == []
    assert 1 <= len(late.held) <= 2
    late.release()
    given: list[bytes] = []
    while len(given) < 20:
        given += values(consumer, timeout_ms=BOUND_S * 1000)
    assert len(given) == 20


# Promise: clients.md#consumer
def test_calls_that_nobody_waits_for_count_until_they_end() -> None:
    """A consumer that seeks again and again has a bounded number of threads."""
    waiter, go = Waiter(), threading.Event()
    begun: list[int] = []

    def ask(number: int) -> None:
        begun.append(number)
        go.wait()

    for number in range(3 * CALLS_MAX):
        with pytest.raises(Unfinished), waiter.within(20):
            waiter.answer(Slot[None](), partial(ask, number))
    assert len(begun) == CALLS_MAX
    go.set()
    waiter.answer(Slot[None](), partial(ask, -1))
    assert begun[CALLS_MAX:] == [-1]


# Promise: clients.md#consumer
def test_a_partition_whose_read_hangs_does_not_keep_others(late: LateStore) -> None:
    log = opened(late)
    log.admin.create_topics([spark_log.NewTopic("two", 2)])
    log.append("two", [{"value": b"0", "partition": 0}])
    log.append("two", [{"value": b"1", "partition": 1}])
    consumer = log.consumer(auto_offset_reset="earliest")
    consumer.assign([spark_log.TopicPartition("two", number) for number in range(2)])
    (read,) = (read for read in log.plan("two") if read.partition == 0)
    late.hold(read.slice.object)
    assert [value for _ in range(2) for value in values(consumer, timeout_ms=0)] == [b"1"]
    late.release()
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"0"]


# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable
def test_a_record_ends_near_its_delivery_timeout_though_the_state_is_old(late: LateStore) -> None:
    """It has to be read again before the record is uploaded."""
    clock = SkewedClock(SystemClock())
    log = opened(late, clock)
    log.admin.create_topics([spark_log.NewTopic("t")])
    producer = log.producer(delivery_timeout_ms=1500, linger_ms=0)
    assert producer.send("t", b"0").result(60).offset == 0
    clock.skew_ms = 12 * 3_600_000
    late.hold("meta/")
    with pytest.raises(RequestTimedOut, match="late did not answer"):
        producer.send("t", b"1").result(60)
    assert late.held
    late.release()
    producer.close()
