"""Connections that send no whole request: they take no place from clients, and none from checks of the health."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import CoordinatorNotAvailable
from spark_log.http.address import parse_target
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.journal.store_operations import Ask
from spark_log.metadata.commands import CreateTopic
from spark_log.rpc.client import HttpLink
from spark_log.rpc.health_check import health_of
from spark_log.serve.serve import Running
from tests.processes import Process, free_port
from tests.server.asking import TOKENS, WRITE, eventually
from tests.services import Services

LIMIT = 8
LIMITS = ConnectionLimits(connections=LIMIT, connections_per_address=LIMIT, silent_connections=LIMIT, request_ms=60_000)
"""A silent connection is not closed in the time of a test but for another one."""
HALF = b"POST /v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"


class Holder:
    """Holds connections open, and sends a byte a second on those that are slow."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._slow: list[socket.socket] = []
        self.open: list[socket.socket] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def hold(self, count: int, kind: str = "silent", tls: ssl.SSLContext | None = None) -> None:
        host, _, port = self._address.partition(":")
        for _ in range(count):
            connection = socket.create_connection((host, int(port)), 10)
            self.open.append(connection)
            if tls is not None:
                connection = self.open[-1] = tls.wrap_socket(connection, server_hostname=host)
            if kind == "half a request":
                connection.sendall(HALF)
            elif kind == "slow":
                self._slow.append(connection)
            elif kind == "half-closed":
                connection.shutdown(socket.SHUT_WR)

    def _drip(self) -> None:
        for number in range(len(HALF)):
            for connection in tuple(self._slow):
                try:
                    connection.send(HALF[number : number + 1])
                except OSError:
                    self._slow.remove(connection)  # it was closed by the coordinator
            if self._ended.wait(1.0):
                return

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for connection in self.open:
            connection.close()


@pytest.fixture(params=["plain", "TLS"])
def limited(
    request: pytest.FixtureRequest, services: Services, tmp_path: Path, certificate: tuple[str, str]
) -> Iterator[tuple[Running, str]]:
    """A coordinator with narrow limits, and its URL."""
    files = {"certificate": certificate[0], "key": certificate[1]} if request.param == "TLS" else {}
    running = services.start(tmp_path / "log", limits=LIMITS, tokens=TOKENS, **files)
    address = running.coordinator.address
    yield running, f"pylog://{address}?ca={certificate[0]}" if files else f"pylog://{address}"
    services.stop(running)


def is_healthy(url: str) -> bool:
    target = parse_target(url)
    found = health_of(target.addresses[0], tls=target.ca is not None)
    return found is not None and found.healthy


# Promise: service.md#as-a-service
@pytest.mark.parametrize("kind", ["silent", "half a request", "slow", "half-closed"])
def test_connections_without_a_request_refuse_nobody(limited: tuple[Running, str], kind: str) -> None:
    """More of them than the limit, held open: connected clients, a new client and the health request are served."""
    running, url = limited
    with spark_log.connect(url, token=WRITE) as log, closing(Holder(running.coordinator.address)) as holder:
        log.append("t", [{"value": b"before"}])
        holder.hold(3 * LIMIT + 1, kind)
        for _ in range(3):
            assert is_healthy(url)
        log.append("t", [{"value": b"held"}])
        with spark_log.connect(url, token=WRITE) as another:
            another.append("t", [{"value": b"came later"}])
            holder.hold(LIMIT, kind)
            assert is_healthy(url)
            another.append("t", [{"value": b"held again"}])
        assert log.read("t").num_rows == 4


def test_a_handshake_that_ends_does_not_make_a_client(
    services: Services, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    """With TLS, a connection that then sends half a request is as silent as one whose handshake never ends."""
    running = services.start(
        tmp_path / "log", limits=LIMITS, tokens=TOKENS, certificate=certificate[0], key=certificate[1]
    )
    address = running.coordinator.address
    url = f"pylog://{address}?ca={certificate[0]}"
    with spark_log.connect(url, token=WRITE) as log, closing(Holder(address)) as holder:
        holder.hold(3 * LIMIT, "half a request", ssl.create_default_context(cafile=certificate[0]))
        assert is_healthy(url)
        log.append("t", [{"value": b"held"}])
    services.stop(running)


def test_requests_without_a_good_token_do_not_make_a_client(limited: tuple[Running, str]) -> None:
    """A client without a token can hold connections by whole requests: they are closed before those of clients."""
    _, url = limited
    with spark_log.connect(url, token=WRITE) as log:
        links = [HttpLink(parse_target(url), "not-one-that-it-knows") for _ in range(3 * LIMIT)]
        for link in links:
            with pytest.raises(spark_log.errors.AuthenticationFailed):
                link.info()
        log.append("t", [{"value": b"held"}])
        assert is_healthy(url)
        for link in links:
            link.close()


# Promise: service.md#as-a-service
def test_clients_above_the_limit_are_told_so(limited: tuple[Running, str]) -> None:
    """Those that were there before are served on, and the health is answered."""
    running, url = limited
    links = [HttpLink(parse_target(url), WRITE) for _ in range(LIMIT)]
    try:
        for link in links:
            link.info()
        late = HttpLink(parse_target(url), WRITE)
        with pytest.raises(CoordinatorNotAvailable, match=rf"connections: {LIMIT} of clients are open"):
            late.info()
        assert is_healthy(url)
        links[0].cluster_id = running.coordinator.cluster_id
        create = CreateTopic(name="x", partitions=1, topic_id="x")
        links[0].ask(Ask(running.coordinator.state.coordinator, [create], 0))
        links.pop().close()
        eventually(lambda: _answers(late))
        links.append(late)
    finally:
        for link in links:
            link.close()


def _answers(link: HttpLink) -> bool:
    try:
        return bool(link.info())
    except CoordinatorNotAvailable:
        return False


# Promise: service.md#as-a-service
def test_one_address_does_not_take_the_places_of_all(services: Services, tmp_path: Path) -> None:
    """At its own limit it is refused, and named; another address is served."""
    limits = LIMITS._replace(connections_per_address=2)
    running = services.start(
        tmp_path / "log", limits=limits, listen="0.0.0.0:0", advertise="127.0.0.1:1", insecure=True
    )
    port = running.port
    local = [HttpLink(parse_target(f"pylog://127.0.0.1:{port}")) for _ in range(3)]
    for link in local[:2]:
        link.info()
    with pytest.raises(CoordinatorNotAvailable, match=r"connections.per.address: 2 of clients at 127.0.0.1 are open"):
        local[2].info()
    with socket.create_connection(("127.0.0.1", port), 10, source_address=("127.0.0.2", 0)) as other:
        other.sendall(b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200")
    for link in local:
        link.close()
    services.stop(running)


def set_file_limit(process: Process, count: int) -> None:
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (count, count))


def open_files(process: Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can change the limit of another process")
def test_a_coordinator_without_a_free_file_descriptor_goes_on(tmp_path: Path) -> None:
    """Silent connections are closed to get some, what is logged is short, and nothing ends."""
    said = tmp_path / "said"
    process = Process(tmp_path / "log", free_port(), stderr=said)
    with spark_log.connect(f"pylog://{process.address}") as log, closing(Holder(process.address)) as holder:
        log.append("t", [{"value": b"before"}])
        set_file_limit(process, open_files(process) + 30)
        holder.hold(300)
        log.append("t", [{"value": b"held"}])
        assert process.health()[0] == 200
        assert log.read("t").num_rows == 2
    assert process.terminate() == 0
    lines = said.read_text().splitlines()
    assert any("file descriptor" in line for line in lines) and len(lines) < 20


# Promise: service.md#as-a-service
def test_limits_fit_the_file_descriptors_of_the_process(tmp_path: Path) -> None:
    """More silent connections than the process may have files: the storage keeps the descriptors that it needs."""
    said = tmp_path / "said"

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))

    process = Process(tmp_path / "log", free_port(), stderr=said, before=few)
    with spark_log.connect(f"pylog://{process.address}") as log, closing(Holder(process.address)) as holder:
        holder.hold(500)
        log.append("t", [{"value": b"held"}])
        assert process.health()[0] == 200
    assert process.terminate() == 0
    assert "may open 400 files" in said.read_text() and "file descriptor is free" not in said.read_text()


# Promise: service.md#as-a-service
def test_handshakes_without_a_token_are_limited(
    services: Services, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    """Connections of one address wait.  Clients that have sent a token do not count, and continue."""
    limits = ConnectionLimits(strangers_per_s=1)
    running = services.start(
        tmp_path / "log", limits=limits, tokens=TOKENS, certificate=certificate[0], key=certificate[1]
    )
    address = running.coordinator.address
    url = f"pylog://{address}?ca={certificate[0]}"
    tls = ssl.create_default_context(cafile=certificate[0])
    for _ in range(5):
        with spark_log.connect(url, token=WRITE) as log:
            log.append("t", [{"value": b"counts as a client"}])
    with spark_log.connect(url, token=WRITE) as log, closing(Holder(address)) as holder:
        log.append("t", [{"value": b"before"}])
        holder.hold(60)
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), 1) as late, pytest.raises(OSError, match="timed out"):
            tls.wrap_socket(late, server_hostname=host)
        log.append("t", [{"value": b"held"}])
    services.stop(running)


def test_clients_that_start_together_do_not_wait_for_the_limit(services: Services, tmp_path: Path) -> None:
    """Each one that has sent its token opens the next one that waits, which would otherwise take its second."""
    running = services.start(tmp_path / "log", limits=ConnectionLimits(strangers_per_s=1), tokens=TOKENS)
    request = b"POST /v1/commands HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}"
    with closing(Holder(running.coordinator.address)) as holder:
        holder.hold(60)
        for connection in holder.open:
            connection.sendall(request % WRITE.encode())
        for connection in holder.open:
            connection.settimeout(20)
            assert connection.recv(12) == b"HTTP/1.1 400"
    services.stop(running)


def test_a_wrong_token_ends_the_connection(services: Services, tmp_path: Path) -> None:
    """Another request is another connection, of which an address may open few."""
    running = services.start(tmp_path / "log", limits=LIMITS, tokens=TOKENS)
    host, _, port = running.coordinator.address.partition(":")
    request = b"POST /v1/commands HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer nope\r\nContent-Length: 2\r\n\r\n{}"
    with socket.create_connection((host, int(port)), 60) as peer:
        peer.sendall(request % host.encode() * 20)
        answer = bytearray()
        with suppress(ConnectionResetError):
            while part := peer.recv(1 << 16):
                answer += part
    assert answer.count(b"HTTP/1.1 401") == 1 and b"connection: close" in bytes(answer).lower()
    services.stop(running)
