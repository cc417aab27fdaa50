"""Accepts connections on one port, and counts each from then on, including those in a TLS handshake."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
import time
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from spark_log.http.connection_limits import ConnectionLimits, Connections, Peer
from spark_log.log_lines import logger

BACKLOG = 4096
AT_ONCE = 50
"""Connections accepted per round of the event loop; connections displaced by them are closed in the next round."""
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
DISPLACED_MIN = 50
"""Silent connections closed when no file descriptor is free."""
PAUSE_S = 0.2
"""Pause in accepting after that."""
TLS_READ_BYTES = 16 << 10
"""Bytes that are decrypted in one step of the event loop, and the buffer of a connection with TLS: a whole TLS record.
asyncio takes 256 KiB, in which a peer without a token can send 11,000 TLS records, and others wait for all of them."""
WARN_S = 60.0


class Listener:
    """A listening port.  Runs on the event loop."""

    def __init__(
        self, connections: Connections, make: Callable[[Peer], asyncio.Protocol], tls: ssl.SSLContext | None
    ) -> None:
        """
        make:  creates the protocol of a new connection.
        """
        self.tls = tls
        """For new connections."""
        sslproto.SSLProtocol.max_size = TLS_READ_BYTES
        self._connections = connections
        self._make = make
        self._sockets: list[socket.socket] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._warned_s = -WARN_S

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port.  Raises OSError."""
        self._loop = asyncio.get_running_loop()
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._sockets.append(_listening(family, str(address[0]), int(address[1])))
        except OSError:
            self.close()
            raise
        self._watch()
        number: int = self._sockets[0].getsockname()[1]
        return number

    def _watch(self) -> None:
        self._resuming = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _unwatch(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            accepted.setblocking(False)
            self._open(accepted, address[0])

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a while.  The listening socket stays readable, so the event loop would call without
        end."""
        closed = 0
        if error.errno in OUT_OF_RESOURCES:
            closed = self._connections.displace(max(DISPLACED_MIN, self._connections.silent // 2))
        now = time.monotonic()
        if now - self._warned_s >= WARN_S:
            self._warned_s = now
            logger.warning("no file descriptor is free for a new connection (%s); closed %d silent ones", error, closed)
        self._unwatch()
        self._resuming = self._loop.call_later(PAUSE_S, self._watch)

    def _open(self, accepted: socket.socket, address: str) -> None:
        now_s = time.monotonic()
        peer = self._connections.accept(address, lambda: None, now_s)
        opening = self._loop.create_task(self._connect(accepted, peer, self._connections.charge(peer, now_s)))
        peer.close = opening.cancel
        self._opening.add(opening)
        opening.add_done_callback(partial(self._opened, accepted, peer))

    async def _connect(self, accepted: socket.socket, peer: Peer, wait_s: float) -> None:
        """Do the TLS handshake, then pass the connection to its protocol."""
        if wait_s:
            await self._wait(peer, wait_s)
        within_s = None if self.tls is None else self._connections.limits.request_ms / 1000
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: self._make(peer), accepted, ssl=self.tls, ssl_handshake_timeout=within_s
        )
        peer.close = transport.abort

    async def _wait(self, peer: Peer, wait_s: float) -> None:
        turn = asyncio.Event()
        self._connections.wait(peer, turn.set)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(turn.wait(), wait_s)
        except asyncio.CancelledError:
            self._connections.refund(peer)
            raise
        finally:
            self._connections.end_wait(peer)

    def _opened(self, accepted: socket.socket, peer: Peer, opening: asyncio.Task[None]) -> None:
        self._opening.discard(opening)
        if opening.cancelled() or opening.exception() is not None:  # displaced, hung up, or not TLS
            self._connections.remove(peer)
            accepted.close()

    def close(self) -> None:
        """Stop accepting; open connections stay open."""
        if self._resuming is not None:
            self._resuming.cancel()
        else:
            self._unwatch()
        for listening in self._sockets:
            listening.close()
        self._sockets = []
        for opening in self._opening:
            opening.cancel()


def _listening(family: int, host: str, port: int) -> socket.socket:
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening


def within_descriptors(limits: ConnectionLimits) -> ConnectionLimits:
    """Limits that leave file descriptors for the storage, after raising the process's limit as far as possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < limits.descriptors:
        allowed = limits.descriptors if hard == resource.RLIM_INFINITY else min(hard, limits.descriptors)
        soft = max(soft, allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= limits.descriptors:
        return limits
    found = limits.within(soft)
    logger.warning(
        "this process may open %d files, but the connection limits need %d: it accepts %d connections of clients and "
        "%d silent ones; increase LimitNOFILE or `ulimit -n`",
        soft,
        limits.descriptors,
        found.connections,
        found.silent_connections,
    )
    return found
