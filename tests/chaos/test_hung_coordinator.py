"""A coordinator that is stopped with SIGSTOP: the kernel accepts connections for it, and nobody answers them.  A
standby leads.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import spark_log
from spark_log.recovery.verify import verify
from tests.processes import ControlledProcess, Process, free_port
from tests.server.asking import request

TAKEOVER = ("--takeover-after", "2s")
BOUND_S = 45.0
"""Without failover from a hung coordinator the first change failed after 150 s."""


@dataclass
class Pair:
    """A coordinator that leads, and one that stands by."""

    folder: Path
    first: Process
    standby: Process

    @property
    def both(self) -> str:
        return f"pylog://{self.first.address},{self.standby.address}"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    first = Process(tmp_path / "log", free_port())
    eventually(lambda: first.leads)
    standby = Process(tmp_path / "log", free_port(), *TAKEOVER)
    yield Pair(tmp_path / "log", first, standby)
    first.kill()
    standby.kill()


def eventually(true: object, seconds: float = BOUND_S) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def values(log: spark_log.Log, topic: str = "t") -> list[bytes]:
    return list(log.read(topic, columns=["value"]).column("value").to_pylist())


# Promise: service.md#failover
def test_clients_fail_over_from_a_stopped_coordinator(pair: Pair) -> None:
    """Also clients that name one address alone, and those that open the log by its storage; each change lands once."""
    urls = {
        "both": pair.both,
        "standby": f"pylog://{pair.standby.address}",
        "first": f"pylog://{pair.first.address}",
        "storage": str(pair.folder),
    }
    logs = {name: spark_log.connect(url) for name, url in urls.items()}
    for name, log in logs.items():
        log.append("t", [{"value": name}])
    took: dict[str, float] = {}

    def append(name: str) -> None:
        began = time.monotonic()
        logs[name].append("t", [{"value": f"{name} again"}])
        took[name] = time.monotonic() - began

    pair.first.stop()
    threads = [threading.Thread(target=append, args=(name,)) for name in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert set(took) == set(urls), f"only these appended within {BOUND_S:g} s: {took}"
    fresh = spark_log.connect(pair.both)
    fresh.append("t", [{"value": "fresh"}])
    expected = sorted([*urls, *(f"{name} again" for name in urls), "fresh"])
    assert sorted(value.decode() for value in values(fresh)) == expected
    pair.first.go_on()
    eventually(lambda: not pair.first.leads)
    fresh.append("t", [{"value": "after"}])
    assert sorted(value.decode() for value in values(fresh)) == sorted([*expected, "after"]), "nothing lands twice"
    assert verify(fresh, deep=True) == []
    for log in [*logs.values(), fresh]:
        log.close()


# Promise: service.md#failover
def test_producers_groups_and_waits_go_on_when_a_coordinator_is_stopped(pair: Pair) -> None:
    """Records are written once, in order; consumers of a group receive each of them."""
    with spark_log.connect(pair.both) as log, spark_log.connect(pair.both) as reading:
        log.admin.create_topics([spark_log.NewTopic("t", 2)])
        producer = log.producer(linger_ms=1)
        futures, stop = [], threading.Event()

        def produce() -> None:
            while not stop.wait(0.01):
                number = len(futures)
                futures.append(producer.send("t", b"%d" % number, partition=number % 2))

        received: list[bytes] = []

        def consume() -> None:
            with reading.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
                while not (stop.is_set() and len(received) >= len(futures)):
                    for records in consumer.poll(500).values():
                        received.extend(record.value for record in records if record.value is not None)

        threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(received) > 10)
        pair.first.stop()
        eventually(lambda: pair.standby.leads)
        before = len(received)
        eventually(lambda: len(received) > before + 100)
        pair.first.go_on()
        eventually(lambda: not pair.first.leads)
        stop.set()
        for thread in threads:
            thread.join(BOUND_S)
        producer.close()
        offsets = [future.result(BOUND_S).offset for future in futures]
        assert offsets == [number // 2 for number in range(len(futures))]
        assert len(values(log)) == len(futures)
        assert set(received) == {b"%d" % number for number in range(len(futures))}


# Promise: service.md#failover
def test_a_coordinator_that_goes_on_serves_no_stale_answers(tmp_path: Path) -> None:
    """From the first answer after SIGCONT it says that it does not lead, also before it can read the log; changes that
    it was sent meanwhile are void.
    """
    first = ControlledProcess(tmp_path / "log", free_port(), tmp_path / "control", storage_timeout="1h")
    eventually(lambda: first.leads)
    standby = Process(tmp_path / "log", free_port(), *TAKEOVER)
    try:
        with spark_log.connect(f"pylog://{first.address},{standby.address}") as log:
            log.append("t", [{"value": b"1"}])
            first.stop()
            log.append("t", [{"value": b"2"}])
            assert standby.leads
            create = {"type": "create_topic", "name": "late", "partitions": 1, "topic_id": "late"}
            change = {"cluster_id": log.cluster_id, "since": 0, "commands": [create]}
            wait = {"cluster_id": log.cluster_id, "since": 1, "wait_ms": 0}
            asked = [send(first, "/v1/commands", change), send(first, "/v1/changes", wait)]
            first.storage("hang")
            first.go_on()
            for connection in asked:
                with connection:
                    assert b" 503 " in connection.recv(10_000).partition(b"\r\n")[0]
            assert request(first.address, "GET", f"/v1/groups?cluster_id={log.cluster_id}")[0] == 503
            first.storage("")
            eventually(lambda: not first.leads)
            assert request(first.address, "GET", f"/v1/groups?cluster_id={log.cluster_id}")[0] == 503
            assert log.admin.list_topics() == ["t"] and values(log) == [b"1", b"2"]
    finally:
        first.kill()
        standby.kill()


def send(process: Process, path: str, message: object) -> socket.socket:
    """A request that a stopped process finds when it continues."""
    body = json.dumps(message).encode()
    host, _, port = process.address.partition(":")
    connection = socket.create_connection((host, int(port)), BOUND_S)
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    return connection
