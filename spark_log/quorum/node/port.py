"""The connections that other nodes of a quorum have opened to this one."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from aiohttp import WSMsgType, web

from spark_log.errors import AuthenticationFailed, InvalidRequest, SparkLogError
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.http.http_port import KEEPALIVE_S, HttpPort, failure_response, let_in_all
from spark_log.log_lines import logger
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.handshake import (
    PATH,
    REFUSED,
    STATUS,
    NodeIdentity,
    check_authorization,
    check_request,
    reply_headers,
)
from spark_log.quorum.voters import Voters, key_text
from spark_log.quorum.wire import Received, decode_message

MESSAGE_BYTES_MAX = 32 << 20
"""Maximum size of a message: an entry may be larger than `fetch_bytes`."""
HEARTBEAT_S = 2.0
"""Without a byte of the other node, a connection is checked; it is closed if there is none for half of that again."""
CLOSE_S = 0.5
LIMITS = ConnectionLimits(
    body_bytes=1 << 10, connections=64, silent_connections=64, strangers_per_s=20, request_ms=5_000
)
Tool: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""Answers a request of an operator's command.  Raises SparkLogError."""
Tools: TypeAlias = Mapping[tuple[str, str], Tool]
"""By method and path."""


class QuorumPort:
    """Accepts nodes that know the secret, and passes on what they say.  Operators' commands use the same port."""

    def __init__(
        self,
        me: NodeIdentity,
        secret: str,
        receive: Callable[[Received], None],
        *,
        connected: Callable[[NodeIdentity], None],
        voters: Callable[[], Voters],
        tools: Tools,
    ) -> None:
        """
        connected:  called with each node that has opened a connection.
        voters:     the present ones, for a node that joins.
        """
        self.me = me
        self._secret = secret
        self._receive = receive
        self._connected = connected
        self._voters = voters
        self._tools = tools
        self._port = HttpPort(self._serve, LIMITS)
        self._open: dict[ReplicaKey, tuple[str, set[web.WebSocketResponse]]] = {}
        """By the other node's directory: its process, and its connections."""

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen, and return the port.  Raises OSError."""
        return await self._port.start(host, port, tls)

    def use(self, tls: ssl.SSLContext | None) -> None:
        """For new connections."""
        self._port.use(tls)

    async def stop(self) -> None:
        closing = [asyncio.create_task(socket.close()) for _, found in self._open.values() for socket in found]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)
        await self._port.stop()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        peer = self._port.peer(request)
        self._port.connections.begin(peer)
        try:
            if request.path != PATH:
                return await self._serve_tool(request)
            other = check_request(request.headers, self.me, self._secret)
            self._check_copy(other)
            self._port.connections.establish(peer, key_text(other.key))
        except SparkLogError as error:
            status = next((code for kind, code in STATUS if isinstance(error, kind)), 400)
            refusal = web.Response(status=status, text=f"{error}\n", headers={REFUSED: str(error)})
            if isinstance(error, AuthenticationFailed):
                refusal.force_close()  # the next request counts as a new connection
            return refusal
        finally:
            self._port.connections.end(peer, time.monotonic() + KEEPALIVE_S)
        self._port.connections.begin(peer)
        return await self._listen(request, other)

    async def _serve_tool(self, request: web.BaseRequest) -> web.StreamResponse:
        tool = self._tools.get((request.method, request.path))
        if tool is None:
            return failure_response(
                InvalidRequest("this is the port for the other nodes of a quorum: clients use the node's other port")
            )
        check_authorization(request.headers, self._secret)
        return web.Response(body=await tool(await self._port.read(request)))

    def _check_copy(self, other: NodeIdentity) -> None:
        """Two processes with copies of one directory could vote twice."""
        process, sockets = self._open.get(other.key, ("", set()))
        if sockets and process != other.process:
            logger.error("two processes use copies of the directory %s; the second is refused", key_text(other.key))
            raise InvalidRequest(
                f"another process uses a copy of the directory {key_text(other.key)} and is connected: stop one of them"
            )

    async def _listen(self, request: web.BaseRequest, other: NodeIdentity) -> web.StreamResponse:
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MESSAGE_BYTES_MAX, compress=False)
        socket.headers.update(reply_headers(self.me, self._voters()))
        _, sockets = self._open[other.key] = (other.process, self._open.get(other.key, ("", set()))[1])
        sockets.add(socket)
        try:
            await socket.prepare(request)
            let_in_all(request)
            self._connected(other)
            await self._pass_on(socket, other)
        finally:
            sockets.discard(socket)
        return socket

    async def _pass_on(self, socket: web.WebSocketResponse, other: NodeIdentity) -> None:
        async for part in socket:
            try:
                if part.type is not WSMsgType.BINARY:
                    raise InvalidRequest(f"expected messages of replicas, not {part.type.name}")
                received = decode_message(part.data)
                if received.message.source != other.key:
                    raise InvalidRequest(f"a message of {key_text(received.message.source)}")
            except InvalidRequest as error:
                logger.error("node %s: %s; the connection is closed", key_text(other.key), error)
                return
            self._receive(received)
