"""The port that Kafka's clients connect to: frames in, frames out, in order.

One request of a connection is handled at a time, as in Kafka.  Only writes are handled beside those before them, since
many of them share a commit.

At the end, writes that have begun are answered.  Bytes that a client has sent behind them are read and dropped until
the client closes the connection: a connection that is closed before its bytes are read may lose answers, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
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
DRAIN_S = 20.0
"""At the end, writes that have begun have this time to be answered."""
CLOSED_S = 2.0
"""At the end, a client has this time to close a connection behind the last answer."""
ANYBODY = "anybody"
"""Clients do not authenticate."""
logger = logging.getLogger("spark_log")


class _Stopping(Exception):
    """No further request of a connection is read."""


class _Dropping(asyncio.Protocol):
    """Drops what arrives, until the connection ends."""

    def __init__(self, before: asyncio.BaseProtocol) -> None:
        """before:  the protocol of the connection so far, whose writer is still used."""
        self._before = before
        self.ended = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self._before.connection_lost(exc)
        if not self.ended.done():
            self.ended.set_result(None)


class _UnderWay:
    """A request that is being answered."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.writes = False
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
        self._open: dict[asyncio.Task[None], asyncio.StreamReader] = {}
        self._writing: Counter[asyncio.StreamReader] = Counter()
        """How many writes of a connection are not answered."""
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

    async def drain(self) -> None:
        """Answer the writes that have begun, and close all connections.  No request is read any more."""
        self._listener.close()
        for task, reader in list(self._open.items()):
            if self._writing[reader]:
                reader.set_exception(_Stopping())
            else:
                task.cancel()
        if self._open:
            await asyncio.wait(list(self._open), timeout=DRAIN_S)

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
            self._open[task] = reader
            task.add_done_callback(self._open.pop)

        return asyncio.StreamReaderProtocol(reader, connected)

    async def _serve(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[_UnderWay | None] = asyncio.Queue(UNDER_WAY_MAX)
        sending = self._loop.create_task(self._send_all(peer, reader, writer, under_way))
        try:
            try:
                while not writer.is_closing():
                    await self._receive(peer, reader, under_way)
            except (asyncio.IncompleteReadError, ConnectionError):
                await asyncio.sleep(0)  # what was received begins: with acks=0 it is written
                return
            except SparkLogError as error:
                logger.warning("a Kafka client at %s was disconnected: %s", peer.network, error)
            except _Stopping:
                await under_way.put(None)
                await sending
                await self._dropped(writer)
                return
            await under_way.put(None)
            await sending
        finally:
            self._writing.pop(reader, None)
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

    async def _dropped(self, writer: asyncio.StreamWriter) -> None:
        """Drop what a client still sends, until it closes the connection."""
        if writer.is_closing():
            return
        dropping = _Dropping(writer.transport.get_protocol())
        writer.transport.set_protocol(dropping)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        writer.write_eof()
        await asyncio.wait([dropping.ended], timeout=CLOSED_S)

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
            one.answering = self._loop.create_task(answer(request, self._handlers, peer.network))
            one.writes = request.api is PRODUCE
            self._writing[reader] += one.writes
        except BaseException:
            self._free(len(frame))
            raise
        await under_way.put(one)
        if request.api is not PRODUCE:
            await one.sent.wait()

    async def _send_all(
        self,
        peer: Peer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        under_way: asyncio.Queue[_UnderWay | None],
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
                self._writing[reader] -= one.writes
                one.sent.set()

    async def _send(self, writer: asyncio.StreamWriter, parts: list[bytes]) -> None:
        size = sum(map(len, parts))
        self.unsent += size
        try:
            writer.writelines(parts)
            parts.clear()
            with suppress(_Stopping):  # `drain` raises what was set for the reader
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
