"""The connections that this node of a quorum opens to the others, one to each: its messages leave on them.

Messages may be lost, so a queue that is full drops its oldest ones.  Each connection has a task: a node that hangs
delays nobody else.
"""

from __future__ import annotations

import asyncio
import socket as sockets
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias, TypeVar

import aiohttp

from spark_log.errors import SparkLogError
from spark_log.log_lines import logger
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.handshake import (
    PATH,
    REFUSED,
    SOURCE,
    NodeIdentity,
    level_of,
    parse_key,
    request_headers,
    voters_of,
)
from spark_log.quorum.node.port import MESSAGE_BYTES_MAX
from spark_log.quorum.voters import Voters
from spark_log.quorum.wire import Received, encode_message

CONNECT_S = 2.0
LINK_HEARTBEAT_S = 20.0
"""The check of a connection waits behind a message, which a slow network may carry for some seconds."""
LOST_MS = 3_000
"""A connection is closed if the other machine accepts no byte for so long.  On Linux; elsewhere the check finds it."""
PAUSES_S = (0.05, 0.1, 0.2, 0.5)
"""Between attempts to connect; the last one is repeated."""
REFUSED_PAUSE_S = 2.0
"""After the other node has refused this one."""
FLUSH_S, FLUSH_TRIES = 0.02, 25
QUEUE_BYTES, QUEUE_MESSAGES = 2 * MESSAGE_BYTES_MAX, 256
LARGE_BYTES = 64 << 10
"""Size of a message that has entries or a chunk, which are most of it."""
Result = TypeVar("Result")
Tls: TypeAlias = "ssl.SSLContext | None"


class NodeLink:
    """The connection to one node, which is opened again whenever it is closed."""

    def __init__(self, node_id: int, address: str, connect: Connect) -> None:
        self.node_id, self.address = node_id, address
        self.problem: str | None = "not connected yet"
        """The reason why this link is not connected; None while it is."""
        self.directory = ""
        """The directory id of the node that was connected last; empty: none was."""
        self.level = 0
        """Its level."""
        self._connect = connect
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._filled = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def send(self, data: bytes) -> None:
        """A large message replaces one that still waits: both have entries or a chunk, for which the other node has
        asked again meanwhile.  With both, a slow connection would carry ever more copies.
        """
        if len(data) > LARGE_BYTES:
            for waiting in [one for one in self._queue if len(one) > LARGE_BYTES]:
                self._queue.remove(waiting)
                self._queued -= len(waiting)
        self._queue.append(data)
        self._queued += len(data)
        while len(self._queue) > 1 and (self._queued > QUEUE_BYTES or len(self._queue) > QUEUE_MESSAGES):
            self._queued -= len(self._queue.popleft())
        self._filled.set()

    @property
    def is_flushed(self) -> bool:
        """Nothing waits for the connection that there is."""
        return not self._queue or self.problem is not None

    def close(self) -> asyncio.Task[None]:
        """The task, which ends soon."""
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        failures = 0
        while True:
            begun = asyncio.get_running_loop().time()
            problem, pause_s = await self._one_connection()
            failures = 0 if asyncio.get_running_loop().time() - begun > CONNECT_S else failures + 1
            if problem != self.problem:
                logger.warning("node %d at %s: %s", self.node_id, self.address, problem)
            self.problem = problem
            shortest_s = PAUSES_S[min(failures, len(PAUSES_S)) - 1] if failures else 0
            await asyncio.sleep(max(pause_s, shortest_s))

    async def _one_connection(self) -> tuple[str, float]:
        """Connect, and send until the connection is closed; why it was, and how long to wait at least."""
        try:
            async with await _within(self._connect(self), CONNECT_S) as socket:
                _limit_silence(socket.get_extra_info("socket"))
                logger.info("this node is connected to node %d at %s", self.node_id, self.address)
                self.problem = None
                await self._send_all(socket)
            return "the connection was closed", 0
        except aiohttp.WSServerHandshakeError as error:
            reason = error.headers.get(REFUSED) if error.headers else None
            reason = reason or f"it answers {error.status}"
            return f"it refuses this node: {reason}", REFUSED_PAUSE_S
        except asyncio.TimeoutError:
            return "it does not answer", 0
        except aiohttp.ClientConnectorError as error:
            return f"it cannot be reached: {error.os_error.strerror or error.os_error}", 0
        except (aiohttp.ClientError, OSError) as error:
            return f"{error or type(error).__name__}", 0
        except SparkLogError as error:
            return str(error), REFUSED_PAUSE_S
        except Exception as error:  # noqa: BLE001  another attempt may succeed, and the status shows the error
            return f"{type(error).__name__}: {error}", REFUSED_PAUSE_S

    async def _send_all(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """The other side sends nothing but answers to heartbeats, which `receive` handles."""
        tasks = [asyncio.create_task(self._send(socket)), asyncio.create_task(_until_closed(socket))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._queue:
                data = self._queue.popleft()
                self._queued -= len(data)
                await socket.send_bytes(data)  # the heartbeat ends this if the other node hangs


async def _within(work: Coroutine[Any, Any, Result], seconds: float) -> Result:
    """Does what `asyncio.wait_for` does, which may lose a cancellation in Python 3.11.  Raises asyncio.TimeoutError."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


def _limit_silence(socket: sockets.socket | None) -> None:
    if socket is not None and hasattr(sockets, "TCP_USER_TIMEOUT"):
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT, LOST_MS)


async def _until_closed(socket: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in socket:
        pass


class Connect:
    """Opens connections, with the identity of this node."""

    def __init__(
        self,
        me: NodeIdentity,
        secret: str,
        tls: Tls,
        *,
        refused: Callable[[int], None],
        accepted: Callable[[ReplicaKey, Voters], None],
    ) -> None:
        """
        refused:   called with the id of a node at whose address nobody listens.
        accepted:  called with another node and the voters that it knows.  If it raises InvalidRequest, there is no
                   connection.
        """
        self.me = me
        self.tls = tls
        self._secret = secret
        self._refused = refused
        self._accepted = accepted
        self._session = aiohttp.ClientSession(auto_decompress=False)

    async def __call__(self, link: NodeLink) -> aiohttp.ClientWebSocketResponse:
        url = f"{'http' if self.tls is None else 'https'}://{link.address}{PATH}"
        try:
            socket = await self._session.ws_connect(
                url,
                ssl=self.tls or True,
                headers=request_headers(self.me, link.node_id, self._secret),
                heartbeat=LINK_HEARTBEAT_S,
                max_msg_size=1 << 10,
            )
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ConnectionRefusedError):
                self._refused(link.node_id)
            raise
        try:
            headers = socket._response.headers
            other = parse_key(headers.get(SOURCE, ""))
            self._accepted(other, voters_of(headers))
            link.directory, link.level = other.directory, level_of(headers)
        except BaseException:
            await socket.close()
            raise
        return socket

    async def close(self) -> None:
        await self._session.close()


class QuorumLinks:
    """The connections to all other nodes, by their ids."""

    def __init__(self, connect: Connect, peers: Mapping[int, str]) -> None:
        self.me = connect.me
        self._connect = connect
        self._known = frozenset(peers)
        self._links = {node_id: NodeLink(node_id, address, connect) for node_id, address in peers.items()}

    def use(self, tls: Tls) -> None:
        """For new connections."""
        self._connect.tls = tls

    def send(self, sent: Received) -> None:
        """Nothing, if the address of the node is not known: it introduces itself when it connects."""
        link = self._links.get(sent.message.target.id)
        if link is not None:
            link.send(encode_message(sent))

    def meet(self, other: NodeIdentity) -> None:
        """A node that is not configured, and may join, has connected: open a connection to it."""
        link = self._links.get(other.key.id)
        if other.key.id in self._known or (link is not None and link.address == other.address):
            return
        if link is not None:
            link.close()
        self._links[other.key.id] = NodeLink(other.key.id, other.address, self._connect)

    def addresses(self) -> dict[int, str]:
        return {node_id: link.address for node_id, link in sorted(self._links.items())}

    def directories(self) -> dict[int, str]:
        """The directory ids of the nodes that are connected."""
        return {node_id: link.directory for node_id, link in self._links.items() if link.problem is None}

    def known(self) -> dict[int, str]:
        """The directory ids of all nodes when they were connected last; empty for those that were not."""
        return {node_id: link.directory for node_id, link in self._links.items()}

    def levels(self) -> dict[int, int]:
        """The levels of the nodes that are connected."""
        return {node_id: link.level for node_id, link in self._links.items() if link.problem is None}

    def problems(self) -> dict[int, str | None]:
        """For each node, the reason why its link is not connected; None if it is."""
        return {node_id: link.problem for node_id, link in sorted(self._links.items())}

    async def flush(self) -> None:
        """Let what was sent leave, for a short time."""
        for _ in range(FLUSH_TRIES):
            await asyncio.sleep(FLUSH_S)
            if all(link.is_flushed for link in self._links.values()):
                return

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()), return_exceptions=True)
        await self._connect.close()
