"""The end of a gateway: writes that have begun are answered, and it does not wait for what hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import spark_log
from spark_log import NewTopic
from spark_log.gateway.gateway import parse_addresses, serve_gateway
from spark_log.journal.journal import Journal
from spark_log.store.open import open_store
from tests.gateway.running import DEADLINE_S, received
from tests.gateway.test_gateway_produce import Process
from tests.gateway.test_gateway_repeats import HungStore, sent, values


# Promise: gateway.md#writes
def test_a_gateway_that_is_stopped_under_load_doubles_nothing(log: spark_log.Log) -> None:
    """A producer that is not idempotent sends what was not answered again: none of that may be in the log."""
    gateway, acknowledged = Process(log.url), list[bytes]()
    settings = {"acks": "all", "linger.ms": 1, "retry.backoff.ms": 50, "log_level": 0, "batch.num.messages": 20}
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, **settings})

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        acknowledged.append(message.value())

    count = 6000
    for n in range(count):
        producer.produce("orders", b"%d" % n, partition=n % 2, on_delivery=delivered)
        if n % 10 == 0:
            producer.poll(0.002)
        if n in (1500, 3000, 4500):
            assert len(acknowledged) < n, "writes are under way"
            gateway.end(signal.SIGTERM)
            gateway = Process(log.url, gateway.address)
    assert producer.flush(DEADLINE_S) == 0
    gateway.end(signal.SIGTERM)
    expected = sorted(b"%d" % n for n in range(count))
    assert sorted(acknowledged) == expected
    assert sorted(value or b"" for number in range(2) for value in values(log, partition=number)) == expected


@pytest.fixture
def hung(tmp_path: Path) -> Any:
    """A log whose uploads hang, and its store."""
    url = str(tmp_path / "log")
    with spark_log.connect(url, durability="os") as log:
        log.create_topic(NewTopic("orders", 1))
    store = HungStore(open_store(url, None, "os"))
    yield spark_log.Log(Journal.open(store, create=False)), store
    store.go.set()


# Promise: gateway.md#writes
@pytest.mark.parametrize("signals", [1, 2])
def test_a_write_that_has_begun_is_answered_unless_a_second_signal_comes(
    hung: tuple[spark_log.Log, HungStore], signals: int
) -> None:
    """Its storage hangs for a while.  An idle connection is closed immediately, and no further one is accepted."""
    log, store = hung
    answers: list[bytes] = []

    def write(address: str) -> None:
        host, _, port = address.rpartition(":")
        at = host, int(port)
        with socket.create_connection(at, DEADLINE_S) as idle, socket.create_connection(at, DEADLINE_S) as opened:
            sent(opened, b"hangs", -1)
            assert store.reached.wait(DEADLINE_S)
            os.kill(os.getpid(), signal.SIGTERM)
            assert received(idle) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(at, DEADLINE_S)
            if signals == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                store.go.set()
            answers.append(received(opened))

    writers: list[threading.Thread] = []

    def say(address: str) -> None:
        writers.append(threading.Thread(target=write, args=(address,)))
        writers[0].start()

    addresses = parse_addresses("0", None, insecure=False)
    asyncio.run(asyncio.wait_for(serve_gateway(log, addresses, (), say), DEADLINE_S))
    writers[0].join(DEADLINE_S)
    assert len(answers) == 1 and bool(answers[0]) == (signals == 1)
    assert signals == 2 or values(log) == [b"hangs"]
