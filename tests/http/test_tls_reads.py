"""Bytes of a peer with TLS are decrypted in small steps, and the buffers of silent connections are small."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from pathlib import Path

import spark_log
from spark_log.http.connection_limits import ConnectionLimits, Connections
from spark_log.http.listener import TLS_READ_BYTES, Listener
from spark_log.http.tls import tls_context
from tests.server.asking import TOKENS, WRITE
from tests.services import Services

SENT, RECORD = 4 * TLS_READ_BYTES, 64


class Pieces(asyncio.Protocol):
    """Notes the sizes of what it gets.  Before the first, it lets everything arrive."""

    def __init__(self, sent: threading.Event) -> None:
        self.sizes: list[int] = []
        self.all = threading.Event()
        self._sent = sent

    def data_received(self, data: bytes) -> None:
        if not self.sizes:
            self._sent.wait(10)
            time.sleep(0.05)
        self.sizes.append(len(data))
        if sum(self.sizes) >= SENT:
            self.all.set()


def test_what_has_arrived_is_decrypted_in_small_steps(certificate: tuple[str, str]) -> None:
    """Others are served between two of them, however small the TLS records are."""
    sent = threading.Event()
    found = Pieces(sent)

    def send_all(port: int) -> None:
        context = ssl.create_default_context(cafile=certificate[0])
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            for _ in range(SENT // RECORD):
                secured.sendall(bytes(RECORD))
            sent.set()
            assert found.all.wait(20)

    async def serve() -> None:
        listener = Listener(Connections(ConnectionLimits()), lambda peer: found, tls_context(*certificate))
        port = await listener.start("127.0.0.1", 0)
        try:
            await asyncio.to_thread(send_all, port)
        finally:
            listener.close()

    asyncio.run(serve())
    assert sum(found.sizes) == SENT and max(found.sizes) <= TLS_READ_BYTES


# Promise: service.md#as-a-service
def test_a_head_in_tls_records_of_one_byte_is_limited_as_any_other(
    services: Services, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    """Clients are served meanwhile."""
    limits = ConnectionLimits(header_bytes=1_000)
    running = services.start(
        tmp_path / "log", limits=limits, tokens=TOKENS, certificate=certificate[0], key=certificate[1]
    )
    host, _, port = running.coordinator.address.partition(":")
    tls = ssl.create_default_context(cafile=certificate[0])
    head = b"\r\n" * 100 + b"POST /v1/commands HTTP/1.1\r\nHost: localhost\r\nX: ".ljust(limits.header_bytes + 1, b"a")
    with (
        spark_log.connect(f"pylog://{host}:{port}?ca={certificate[0]}", token=WRITE) as log,
        socket.create_connection((host, int(port)), 10) as plain,
        tls.wrap_socket(plain, server_hostname=host) as secured,
    ):
        for at in range(len(head)):
            secured.sendall(head[at : at + 1])
            if at % 200 == 0:
                log.append("t", [{"value": b"x"}])
        assert b"".join(iter(lambda: secured.recv(4096), b"")).startswith(b"HTTP/1.1 431 ")
    services.stop(running)
