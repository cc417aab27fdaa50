"""The clients that benchmarks/clients.py compares: pylog's, embedded and through a coordinator, and Kafka's.

Each sends one message per call, with a future or a callback, and receives one object per message.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import spark_log
from benchmarks.beside_kafka.figures import Round
from benchmarks.beside_kafka.machine import cpu_seconds
from simulation.harness.broker_roots import register_broker
from simulation.harness.kafka import Broker, min_insync

ROOT = Path(__file__).parent.parent
PARTITIONS = 4
PAUSE_LIMIT_S = 30


class Side(ABC):
    """One client library and one kind of log."""

    name: str
    share = 1.0
    """Share of the messages that the others send: a slow client would make the whole run long."""
    roots: tuple[int, ...] = ()
    """Processes to measure besides this one and its children."""

    @abstractmethod
    def create(self, topic: str) -> None:
        """Create an empty topic of PARTITIONS partitions."""

    @abstractmethod
    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        """Send one message per call; on return all are acknowledged and none has failed."""

    @abstractmethod
    def polls(self, topic: str) -> Iterator[int]:
        """Read a topic from the start; yield the number of messages of each poll, each message an object."""

    @abstractmethod
    def one_by_one(self, topic: str, values: Sequence[bytes]) -> list[float]:
        """Seconds from each message to its acknowledgement; the next message is sent after it."""


class Waiting(ABC):
    """A client whose consumers wait for new records: how long a record takes to arrive."""

    @abstractmethod
    @contextmanager
    def ends(self, topic: str) -> Iterator[tuple[Callable[[bytes], object], Callable[[], bool]]]:
        """(send one message, poll: whether a message arrived)."""

    @abstractmethod
    def member(self, topic: str, group: str, events: Events, stop: threading.Event) -> None:
        """A group member with the range assignor that runs until it is stopped."""


class Events:
    """When each member of a group lost and got its partitions."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str, int, int]] = []

    def add(self, what: str, count: int) -> None:
        self.seen.append((time.perf_counter(), what, threading.get_ident(), count))


class Pylog(Side, Waiting):
    """A log at a URL."""

    def __init__(self, name: str, url: str, roots: Sequence[Path] = ()) -> None:
        """roots:  of brokers, for replicas of each topic beside that in the log's own root."""
        self.name, self.url = name, url
        self.log = spark_log.connect(url)
        self.replicas = 1 + len(roots)
        for broker, root in enumerate(roots, 1):
            register_broker(self.log, broker, str(root))

    def create(self, topic: str) -> None:
        configs, factor = min_insync(self.replicas), self.replicas if self.replicas > 1 else None
        self.log.create_topic(spark_log.NewTopic(topic, PARTITIONS, configs=configs, replication_factor=factor))

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        with self.log.producer() as producer:
            futures = [producer.send(topic, value) for value in values]
            producer.flush()
        assert all(future.exception() is None for future in futures)

    def polls(self, topic: str) -> Iterator[int]:
        with self.log.consumer(topic, auto_offset_reset="earliest") as consumer:
            while True:
                found = consumer.poll(timeout_ms=1000)
                yield sum(len(record.value) > 0 for records in found.values() for record in records)

    def one_by_one(self, topic: str, values: Sequence[bytes]) -> list[float]:
        with self.log.producer() as producer:
            return [timed(lambda value=value: producer.send(topic, value).result(60)) for value in values]

    def append(self, topic: str, table: object) -> None:
        """Send all messages in one call."""
        self.log.append(topic, table)

    def arrow_polls(self, topic: str) -> Iterator[int]:
        """Polls as `polls` does, with a table per poll."""
        with self.log.consumer(topic, auto_offset_reset="earliest") as consumer:
            while True:
                yield consumer.poll_arrow(timeout_ms=1000).num_rows

    @contextmanager
    def ends(self, topic: str) -> Iterator[tuple[Callable[[bytes], object], Callable[[], bool]]]:
        other = spark_log.connect(self.url)
        with other.consumer(topic, auto_offset_reset="latest") as consumer:
            consumer.poll(0)
            yield lambda value: self.log.append(topic, [{"value": value}]), lambda: bool(consumer.poll(5000))

    def member(self, topic: str, group: str, events: Events, stop: threading.Event) -> None:
        class Listener:
            def on_partitions_assigned(self, partitions: Sequence[object]) -> None:
                events.add("assigned", len(partitions))

            def on_partitions_revoked(self, partitions: Sequence[object]) -> None:
                events.add("revoked", len(partitions))

        with spark_log.connect(self.url).consumer(
            group_id=group, partition_assignment_strategy="range", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic], listener=Listener())
            while not stop.is_set():
                consumer.poll(200)


class Librdkafka(Side, Waiting):
    """confluent-kafka, a thin layer over librdkafka, with its defaults."""

    name = "librdkafka"

    def __init__(self, broker: Broker) -> None:
        from confluent_kafka.admin import AdminClient

        self.address, self.roots = broker.address, broker.pids
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})  # the client outlives the broker

    def create(self, topic: str) -> None:
        from confluent_kafka.admin import NewTopic

        replicas = len(self.roots)
        new = NewTopic(topic, PARTITIONS, replicas, config=min_insync(replicas))
        for waiting in self.admin.create_topics([new]).values():
            waiting.result(60)

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        """No callback per message, so it does less than the others: only the number of remaining messages is known."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "acks": "all"})
        for value in values:
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        assert producer.flush(60) == 0

    def polls(self, topic: str) -> Iterator[int]:
        with closing(self._consumer(topic)) as consumer:
            while True:
                yield sum(
                    message.error() is None and len(message.value()) > 0 for message in consumer.consume(500, 1.0)
                )

    def _consumer(self, topic: str) -> object:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.address, "group.id": topic, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        return consumer

    def one_by_one(self, topic: str, values: Sequence[bytes]) -> list[float]:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "acks": "all"})

        def send(value: bytes) -> None:
            producer.produce(topic, value)
            assert producer.flush(60) == 0

        return [timed(lambda value=value: send(value)) for value in values]

    @contextmanager
    def ends(self, topic: str) -> Iterator[tuple[Callable[[bytes], object], Callable[[], bool]]]:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "acks": "all", "linger.ms": 0})

        def send(value: bytes) -> None:
            producer.produce(topic, value)
            producer.flush()

        with closing(self._consumer(topic)) as consumer:
            send(b"the first")
            while consumer.poll(1.0) is None:
                pass
            yield send, lambda: consumer.poll(5.0) is not None

    def member(self, topic: str, group: str, events: Events, stop: threading.Event) -> None:
        from confluent_kafka import Consumer

        settings = {"group.id": group, "partition.assignment.strategy": "range", "auto.offset.reset": "earliest"}
        with closing(Consumer({"bootstrap.servers": self.address, **settings})) as consumer:
            consumer.subscribe(
                [topic],
                on_assign=lambda _, partitions: events.add("assigned", len(partitions)),
                on_revoke=lambda _, partitions: events.add("revoked", len(partitions)),
            )
            while not stop.is_set():
                consumer.poll(0.2)


class LibrdkafkaCallbacks(Librdkafka):
    """A callback for each message, which gets the message's error."""

    name = "librdkafka, callbacks"

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "acks": "all"})
        failed: list[object] = []

        def delivered(error: object, message: object) -> None:
            if error is not None:
                failed.append(error)

        for number, value in enumerate(values):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            if not number & 1023:
                producer.poll(0)
        assert producer.flush(60) == 0 and not failed

    def polls(self, topic: str) -> Iterator[int]:
        """With `poll`, which returns one message at a time."""
        with closing(self._consumer(topic)) as consumer:
            while True:
                message = consumer.poll(1.0)
                yield int(message is not None and message.error() is None and len(message.value()) > 0)


class KafkaPython(Side):
    """kafka-python, a client in pure Python, with its defaults."""

    name, share = "kafka-python", 0.05

    def __init__(self, peer: Librdkafka) -> None:
        self.peer, self.address, self.roots = peer, peer.address, peer.roots

    def create(self, topic: str) -> None:
        self.peer.create(topic)

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        from kafka import KafkaProducer

        with closing(KafkaProducer(bootstrap_servers=self.address, acks="all")) as producer:
            futures = [producer.send(topic, value) for value in values]
            producer.flush()
            assert all(future.succeeded() for future in futures)

    def polls(self, topic: str) -> Iterator[int]:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(topic, bootstrap_servers=self.address, auto_offset_reset="earliest")
        with closing(consumer):
            while True:
                found = consumer.poll(timeout_ms=1000)
                yield sum(len(record.value) > 0 for records in found.values() for record in records)

    def one_by_one(self, topic: str, values: Sequence[bytes]) -> list[float]:
        from kafka import KafkaProducer

        with closing(KafkaProducer(bootstrap_servers=self.address, acks="all")) as producer:
            return [timed(lambda value=value: producer.send(topic, value).get(60)) for value in values]


# ------------------------------------------------------------------------------------------------------- measuring them


def timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


class Watch:
    """Elapsed seconds, and CPU seconds of all processes involved, from the client's creation on."""

    def __init__(self, roots: Sequence[int]) -> None:
        gc.collect()
        self._roots = roots
        self._cpu, self._begun = cpu_seconds(roots), time.perf_counter()

    def round(self) -> Round:
        return Round(time.perf_counter() - self._begun, cpu_seconds(self._roots) - self._cpu)


def drained(polls: Iterator[int], count: int, roots: Sequence[int]) -> Round:
    """From the first poll with records, after connections and positions are set up, to the last message."""
    with closing(polls):  # type: ignore[type-var]
        first = next(found for found in polls if found)
        watch, left = Watch(roots), count - first
        while left > 0:
            left -= next(polls)
        found = watch.round()
    share = count / max(1, count - first)
    return Round(found.seconds * share, found.cpu_seconds * share)


def latencies(side: Waiting, topic: str, count: int) -> list[float]:
    """Seconds from the send in one thread to the message in another thread."""
    found = []
    with side.ends(topic) as (send, poll):
        for _ in range(count):
            begun: list[float] = []

            def go(begun: list[float] = begun) -> None:
                begun.append(time.perf_counter())
                send(b"x" * 100)

            timer = threading.Timer(0.03, go)
            timer.start()
            while not poll():
                pass
            found.append(time.perf_counter() - begun[0])
            timer.join()
    return found


def rebalance_pauses(side: Waiting, topic: str, group: str, rounds: int) -> list[float]:
    """Seconds in which a group of three members, then four, receives nothing while the fourth joins, repeatedly.

    From the first member that gives up its partitions to the last one that has new ones.
    """
    events, stop, pauses = Events(), threading.Event(), []
    threads = [started(side, topic, group, events, stop) for _ in range(3)]
    try:
        _settled(events, 3)
        for _ in range(rounds):
            time.sleep(0.3)
            events.seen.clear()
            leave = threading.Event()
            fourth = started(side, topic, group, events, leave)
            _settled(events, 4)
            seen = list(events.seen)
            # A member that wakes after the rebalance has ended causes another one with all members.
            pauses.append(max(at for at, *_ in seen) - min(at for at, what, *_ in seen if what == "revoked"))
            events.seen.clear()
            leave.set()
            fourth.join()
            _settled(events, 3)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return pauses


def started(side: Waiting, topic: str, group: str, events: Events, stop: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=side.member, args=(topic, group, events, stop), daemon=True)
    thread.start()
    return thread


def _settled(events: Events, members: int) -> None:
    """Wait until this many members own all partitions among them."""
    deadline = time.monotonic() + PAUSE_LIMIT_S
    while time.monotonic() < deadline:
        has: dict[int, int] = {}
        for _, what, member, count in list(events.seen):
            has[member] = count if what == "assigned" else 0
        if sum(has.values()) == PARTITIONS and sum(count > 0 for count in has.values()) == members:
            time.sleep(0.3)
            return
        time.sleep(0.005)
    raise RuntimeError(f"the group has not settled with {members} members in {PAUSE_LIMIT_S} s: {events.seen}")


@contextmanager
def coordinator(folder: Path, address: str) -> Iterator[str]:
    """A coordinator of a log, in a separate process."""
    command = [sys.executable, "-m", "spark_log.cli", "-u", str(folder), "serve", "--listen", address]
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server,
        contextlib.ExitStack() as end,
    ):
        end.callback(server.terminate)
        assert server.stdout is not None and "listening" in server.stdout.readline()
        yield f"pylog://{address}"
