"""Producers and their coordinator are killed with SIGKILL at random moments, while a checker reads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spark_log
from spark_log.model import TopicPartition
from spark_log.recovery.verify import verify
from tests.processes import Process, free_port

ROUNDS = 6
POLLS = 8
"""That find something, at least, before a writer is killed."""
TOPICS = ("left", "right")

# Each batch goes to both topics in one commit; a line says that it was acknowledged. A batch that was under way at the
# kill
# may be in or not, but never half.
WRITER = """
import sys, spark_log
url, name, mode = sys.argv[1:]
log = spark_log.connect(url)
print("ready", flush=True)
if mode == "producer":
    producer = log.producer(linger_ms=1)
for n in range(10**9):
    value = b"%s-%d" % (name.encode(), n)
    if mode == "producer":
        futures = [producer.send(topic, value, key=b"%d" % n) for topic in ("left", "right")]
        for future in futures:
            future.result()
    else:
        with log.transaction(name) as txn:
            for topic in ("left", "right"):
                txn.send(topic, value, key=b"%d" % n)
            txn.commit_offsets("progress", {spark_log.TopicPartition("left", 0): n})
    print(value.decode(), flush=True)
"""


class Checker:
    """Follows both topics and holds what it reads against the promises."""

    def __init__(self, url: str) -> None:
        self.consumer = spark_log.connect(url).consumer(*TOPICS, auto_offset_reset="earliest")
        self.values: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.ends: dict[TopicPartition, int] = {}

    def read(self, timeout_ms: float = 0) -> bool:
        """One poll; whether there was anything."""
        records = self.consumer.poll(timeout_ms=timeout_ms, max_records=1_000_000)
        for tp, some in records.items():
            for record in some:
                assert record.offset == self.ends.get(tp, 0), "a gap, or an offset given twice"
                self.ends[tp] = record.offset + 1
                self.values[tp.topic].append((record.value or b"").decode())
        return bool(records)


@contextmanager
def writer(url: str, name: str, mode: str) -> Iterator[subprocess.Popen[str]]:
    """A process that writes until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, url, name, mode], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def acknowledged(process: subprocess.Popen[str]) -> list[str]:
    """The whole lines that a dead process has printed."""
    assert process.stdout is not None
    return [line.strip() for line in process.stdout if line.endswith("\n")]


def killed(
    url: str, name: str, mode: str, checker: Checker, after_s: float, meanwhile: Callable[[], None]
) -> list[str]:
    """The writes that a writer had acknowledged when it was killed.

    meanwhile: runs when the writer has begun to write, before its time begins.
    """
    with writer(url, name, mode) as process:
        while not checker.read(20):
            assert process.poll() is None
        meanwhile()
        start, polls = time.monotonic(), 0
        while time.monotonic() < start + after_s or not (polls >= POLLS or time.monotonic() > start + 60):
            polls += checker.read(20)
            if mode == "transaction":
                assert checker.values["left"] == checker.values["right"], "half of a commit"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return acknowledged(process)


def check(url: str, mode: str, seed: int, meanwhile: Callable[[], None] = lambda: None, rounds: int = ROUNDS) -> None:
    """Kill writers one after the other; afterwards the log holds what they were told, once."""
    rng = random.Random(seed)
    log = spark_log.connect(url)
    log.admin.create_topics([spark_log.NewTopic(topic, 1) for topic in TOPICS])
    checker = Checker(url)
    told: list[str] = []
    for number in range(rounds):
        told += killed(url, f"{mode}{number}", mode, checker, 0.1 + rng.random() * 0.5, meanwhile)
    while checker.read(200):
        pass
    assert len(told) > 10, "the writers wrote next to nothing"
    for topic in TOPICS:
        found = checker.values[topic]
        assert len(found) == len(set(found)), "a record is there twice"
        assert set(told) <= set(found), "an acknowledged record is missing"
        assert len(found) <= len(told) + rounds, "more is there than was under way"
    assert checker.values["left"] == checker.values["right"] or mode == "producer"
    assert verify(log, deep=True) == []
    log.append("left", [{"value": "after"}])


# Promise: ../README.md#why
def test_killed_producers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Acknowledged once, present once, no gaps, whenever the process dies."""
    check(str(tmp_path / "log"), "producer", 1)


# Promise: ../README.md#why
@pytest.mark.parametrize("mode", ["producer", "transaction"])
def test_a_coordinator_that_is_killed_too_loses_nothing_either(tmp_path: Path, mode: str) -> None:
    """It is killed and restarted while each writer writes.  The writer continues, and is killed in its turn."""
    port = free_port()
    coordinators = [Process(tmp_path / "log", port)]

    def strike() -> None:
        coordinators.pop().kill()
        coordinators.append(Process(tmp_path / "log", port))

    try:
        check(f"pylog://127.0.0.1:{port}", mode, 3, strike, rounds=3)
    finally:
        coordinators.pop().kill()


# Promise: clients.md#transactions
def test_killed_transactions_are_whole_or_not_there(tmp_path: Path) -> None:
    """Both topics agree at every read; the group's position is that of the last whole transaction."""
    check(str(tmp_path / "log"), "transaction", 2)
    log = spark_log.connect(str(tmp_path / "log"))
    *_, last = [value for value in log.read("left").column("value").to_pylist() if value != b"after"]
    position = log.admin.list_consumer_group_offsets("progress")[TopicPartition("left", 0)].offset
    assert position == int(last.rsplit(b"-", 1)[1])


# Promise: service.md#failover
@pytest.mark.parametrize("mode", ["producer", "transaction"])
def test_a_coordinator_that_is_stopped_and_continues_loses_nothing_either(tmp_path: Path, mode: str) -> None:
    """With SIGSTOP, until the other one leads, while each writer writes; what the first then finds in its sockets is
    void.  In the second round they change places.
    """
    folder, ports = tmp_path / "log", [free_port(), free_port()]
    coordinators = [Process(folder, port, "--takeover-after", "2s") for port in ports]

    def strike() -> None:
        first, second = coordinators if coordinators[0].leads else reversed(coordinators)
        first.stop()
        deadline = time.monotonic() + 60
        while not second.leads:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        first.go_on()

    try:
        check(f"pylog://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}", mode, 5, strike, rounds=2)
    finally:
        for coordinator in coordinators:
            coordinator.kill()
