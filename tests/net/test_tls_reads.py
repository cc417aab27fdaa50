"""Bytes of a peer with TLS are decrypted in small steps, and the buffers of silent connections are small."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time

from spark_log.net.connection_limits import ConnectionLimits, Connections
from spark_log.net.listener import TLS_READ_BYTES, Listener
from spark_log.net.tls import tls_context

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
