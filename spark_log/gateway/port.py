"""The port that Kafka's clients connect to: frames in, frames out, in order.

One request of a connection is handled at a time, as in Kafka.  Only writes are handled beside those before them, since
many of them share a commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.gateway.api import PRODUCE, Api, Handler, answer, parse_request
from spark_log.gateway.codec import MalformedFrame
from spark_log.http.connection_limits import ConnectionLimits, Connections, Peer
from spark_log.http.listener import Listener, within_descriptors

LIMITS = ConnectionLimits(body_bytes=32 << 20, connections=2_000, connections_per_address=2_000)
"""Clients send up to 1 MiB of records by default."""
READ_BYTES_MAX = 1 << 20
"""Bytes of a request that writes nothing: it names 25,000 partitions."""
FRAMES_BYTES_MAX = 256 << 20
"""Bytes of all requests that are being received or answered.  Others wait until there is room."""
WRITES_BYTES_MAX = 192 << 20
"""A write waits above it, so that storage that hangs for writes leaves room for reads."""
UNDER_WAY_MAX = 64
"""Writes of a connection that are not answered."""
FRAME_BYTES_MIN = 10
IDLE_S = 600.0
"""A connection without requests is closed, as Kafka's `connections.max.idle.ms` has it."""
TAKEN_S = 60.0
"""A client has to take an answer within this time."""
SWEEP_S = 5.0
ANYBODY = "anybody"
"""Clients do not authenticate."""
logger = logging.getLogger("spark_log")


class _UnderWay:
    """A request that is being answered."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.answering: asyncio.Task[list[bytes]] | None = None
        self.sent = asyncio.Event()
        """Set when the answer was sent, or will not be."""


class GatewayPort:
    """Listens, and answers requests by handlers.  Runs on one event loop."""

    def __init__(self, handlers: Mapping[Api, Handler], limits: ConnectionLimits = LIMITS) -> None:
        self._handlers = handlers
        self._limits = within_descriptors(limits)
        self.connections = Connections(self._limits)
        self._listener = Listener(self.connections, self._protocol, None)
        self._open: set[asyncio.Task[None]] = set()
        self._held = 0
        """Bytes of requests that are not answered."""
        self._freed = asyncio.Event()
        self.unsent = 0
        """Bytes of answers that clients have not taken."""

    async def start(self, host: str, port: int) -> int:
        """Returns the port.  Raises InvalidRequest if it cannot listen."""
        self._loop = asyncio.get_running_loop()
        try:
            number = await self._listener.start(host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidRequest(
                f"cannot listen on {host}:{port}: {reason}; choose another --listen address"
            ) from error
        self._sweeping = self._loop.create_task(self._sweep())
        return number

    async def stop(self) -> None:
        self._listener.close()
        tasks = [self._sweeping, *self._open]
        for task in tasks:
            task.cancel()
        for peer in list(self.connections):
            peer.close()  # it may never take what is sent already
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.connections.close_overdue(self._loop.time())

    def _protocol(self, peer: Peer) -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=64 << 10)

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(peer, reader, writer))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

        return asyncio.StreamReaderProtocol(reader, connected)

    async def _serve(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[_UnderWay | None] = asyncio.Queue(UNDER_WAY_MAX)
        sending = self._loop.create_task(self._send_all(peer, writer, under_way))
        try:
            try:
                while not writer.is_closing():
                    await self._receive(peer, reader, under_way)
            except (asyncio.IncompleteReadError, ConnectionError):
                await asyncio.sleep(0)  # what was received begins: with acks=0 it is written
                return
            except SparkLogError as error:
                logger.warning("a Kafka client at %s was disconnected: %s", peer.network, error)
            await under_way.put(None)
            await sending
        finally:
            sending.cancel()
            while not under_way.empty():
                if (one := under_way.get_nowait()) is not None and one.answering is not None:
                    one.answering.cancel()
                    self._free(one.size)
            writer.close()
            self.connections.end(peer, self._loop.time() + TAKEN_S)  # it counts until it has taken what is sent already
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self.connections.remove(peer)

    async def _receive(
        self, peer: Peer, reader: asyncio.StreamReader, under_way: asyncio.Queue[_UnderWay | None]
    ) -> None:
        """The next request, until it is answered; of a write, until it is begun."""
        frame = await self._frame(peer, reader)
        one = _UnderWay(len(frame))
        try:
            request = parse_request(frame)
            self.connections.establish(peer, ANYBODY)
            self.connections.begin(peer)
            one.answering = self._loop.create_task(answer(request, self._handlers))
        except BaseException:
            self._free(len(frame))
            raise
        await under_way.put(one)
        if request.api is not PRODUCE:
            await one.sent.wait()

    async def _send_all(
        self, peer: Peer, writer: asyncio.StreamWriter, under_way: asyncio.Queue[_UnderWay | None]
    ) -> None:
        """Send the answers in order.  After a failure the connection is closed, and no further one is sent."""
        while (one := await under_way.get()) is not None:
            assert one.answering is not None, "it was begun"
            try:
                if writer.is_closing():
                    one.answering.cancel()
                else:
                    parts = await one.answering
                    peer.deadline_s = self._loop.time() + TAKEN_S
                    await self._send(writer, parts)
                    if under_way.empty():
                        self.connections.end(peer, self._loop.time() + IDLE_S)
            except ConnectionError:
                writer.close()
            except SparkLogError as error:
                logger.warning("a Kafka client at %s got no answer: %s", peer.network, error)
                writer.close()
            except Exception:
                logger.exception("a Kafka client at %s got no answer", peer.network)
                writer.close()
            finally:
                self._free(one.size)
                one.sent.set()

    async def _send(self, writer: asyncio.StreamWriter, parts: list[bytes]) -> None:
        size = sum(map(len, parts))
        self.unsent += size
        try:
            writer.writelines(parts)
            parts.clear()
            await writer.drain()
        finally:
            self.unsent -= size

    async def _frame(self, peer: Peer, reader: asyncio.StreamReader) -> bytes:
        """The next request.  Its memory is taken as its bytes arrive, and when there is room for it."""
        size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
        if not FRAME_BYTES_MIN <= size <= self._limits.body_bytes:
            raise MalformedFrame(
                f"a frame of {size} bytes, expected {FRAME_BYTES_MIN} to {self._limits.body_bytes}; is this HTTP or TLS?"
            )
        key = await reader.readexactly(2)
        writes = int.from_bytes(key, "big") == PRODUCE.key
        if size > READ_BYTES_MAX and not writes:
            raise MalformedFrame(f"a frame of {size} bytes that writes nothing, expected {READ_BYTES_MAX} at most")
        while self._held and self._held + size > (WRITES_BYTES_MAX if writes else FRAMES_BYTES_MAX):
            self._freed.clear()
            await self._freed.wait()
        self._held += size
        peer.deadline_s = self._loop.time() + TAKEN_S
        try:
            return key + await reader.readexactly(size - len(key))
        except BaseException:
            self._free(size)
            raise

    def _free(self, size: int) -> None:
        self._held -= size
        self._freed.set()
