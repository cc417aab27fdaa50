"""Producers on a real log."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

import spark_log
from simulation.harness.stores import Faults, Wrapper
from spark_log.client.consumer.consumer import OffsetAndTimestamp
from spark_log.client.producer.futures import RecordFuture
from spark_log.client.producer.producer import Producer
from spark_log.errors import (
    CommitUnknown,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.records import Piece
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.model import TopicPartition
from spark_log.positions import TIME_MS_MAX
from spark_log.runtime.threads import SystemThreads, Thread
from spark_log.segment.partitioners import Partitions, RoundRobinPartitioner
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS
from tests.client.logs import Flaky, log_on, new_log, quick_store, values


def test_a_future_tells_where_the_record_is(tmp_path: Path) -> None:
    """send() gives a future of topic, partition, offset and timestamp, and the record is at that place."""
    log = new_log(tmp_path, orders=3)
    with log.producer() as producer:
        future = producer.send("orders", b"v", key=b"k", headers=[("h", b"1")], timestamp_ms=1_700_000_000_123)
        found = future.result(60)
    assert found.timestamp == 1_700_000_000_123 and future.succeeded()
    row = log.read("orders", found.partition, found.offset, found.offset + 1).to_pylist()[0]
    assert (row["key"], row["value"]) == (b"k", b"v")
    assert row["headers"] == [{"key": "h", "value": b"1"}]
    assert row["timestamp"].timestamp() == 1_700_000_000.123


def test_every_future_of_many_partitions_tells_the_right_place(tmp_path: Path) -> None:
    """Offsets are counted by partition, in the order of the sends."""
    log = new_log(tmp_path, orders=5)
    with log.producer() as producer:
        futures = {b"%d" % n: producer.send("orders", b"%d" % n, key=b"k%d" % (n % 50)) for n in range(2000)}
    rows = log.read("orders").to_pylist()
    places = {row["value"]: (row["partition"], row["offset"]) for row in rows}
    assert len(places) == 2000
    assert {value: future.result()[1:3] for value, future in futures.items()} == places


# Promise: clients.md#producer
def test_a_round_of_many_topics_is_one_commit(tmp_path: Path) -> None:
    """The records of one linger need one version of the metadata log."""
    log = new_log(tmp_path, a=3, b=1, c=2)
    before = log.journal.refresh().version
    with log.producer(linger_ms=60_000) as producer:
        for n in range(30):
            producer.send("abc"[n % 3], b"v", key=b"%d" % n)
        producer.flush()
    assert log.journal.refresh().version == before + 1


# Promise: clients.md#producer
def test_waiting_on_a_future_or_a_flush_ends_the_linger(tmp_path: Path) -> None:
    """A linger of ten minutes does not hold up who waits."""
    log = new_log(tmp_path, orders=1)
    producer = log.producer(linger_ms=600_000)
    start = time.monotonic()
    producer.send("orders", b"1").result(60)
    producer.send("orders", b"2")
    producer.flush(60)
    producer.send("orders", b"3")
    producer.close(60)
    assert time.monotonic() - start < 300
    assert values(log, "orders") == [b"1", b"2", b"3"]


def test_a_full_batch_does_not_wait_for_the_linger(tmp_path: Path) -> None:
    """batch_size bytes for each partition are enough to send."""
    log = new_log(tmp_path, orders=1)
    producer = log.producer(linger_ms=600_000, batch_size=1000)
    future, *_ = [producer.send("orders", b"x" * 100) for _ in range(10)]
    end = time.monotonic() + 60
    while not future.done() and time.monotonic() < end:
        time.sleep(0.005)
    assert future.done()
    producer.close()


# Promise: clients.md#producer
def test_callbacks_have_run_when_a_flush_returns(tmp_path: Path) -> None:
    """Each callback gets its record's place, in the order of the sends; one that raises harms nobody."""
    log = new_log(tmp_path, orders=1)
    seen: list[int] = []
    futures: list[RecordFuture] = []
    with log.producer(linger_ms=1000) as producer:
        producer.send("orders", b"0").add_callback(lambda found: 1 / 0)
        for _ in range(5):
            producer.send("orders", b"v").add_callback(lambda found: seen.append(found.offset))
        producer.send("orders", b"v").add_done_callback(futures.append)
        producer.flush()
        assert seen == [1, 2, 3, 4, 5] and futures[0].result().offset == 6
        futures[0].add_callback(lambda more, found: seen.append(found.offset + more), 100)
    assert seen[-1] == 106


def test_a_callback_that_waits_for_later_records_is_told_so(tmp_path: Path) -> None:
    """The thread that runs it is the one that would have to write them."""
    log = new_log(tmp_path, orders=1)
    errors: list[BaseException] = []
    with log.producer() as producer:

        def wait(found: object) -> None:
            try:
                producer.send("orders", b"2").result()
            except InvalidRequest as error:
                errors.append(error)

        producer.send("orders", b"1").add_callback(wait)
        producer.flush()
    assert "callback" in str(errors[0])
    assert values(log, "orders") == [b"1", b"2"]


# Promise: clients.md#producer, topic-configs.md#topics
def test_a_wrong_record_fails_alone(tmp_path: Path) -> None:
    """Records of the same round are written though one of them is refused by the log."""
    log = new_log(tmp_path, orders=2)
    log.admin.incremental_alter_configs({"orders": {"message.timestamp.before.max.ms": "3600000"}})
    with log.producer(linger_ms=1000) as producer:
        futures = [producer.send("orders", b"%d" % n, partition=n % 2) for n in range(50)]
        old = producer.send("orders", b"old", timestamp_ms=1000)
        futures += [producer.send("orders", b"%d" % n, partition=n % 2) for n in range(50, 100)]
    assert isinstance(old.exception(), InvalidTimestamp) and old.failed()
    assert sorted(values(log, "orders"), key=int) == [b"%d" % n for n in range(100)]
    assert [future.result().offset for future in futures] == [n // 2 for n in range(100)]


# Promise: clients.md#producer
def test_what_can_be_seen_at_once_is_raised_at_once(tmp_path: Path) -> None:
    """Size, partition, types: the error names what was found, and nothing of it is sent."""
    log = new_log(tmp_path, orders=2)
    log.admin.incremental_alter_configs({"orders": {"max.message.bytes": "1000"}})
    with log.producer() as producer:
        with pytest.raises(MessageTooLarge, match="1000"):
            producer.send("orders", b"x" * 1001)
        with pytest.raises(UnknownTopicOrPartition, match="no partition 2, it has 2"):
            producer.send("orders", b"x", partition=2)
        with pytest.raises(InvalidRecord, match="partition 'x'"):
            producer.send("orders", b"x", partition="x")  # type: ignore[arg-type]
        with pytest.raises(InvalidRecord, match="value is an int"):
            producer.send("orders", 5)
        with pytest.raises(InvalidRecord, match="headers"):
            producer.send("orders", b"x", headers=[1])  # type: ignore[list-item]
        with pytest.raises(InvalidRecord, match="headers: the value of 'a' is an int: expected bytes or str$"):
            producer.send("orders", b"x", headers=[("a", 1)])  # type: ignore[list-item]
        with pytest.raises(InvalidTimestamp):
            producer.send("orders", b"x", timestamp_ms=-TIME_MS_MAX - 1)
        with pytest.raises(InvalidRequest, match="topic name"):
            producer.send("../etc", b"x")
        producer.send("orders", b"good")
    assert values(log, "orders") == [b"good"]


# Promise: spark-write.md#options-of-a-write
def test_a_topic_that_is_not_there_is_created_unless_that_is_off(tmp_path: Path) -> None:
    """auto.create.topics.enable decides."""
    log = new_log(tmp_path)
    with log.producer() as producer:
        assert producer.send("fresh", b"1").result(60).offset == 0
        log.admin.incremental_alter_configs({None: {"auto.create.topics.enable": "false"}})
        with pytest.raises(UnknownTopicOrPartition, match=r"auto\.create"):
            producer.send("other", b"1")
    assert log.admin.list_topics() == ["fresh"]


def test_a_topic_deleted_under_way_harms_only_its_own_records(tmp_path: Path) -> None:
    """Other topics' records of the round are written."""
    log = new_log(tmp_path, a=1, b=1)
    log.admin.incremental_alter_configs({None: {"auto.create.topics.enable": "false"}})
    with log.producer(linger_ms=60_000) as producer:
        gone, kept = producer.send("a", b"1"), producer.send("b", b"2")
        spark_log.connect(log.url).admin.delete_topics(["a"])
        assert kept.result(60).offset == 0
        assert isinstance(gone.exception(), UnknownTopicOrPartition)


def test_serializers_and_partitioners_are_the_users(tmp_path: Path) -> None:
    """Functions or objects with `serialize`; partitioners by name or as a function of Kafka's form."""

    class Upper:
        def serialize(self, key: str) -> bytes:
            return key.upper().encode()

    log = new_log(tmp_path, orders=4)
    with log.producer(
        value_serializer=lambda n: b"%d" % n,
        key_serializer=Upper(),
        partitioner=lambda key, numbers, available: numbers[-1],
    ) as producer:
        assert producer.send("orders", 7, key="a").result(60).partition == 3
    assert log.read("orders").select(["key", "value"]).to_pylist() == [{"key": b"A", "value": b"7"}]
    with log.producer(partitioner="round-robin") as producer:
        futures = [producer.send("orders", b"x", key=b"same") for _ in range(4)]
        assert [future.result().partition for future in futures] == [0, 1, 2, 3]


# Promise: spark.md#columns
def test_keys_go_where_kafka_puts_them(tmp_path: Path) -> None:
    """The default partitioner is murmur2 of the key, as for appends."""
    log = new_log(tmp_path, orders=7)
    keys = [b"key-%d" % n for n in range(100)]
    with log.producer() as producer:
        sent = {key: producer.send("orders", b"p", key=key) for key in keys}
    log.append("orders", [{"key": key, "value": b"a"} for key in keys])
    rows = [row for row in log.read("orders").to_pylist() if row["value"] == b"a"]
    assert {row["key"]: row["partition"] for row in rows} == {key: f.result().partition for key, f in sent.items()}


# Promise: clients.md#producer
def test_no_acks_means_nobody_waits(tmp_path: Path) -> None:
    """With acks=0 a future is done without an offset; the records are still written."""
    log = new_log(tmp_path, orders=1)
    with log.producer(acks=0) as producer:
        assert producer.send("orders", b"1").result(60).offset == -1
    assert values(log, "orders") == [b"1"]


def test_a_closed_producer_sends_no_more(tmp_path: Path) -> None:
    """close() may be called twice; send() after it is an error."""
    log = new_log(tmp_path, orders=1)
    producer = log.producer()
    producer.send("orders", b"1")
    producer.close()
    producer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send("orders", b"2")
    assert values(log, "orders") == [b"1"]


def test_threads_share_a_producer(tmp_path: Path) -> None:
    """Eight threads, one producer: everything is in once, in each thread's order."""
    log = new_log(tmp_path, orders=1)
    with log.producer(linger_ms=1) as producer:

        def work(thread: int) -> None:
            for n in range(500):
                producer.send("orders", b"%d %d" % (thread, n))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [tuple(map(int, value.split())) for value in values(log, "orders")]
    assert len(found) == 4000
    for number in range(8):
        assert [n for thread, n in found if thread == number] == list(range(500))


class HeldCheckpoints(Wrapper):
    """A put of a checkpoint waits for `go_on`."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key.startswith(CHECKPOINTS):
            self.begun.set()
            assert self.go_on.wait(60)
        super().put(key, chunks)


# Promise: clients.md#python-clients
def test_threads_that_share_a_log_append_while_one_keeps_house(tmp_path: Path) -> None:
    """None of them waits for a checkpoint, not even the one whose commit began it."""
    store = HeldCheckpoints(quick_store(tmp_path))
    log = log_on(store)
    log.create_topic(spark_log.NewTopic("orders", 1))

    def append() -> None:
        while not store.begun.is_set():
            log.append("orders", [{"value": b"x"}])

    thread = threading.Thread(target=append)
    thread.start()
    assert store.begun.wait(60)
    thread.join()
    end = log.read("orders").num_rows
    assert log.append("orders", [{"value": b"y"}]) == {TopicPartition("orders", 0): range(end, end + 1)}
    store.go_on.set()
    log.close()


# Promise: clients.md#producer
def test_a_full_buffer_holds_senders_back(tmp_path: Path) -> None:
    """buffer_memory bounds what waits; what does not fit in time is refused and not sent."""
    log = new_log(tmp_path, orders=1)
    with log.producer(buffer_memory=10_000, linger_ms=60_000) as producer:
        for _ in range(100):
            producer.send("orders", b"x" * 1000)
    assert len(values(log, "orders")) == 100


# Promise: clients.md#producer
def test_no_room_in_time_is_an_error(tmp_path: Path) -> None:
    """After max_block_ms; nothing of the record is sent."""
    store = Flaky(quick_store(tmp_path), random.Random(1), Faults())
    log = log_on(store)
    log.create_topic(spark_log.NewTopic("orders"))
    store.turn(Faults(lost_request=1.0))
    producer = log.producer(buffer_memory=1000, max_block_ms=50, delivery_timeout_ms=300, retry_backoff_ms=20)
    first = producer.send("orders", b"x" * 900)
    with pytest.raises(RequestTimedOut, match="max_block_ms=50"):
        producer.send("orders", b"y" * 900)
    assert isinstance(first.exception(20), RequestTimedOut | CommitUnknown)
    store.turn(Faults())
    assert producer.send("orders", b"z").result(60).offset == 0
    producer.close()


# Promise: clients.md#producer
def test_waiting_for_records_on_their_way_ends_in_time(tmp_path: Path) -> None:
    """`result` and `flush` raise Python's TimeoutError; the records stay on their way, and are in later."""
    store = Flaky(quick_store(tmp_path), random.Random(1), Faults())
    log = log_on(store)
    log.create_topic(spark_log.NewTopic("orders"))
    store.turn(Faults(lost_request=1.0))
    with log.producer(retry_backoff_ms=1, retry_backoff_max_ms=2) as producer:
        future = producer.send("orders", b"x")
        with pytest.raises(TimeoutError):
            future.result(0.05)
        with pytest.raises(TimeoutError, match="still in flight"):
            producer.flush(0.05)
        store.turn(Faults())
        assert future.result(60).offset == 0


# Promise: clients.md#producer
def test_a_storage_that_loses_answers_gets_each_record_once(tmp_path: Path) -> None:
    """Commits are made again under the same identity until they are known to be in."""
    store = Flaky(quick_store(tmp_path), random.Random(5), Faults())
    log = log_on(store)
    log.create_topic(spark_log.NewTopic("orders", 2))
    store.turn(Faults(lost_request=0.1, lost_answer=0.1))
    with log.producer(linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=2) as producer:
        futures = []
        for n in range(60):
            futures.append(producer.send("orders", b"%d" % n))
            futures[-1].exception(60)
    store.turn(Faults())
    acknowledged = {b"%d" % n for n, future in enumerate(futures) if future.succeeded()}
    found = values(log, "orders")
    assert len(found) == len(set(found)) and acknowledged <= set(found)
    assert len(acknowledged) == 60


# Promise: clients.md#producer
def test_rounds_stay_in_their_order_whatever_the_storage_does(tmp_path: Path) -> None:
    """With little memory one round is encoded while the one before is written, and perhaps written again."""
    store = Flaky(quick_store(tmp_path), random.Random(6), Faults())
    log = log_on(store)
    log.create_topic(spark_log.NewTopic("orders", 1))
    sent, done = [b"%d" % n for n in range(3000)], []
    store.turn(Faults(lost_request=0.1, lost_answer=0.1))
    with log.producer(buffer_memory=10_000, retry_backoff_ms=1, retry_backoff_max_ms=2) as producer:
        futures = [producer.send("orders", value) for value in sent]
        for future in futures:
            future.add_done_callback(done.append)
        producer.flush(60)
    store.turn(Faults())
    assert values(log, "orders") == sent
    assert [future.result().offset for future in futures] == list(range(3000))
    assert len(done) == 3000


def test_a_round_is_encoded_while_the_one_before_is_written(tmp_path: Path) -> None:
    """Where a third of buffer_memory has gathered: a slow storage does not keep the processor waiting."""
    log, encoded = new_log(tmp_path, orders=1), []
    Watched.asked = threading.Semaphore(0)
    with log.producer(buffer_memory=30_000, partitioner=f"{__name__}:Watched") as producer:
        first = producer.send("orders", b"first")
        # The round is not over before its callbacks are, and this one waits for the next round.
        first.add_done_callback(lambda _: encoded.append([Watched.asked.acquire(timeout=60) for _ in range(2)]))
        futures = [producer.send("orders", b"x" * 1000) for _ in range(25)]
        producer.flush(60)
    assert encoded == [[True, True]] and all(future.succeeded() for future in futures)


# Promise: topic-configs.md#topics
def test_the_log_has_its_own_time_for_topics_that_want_it(tmp_path: Path) -> None:
    """With LogAppendTime the future tells the log's time, not the producer's."""
    log = new_log(tmp_path)
    log.admin.create_topics([spark_log.NewTopic("t", 1, {"message.timestamp.type": "LogAppendTime"})])
    with log.producer() as producer:
        found = producer.send("t", b"v", timestamp_ms=1000).result(60)
    assert log.read("t").column("timestamp")[0].as_py().timestamp() * 1000 == found.timestamp > 1000


class MaintenanceFirst(SystemThreads):
    """Maintenance after a commit is finished before its caller continues."""

    def start(self, work: Callable[[], None], name: str) -> Thread:
        thread = super().start(work, name)
        if name == "pylog-maintenance":
            thread.join()
        return thread


def test_the_time_of_the_log_is_the_same_if_maintenance_seals_first(tmp_path: Path) -> None:
    """In the future, in what is read, in an index by time, and after a merge: sealing joins commits in one entry."""
    limits = StepLimits(inline_slices=2, inline_per_partition=1)
    store = LocalStore(str(tmp_path / "log"), "os")
    log = spark_log.Log(Journal.open(store, create=True, limits=limits, threads=MaintenanceFirst()))
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": "3"}
    log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))
    log.admin.create_topics([spark_log.NewTopic("t", 1, {"message.timestamp.type": "LogAppendTime"})])
    times = []
    with log.producer() as producer:
        for number in range(12):
            times.append(producer.send("t", b"%d" % number, timestamp_ms=1000).result(60).timestamp)
            time.sleep(0.002)
    assert any(isinstance(entry, Piece) for entry in next(iter(log.journal.state.partitions.values())).entries)
    assert len(set(times)) == 12
    consumer, tp = log.consumer("t"), TopicPartition("t", 0)
    for _ in range(2):
        assert [stamp.timestamp() * 1000 for stamp in log.read("t").column("timestamp").to_pylist()] == times
        found = [consumer.offsets_for_times({tp: stamp})[tp] for stamp in times]
        assert found == [OffsetAndTimestamp(offset, stamp) for offset, stamp in enumerate(times)]
        maintain_once(log)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"linger": 5}, "did you mean linger_ms"),
        ({"linger.ms": 5}, "did you mean linger_ms"),
        ({"acks": 2}, "invalid value 2 for acks"),
        ({"acks": True}, "invalid value True for acks"),
        ({"compression_type": "gzip"}, "'zstd'"),
        ({"transactional_id": "x"}, "log.transaction"),
        ({"bootstrap_servers": "x"}, r"spark_log\.connect"),
        ({"batch_size": "many"}, "whole number"),
        ({"partitioner": "nope"}, "no partitioner 'nope'"),
        ({"enable_idempotence": False}, "expected True, or leave it out: every commit is idempotent"),
        ({"request_timeout_ms": 1}, "expected 30000, or leave it out: delivery_timeout_ms bounds a send"),
        ({"send_buffer_bytes": 1}, "keeps no connections to brokers"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    """An unknown setting is an error with the nearest name, a wrong value one with what is possible."""
    with pytest.raises(InvalidRequest, match=message):
        new_log(tmp_path).producer(**settings)


# Promise: clients.md#python-clients
def test_settings_of_kafkas_clients_are_taken_over(tmp_path: Path) -> None:
    """With the values that say what pylog does."""
    producer = new_log(tmp_path).producer(
        enable_idempotence=True,
        max_in_flight_requests_per_connection=5,
        request_timeout_ms=30_000,
        client_id="me",
        acks="-1",
    )
    assert isinstance(producer, Producer) and producer.partitions_for("t") == {0}
    producer.close()


def test_producers_write_to_a_bucket(s3: object) -> None:
    """The same on S3, and a fresh handle reads it."""
    bucket = s3()  # type: ignore[operator]
    log = spark_log.connect(bucket.url, bucket.options)
    with log.producer() as producer:
        futures = [producer.send("orders", b"%d" % n) for n in range(100)]
        assert futures[99].result(60).offset == 99
    with spark_log.connect(bucket.url, bucket.options).consumer("orders", auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll(5000)[TopicPartition("orders", 0)]) == 100


class Broken:
    """A partitioner that fails."""

    def partition(self, keys: object, values: object, count: int) -> object:
        raise ZeroDivisionError("the user's own")


class Exiting:
    """A partitioner that ends its thread."""

    def partition(self, keys: object, values: object, count: int) -> object:
        raise SystemExit("the user's own")


class Watched(RoundRobinPartitioner):
    """A partitioner that counts the rounds: it is asked when one is encoded."""

    asked = threading.Semaphore(0)

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> Partitions:
        self.asked.release()
        return super().partition(keys, values, count)


def test_a_partitioner_that_fails_fails_its_records_alone(tmp_path: Path) -> None:
    """Those of other topics, and those with a partition, are written."""
    log = new_log(tmp_path, orders=2, others=1)
    with log.producer(partitioner=f"{__name__}:Broken", linger_ms=100) as producer:
        bad, good = producer.send("orders", b"1"), producer.send("orders", b"2", partition=1)
        with pytest.raises(InvalidRecord, match=r"the partitioner of topic 'orders' failed: ZeroDivisionError"):
            bad.result(60)
        assert good.result(60).partition == 1


def test_a_thread_that_fails_does_not_fail_in_silence(tmp_path: Path) -> None:
    """Waiting threads get the error, and so do later sends."""
    log = new_log(tmp_path, orders=2)
    producer = log.producer(partitioner=f"{__name__}:Exiting")
    future = producer.send("orders", b"1")
    with pytest.raises(RuntimeError, match="the user's own"):
        future.result(60)
    with pytest.raises(RuntimeError, match="no more records can be sent") as error:
        producer.send("orders", b"2")
    assert isinstance(error.value.__cause__, SystemExit)
    producer.flush(1)
    producer.close(1)


def test_a_handle_that_lay_idle_goes_on_writing(tmp_path: Path) -> None:
    """Its uploads begin above the fence, and its producer's id is drawn again if it has expired."""
    idle = new_log(tmp_path, orders=1)
    idle.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1", "producer.id.expiration.ms": "1"}})
    idle.append("orders", [{"value": "1"}])
    log = spark_log.connect(idle.url)
    for n in range(5):
        log.append("orders", [{"value": f"other {n}"}])
        time.sleep(0.01)
        maintain_once(log)
    assert log.journal.state.fence > idle.journal.state.version
    time.sleep(0.01)
    idle.append("orders", [{"value": "2"}])
    assert values(log, "orders")[-1] == b"2"


def test_no_record_is_left_behind_between_two_rounds(tmp_path: Path) -> None:
    """Threads that send without a lock always wake the writing thread, even if nobody waits or flushes."""
    log = new_log(tmp_path, orders=1)
    producer = log.producer(linger_ms=0)
    futures: list[RecordFuture] = []

    def work() -> None:
        for n in range(60):
            futures.append(producer.send("orders", b"x"))
            time.sleep(0.001 * (n % 3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end = time.monotonic() + 60
    while not all(future.done() for future in futures) and time.monotonic() < end:
        time.sleep(0.005)
    assert all(future.done() for future in futures)
    producer.close()
    assert len(values(log, "orders")) == 240


def test_a_future_holds_its_record_only_until_it_is_taken(tmp_path: Path) -> None:
    """Keeping a million futures does not keep a million records."""
    log = new_log(tmp_path, orders=1)
    with log.producer() as producer:
        value = b"%d" % random.getrandbits(64)
        held = sys.getrefcount(value)
        future = producer.send("orders", value)
        future.result(60)
        producer.flush()
    assert future.succeeded() and sys.getrefcount(value) == held
