"""Clients that ride through faults, in threads, and checks of what they have done that need no search."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import spark_log
from simulation.harness.quorum_process import wait_until
from spark_log.errors import SparkLogError


class Appended(NamedTuple):
    """A record that was acknowledged."""

    value: str
    begun_s: float
    ended_s: float


class Rider:
    """Works in a thread until it is stopped."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self.count = 0
        """Of what is done."""
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with spark_log.connect(self.url) as log:
            while not self.stopped.is_set():
                with suppress(SparkLogError):
                    self.work(log)

    def work(self, log: spark_log.Log) -> None:
        """Until it is stopped, or an error."""
        raise NotImplementedError

    def wait_for(self, more: int) -> None:
        expected = self.count + more
        wait_until(lambda: self.count >= expected, f"{more} more records of {self.name}")

    def end(self) -> None:
        self.stopped.set()

    def stop(self) -> None:
        self.end()
        self._thread.join()


class Writer(Rider):
    """Writes one record after another.  After an error, the fate of a record is unknown: it may be there, once."""

    def __init__(self, url: str, name: str) -> None:
        self.found: list[Appended] = []
        self._begun = 0
        super().__init__(url, name)

    def note(self, value: str, begun_s: float) -> None:
        self.found.append(Appended(value, begun_s, time.monotonic()))
        self.count += 1

    def next_value(self) -> str:
        self._begun += 1
        return f"{self.name}-{self._begun}"


class Appender(Writer):
    def work(self, log: spark_log.Log) -> None:
        value, begun_s = self.next_value(), time.monotonic()
        log.append("orders", [{"value": value}])
        self.note(value, begun_s)


class Producing(Writer):
    """With a producer, which numbers its records."""

    def work(self, log: spark_log.Log) -> None:
        with log.producer(linger_ms=1) as producer:
            while not self.stopped.is_set():
                value, begun_s = self.next_value(), time.monotonic()
                producer.send("orders", value).get()
                self.note(value, begun_s)


class Copier(Rider):
    """A member of a group, which copies what it reads and commits its positions in the same transactions."""

    def work(self, log: spark_log.Log) -> None:
        with log.consumer(
            "orders", group_id="copiers", auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            while not self.stopped.is_set():
                records = [one for part in consumer.poll(timeout_ms=200).values() for one in part]
                if records:
                    with log.transaction("copier") as txn:
                        txn.append("copies", [{"value": one.value} for one in records])
                        txn.commit_offsets(consumer)
                    self.count += len(records)


def values_of(log: spark_log.Log, topic: str) -> list[str]:
    """In the order of the offsets of its one partition."""
    return [row["value"].decode() for row in log.read(topic, columns=["value"]).to_pylist()]


def check_order(found: Sequence[Appended], values: Sequence[str]) -> None:
    """Each acknowledged record is there, none twice, and before those that began after its acknowledgement."""
    offsets = {value: offset for offset, value in enumerate(values)}
    assert len(offsets) == len(values), "nothing is there twice"
    assert [one for one in found if one.value not in offsets] == []
    wrong = [
        (first, second)
        for first in found
        for second in found
        if first.ended_s < second.begun_s and offsets[first.value] >= offsets[second.value]
    ]
    assert wrong == []


def check_copies(values: Sequence[str], copies: Sequence[str]) -> None:
    """Each record was copied once."""
    assert Counter(copies) - Counter(values) == Counter(), "nothing is there twice, or without an order"
    assert Counter(values) - Counter(copies) == Counter(), "nothing is missing"
