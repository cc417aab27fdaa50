"""How long does a record take from its append through a running query to the other end?

One record at a time, at random moments, passes through a query from topic to topic with the default trigger.  Both ends
use the side's own client.  A Python data source cannot run in Spark's real-time mode, in which Kafka's connector needs
about 20 ms.
"""

from __future__ import annotations

import random
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Protocol

from confluent_kafka import Consumer, Producer

import spark_log
from benchmarks.beside_kafka.sides import SILENT, Kafka, Pylog, Side
from benchmarks.beside_kafka.work import Bench, checkpoint

GAP_S = (0.02, 0.5)
WARM = 10
"""Records that warm up and do not count."""
DEADLINE_S = 60


class Ends(Protocol):
    """Both ends of the query."""

    @abstractmethod
    def send(self, value: bytes) -> None:
        """Append a record; return when it is acknowledged."""

    @abstractmethod
    def arrived(self) -> Iterator[bytes]:
        """Values at the other end as they arrive, endlessly."""


class PylogEnds:
    def __init__(self, side: Pylog, source: str, target: str) -> None:
        self._log, self._source = spark_log.connect(side.url(source)), source
        self._out, self._target = spark_log.connect(side.url(target)), target

    def send(self, value: bytes) -> None:
        self._log.append(self._source, [{"key": b"k", "value": value}])

    def arrived(self) -> Iterator[bytes]:
        with closing(self._out.consumer(self._target, auto_offset_reset="earliest")) as consumer:
            while True:
                for records in consumer.poll(timeout_ms=200).values():
                    yield from (record.value for record in records)


class KafkaEnds:
    def __init__(self, side: Kafka, source: str, target: str) -> None:
        self._address, self._source, self._target = side.broker.address, source, target
        self._producer = Producer(
            {"bootstrap.servers": self._address, "acks": "all", "linger.ms": 0, "log_level": SILENT}
        )

    def send(self, value: bytes) -> None:
        self._producer.produce(self._source, key=b"k", value=value)
        self._producer.flush()

    def arrived(self) -> Iterator[bytes]:
        settings = {"bootstrap.servers": self._address, "group.id": self._target, "auto.offset.reset": "earliest"}
        with closing(Consumer(settings)) as consumer:
            consumer.subscribe([self._target])
            while True:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    yield message.value()


@contextmanager
def running(bench: Bench, side: Side) -> Iterator[Ends]:
    """A query from one topic to another."""
    source, target = (f"latency-{time.monotonic_ns()}-{end}" for end in ("in", "out"))
    for topic in (source, target):
        side.create(topic)
    with checkpoint(bench) as folder:
        writer = side.into(side.stream(source).select("key", "value"), target)
        query = writer.option("checkpointLocation", str(folder)).start()
        try:
            yield PylogEnds(side, source, target) if isinstance(side, Pylog) else KafkaEnds(side, source, target)
        finally:
            query.stop()
    for topic in (source, target):
        side.drop(topic)


def latencies(ends: Ends, count: int, rng: random.Random) -> list[float]:
    """Milliseconds of `count` records, after a few to warm up."""
    sent: list[float] = []
    seen: dict[int, float] = {}
    done = threading.Event()

    def watch() -> None:
        for value in ends.arrived():
            seen.setdefault(int(value), time.perf_counter())
            if len(seen) == count + WARM or done.is_set():
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    for number in range(count + WARM):
        sent.append(time.perf_counter())
        ends.send(b"%d" % number)
        if number < WARM:
            _wait_for(seen, number)
        time.sleep(rng.uniform(*GAP_S))
    thread.join(DEADLINE_S)
    if thread.is_alive():
        raise RuntimeError(f"{len(seen)} of {count + WARM} records came through the query in {DEADLINE_S} s")
    return [(seen[number] - sent[number]) * 1000 for number in range(WARM, count + WARM)]


def _wait_for(seen: dict[int, float], number: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while number not in seen:
        if time.monotonic() > deadline:
            raise RuntimeError(f"record {number} did not come through the query in {DEADLINE_S} s")
        time.sleep(0.005)


def through_queries(bench: Bench, sides: tuple[Side, ...], count: int) -> dict[str, list[float]]:
    """Two runs of each side, in turn."""
    found: dict[str, list[float]] = {side.name: [] for side in sides}
    for stretch in range(2):
        for side in sides:
            with running(bench, side) as ends:
                found[side.name] += latencies(ends, count // 2, random.Random(stretch))
    return found
