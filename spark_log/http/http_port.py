"""A port that speaks HTTP, with limits of its connections.  `server.py` and `quorum/node/port.py` say what it
answers.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from spark_log.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    CoordinatorNotAvailable,
    CorruptObject,
    InconsistentClusterId,
    InvalidRequest,
    NotCoordinator,
    QuotaExceeded,
    RequestTimedOut,
    SparkLogError,
    StorageError,
)
from spark_log.http.connection_limits import ConnectionLimits, Connections, Peer
from spark_log.http.failures import failure_of
from spark_log.http.head_first import HeadFirst
from spark_log.http.listener import Listener

KEEPALIVE_S = 75.0
SHUTDOWN_S = 2.0
"""Time for open requests at shutdown."""
LINGER_S = 10.0
"""After an answer, the rest of a body is read for this long, or for the time limit of a request if that is shorter."""
SWEEP_S = 1.0
_broken = logging.getLogger("spark_log.http")
_broken.setLevel(logging.CRITICAL)
"""aiohttp logs a traceback for every request that is not HTTP: clients must not be able to fill the log."""

_GONE = Peer("", lambda: None, 0.0)
"""Stands for a peer that has hung up while its request was read."""
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Http(web.Server):
    """aiohttp's server of connections that wait behind each head, with a callback for closed ones."""

    def __init__(self, handler: Handler, closed: Callable[[Any], None], *, head_bytes: int, **settings: Any) -> None:
        super().__init__(handler, **settings)
        self._closed = closed
        self._settings = {**settings, "head_bytes": head_bytes}
        self._settings.pop("request_factory")

    def __call__(self) -> HeadFirst:
        return HeadFirst(self, loop=asyncio.get_running_loop(), **self._settings)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        self._closed(handler)
        super().connection_lost(handler, exc)


class HttpPort:
    """Listens, and passes requests to a handler.  Runs on the event loop."""

    def __init__(self, handler: Handler, limits: ConnectionLimits) -> None:
        self.connections = Connections(limits)
        self._handler = handler
        self._limits = limits
        self._peers: dict[Any, Peer] = {}
        """By aiohttp's protocol object."""
        self._http: _Http | None = None
        self._listener: Listener | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen, and return the port.  Raises OSError."""
        make = self._http = _Http(
            self._handle,
            self._closed,
            head_bytes=self._limits.header_bytes,
            request_factory=self._request,
            access_log=None,
            logger=_broken,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=min(LINGER_S, self._limits.request_ms / 1000),
            max_line_size=self._limits.header_bytes,
            max_field_size=self._limits.header_bytes,
            auto_decompress=False,
        )

        def connected(peer: Peer) -> Any:
            protocol = make()
            self._peers[protocol] = peer
            return protocol

        self._listener = Listener(self.connections, connected, tls)
        found = await self._listener.start(host.strip("[]"), port)
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        return found

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = _connection(request)
        connection.begin(request)
        try:
            return await self._handler(request)
        finally:
            # After the answer, in case that what follows is refused.
            asyncio.get_running_loop().call_soon(connection.let_in, request)

    def _closed(self, protocol: Any) -> None:
        peer = self._peers.pop(protocol, None)
        if peer is not None:
            self.connections.remove(peer)

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop, limit = asyncio.get_running_loop(), self._limits.body_bytes
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=limit)

    async def _sweep(self) -> None:
        """Close connections whose request does not arrive: otherwise they would count for as long as their owners
        like."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.connections.close_overdue(time.monotonic())

    def peer(self, request: web.BaseRequest) -> Peer:
        return self._peers.get(request.protocol, _GONE)

    async def read(self, request: web.BaseRequest) -> bytes:
        """The body of a request whose sender is known.  Nothing of it is parsed before, and it is never decompressed: a
        few KB can be a GB.

        Raises InvalidRequest for one that is compressed or in chunks, and RequestTimedOut.
        """
        _check_body(request)
        _connection(request).let_in(request)
        if request.content.is_eof():
            return await request.read()  # it has arrived: no timer is needed
        try:
            return await asyncio.wait_for(request.read(), self._limits.request_ms / 1000)
        except asyncio.TimeoutError as error:
            raise RequestTimedOut(f"the request did not arrive within {self._limits.request_ms} ms") from error

    def use(self, tls: ssl.SSLContext | None) -> None:
        """For new connections."""
        if self._listener is not None:
            self._listener.tls = tls

    async def stop(self) -> None:
        """Stop accepting, and close all connections after the open requests."""
        if self._listener is not None:
            self._sweeper.cancel()
            self._listener.close()
        if self._http is not None:
            self._http.pre_shutdown()
            await self._http.shutdown(SHUTDOWN_S)


def _connection(request: web.BaseRequest) -> HeadFirst:
    found = request.protocol
    assert isinstance(found, HeadFirst), "each connection of a port is one"
    return found


def let_in_all(request: web.BaseRequest) -> None:
    """Pass on what follows a request that changes the protocol, as a WebSocket does."""
    _connection(request).let_in_all()


def _check_body(request: web.BaseRequest) -> None:
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise InvalidRequest(f"Content-Encoding: {encoding[:40]!r} is not supported; send the body uncompressed")
    if "Transfer-Encoding" in request.headers:
        raise InvalidRequest("a body in chunks is not supported; send the whole body with a Content-Length")


def failure_response(error: SparkLogError, status: int | None = None) -> web.Response:
    """The response to a request that failed.

    status:  of HTTP; None: the one for this error.
    """
    if status is None:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 400)
    response = web.Response(body=msgspec.json.encode(failure_of(error)), status=status, content_type="application/json")
    if isinstance(error, AuthenticationFailed):
        response.force_close()  # the next request counts as a new connection
    return response


_STATUS: tuple[tuple[type[SparkLogError], int], ...] = (
    (AuthenticationFailed, 401),
    (AuthorizationFailed, 403),
    (QuotaExceeded, 429),
    (RequestTimedOut, 408),
    (InconsistentClusterId, 409),
    (NotCoordinator, 503),
    (CoordinatorNotAvailable, 503),
    (StorageError, 503),
    (CorruptObject, 500),
)
