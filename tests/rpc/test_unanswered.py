"""Addresses that accept connections and do not answer, or very slowly; and names of several machines."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import CoordinatorNotAvailable
from spark_log.http.address import Target, this_host
from spark_log.http.client_connection import Endpoint
from spark_log.journal.store_operations import Ask, AskChanges
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.state import Leadership as Holder
from spark_log.rpc.client import HttpLink
from spark_log.rpc.client_timeouts import ClientTimeouts
from tests.services import Services

SHORT_S = 20.0
"""Generous: a check takes 6 s.  The limit for an answer is 30 s."""
HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000


class Unanswering:
    """Accepts, reads, and sends one byte a second; or nothing."""

    def __init__(self, *, drips: bool, host: str = "127.0.0.1", port: int = 0) -> None:
        self._drips = drips
        self._door = socket.create_server((host, port))
        self.port = self._door.getsockname()[1]
        self.address = f"{host}:{self.port}"
        self.requests: list[bytes] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.requests.append(connection.recv(10_000))
            for number in range(len(HTTP)):
                if self._drips:
                    connection.sendall(HTTP[number : number + 1])
                if self._ended.wait(1.0):
                    return

    def close(self) -> None:
        self._ended.set()
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture(params=["silent", "drips"])
def unanswering(request: pytest.FixtureRequest) -> Iterator[Unanswering]:
    with closing(Unanswering(drips=request.param == "drips")) as found:
        yield found


def test_a_client_that_connects_tries_the_next_address(
    unanswering: Unanswering, services: Services, tmp_path: Path
) -> None:
    """And asks the one that answers from then on."""
    running = services.start(tmp_path / "log")
    began = time.monotonic()
    with spark_log.connect(f"pylog://{unanswering.address},{running.coordinator.address}") as log:
        log.append("t", [{"value": b"1"}])
        assert time.monotonic() - began < SHORT_S
        count = len(unanswering.requests)
        log.append("t", [{"value": b"2"}])
        assert len(unanswering.requests) == count


def test_a_change_that_is_not_answered_says_so_and_is_not_sent_again_at_once(unanswering: Unanswering) -> None:
    """It may be applied; the next one reaches nobody until the address answers, and that is certain."""
    link = HttpLink(Target(()), timeouts=ClientTimeouts(check_s=1.0, health_s=1.0))
    holder = Holder(1, unanswering.address, this_host())
    create = CreateTopic(name="x", partitions=1, topic_id="x")
    began = time.monotonic()
    with pytest.raises(CoordinatorNotAvailable, match=r"no complete reply within 1 s, nor to GET /health") as first:
        link.ask(Ask(holder, [create], 0))
    with pytest.raises(CoordinatorNotAvailable, match="it does not answer") as second:
        link.ask(Ask(holder, [create], 0))
    assert time.monotonic() - began < SHORT_S
    assert (first.value.maybe_applied, second.value.maybe_applied) == (True, False)
    assert sum(data.startswith(b"POST") for data in unanswering.requests) == 1
    link.close()


# Promise: service.md#failover
def test_a_question_is_asked_at_the_next_address_in_the_same_call(
    unanswering: Unanswering, services: Services, tmp_path: Path
) -> None:
    """A request that changes nothing can be repeated safely."""
    running = services.start(tmp_path / "log")
    coordinator = running.coordinator
    with spark_log.connect(f"pylog://{coordinator.address}") as log:
        log.append("t", [{"value": b"1"}])
        link = HttpLink(Target((unanswering.address, coordinator.address)), cluster_id=log.cluster_id)
        stale = Holder(1, unanswering.address, this_host())
        assert link.changes(AskChanges(stale, 0)).version == log.journal.state.version
        link.close()


# Promise: service.md#failover
def test_a_name_of_two_machines_is_tried_at_both(services: Services, tmp_path: Path) -> None:
    """The first does not answer: the second is asked, under the same name."""
    running = services.start(tmp_path / "log", listen="127.0.0.2:0", advertise="log.example.org:9550")
    port = running.port
    name = f"log.example.org:{port}"
    with closing(Unanswering(drips=False, port=port)) as silent:
        link = HttpLink(
            Target((name,)), resolve=lambda address: [Endpoint(address, f"127.0.0.{last}") for last in (1, 2)]
        )
        info = link.info()
        assert info.cluster_id == running.coordinator.cluster_id and len(silent.requests) == 2
        link.cluster_id = info.cluster_id
        holder = running.coordinator.state.coordinator._replace(address=name)
        create = CreateTopic(name="x", partitions=1, topic_id="x")
        assert link.ask(Ask(holder, [create], 0)).outcomes == ["x"] and len(silent.requests) == 2
        link.close()
