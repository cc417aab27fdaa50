"""TCP proxies that a test tells to carry nothing, to be slow, or to break off in the middle of a message.

with TcpProxies() as proxies:
    address = proxies.between("a", "b", "127.0.0.1:9551")    # under which a reaches b
    proxies.set("a", "b", is_cut=True)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Hashable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import TracebackType

from typing_extensions import Self

PIECE_BYTES = 1 << 14
LOOK_S = 0.02
"""How often a connection that carries nothing looks again."""


@dataclass(slots=True)
class Fault:
    """A fault of the connections from one side to the other."""

    is_cut: bool = False
    """Bytes stay where they are, in both directions, as when a cable is pulled."""
    is_mute: bool = False
    """Bytes of the target stay where they are: what is asked arrives, and what is answered does not."""
    delay_s: float = 0.0
    """The delay of each piece."""
    break_after: int | None = None
    """The next connections are closed after so many bytes."""
    open: set[asyncio.StreamWriter] = field(default_factory=set)


class TcpProxies:
    """Proxies on an event loop in a thread: one for each directed pair."""

    def __init__(self) -> None:
        self._faults: dict[tuple[Hashable, Hashable], Fault] = {}
        self._addresses: dict[tuple[Hashable, Hashable], str] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def between(self, source: Hashable, target: Hashable, address: str) -> str:
        """The address of the proxy for a pair; it stays the same."""
        if (source, target) not in self._addresses:
            starting = asyncio.run_coroutine_threadsafe(self._start((source, target), address), self._loop)
            self._addresses[source, target] = starting.result(10)
        return self._addresses[source, target]

    def set(
        self,
        source: Hashable,
        target: Hashable,
        *,
        is_cut: bool = False,
        is_mute: bool = False,
        delay_s: float = 0.0,
        break_after: int | None = None,
    ) -> None:
        """Set the fault, of connections that are open as well.  `break_after` closes those first."""
        fault = self._faults[source, target]
        self._loop.call_soon_threadsafe(self._set, fault, is_cut, is_mute, delay_s, break_after)

    def isolate(self, one: Hashable, others: Iterable[Hashable], is_cut: bool = True) -> None:
        """In both directions."""
        for other in others:
            self.set(one, other, is_cut=is_cut)
            self.set(other, one, is_cut=is_cut)

    def _set(self, fault: Fault, is_cut: bool, is_mute: bool, delay_s: float, break_after: int | None) -> None:
        fault.is_cut, fault.is_mute, fault.delay_s, fault.break_after = is_cut, is_mute, delay_s, break_after
        if break_after is not None:
            for writer in fault.open:
                writer.close()

    async def _start(self, pair: tuple[Hashable, Hashable], address: str) -> str:
        fault = self._faults[pair] = Fault()
        host, port = address.rsplit(":", 1)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with closing(writer), suppress(OSError):
                there, back = await asyncio.open_connection(host, int(port))
                with closing(back):
                    fault.open |= {writer, back}
                    await _until_first([_carry(fault, reader, back), _carry(fault, there, writer, is_answer=True)])
                    fault.open -= {writer, back}

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_first(works: Iterable[Coroutine[None, None, None]]) -> None:
    """When one side has closed, so is the other."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(
    fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool = False
) -> None:
    carried = 0
    while data := await reader.read(PIECE_BYTES):
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        while fault.is_cut or (is_answer and fault.is_mute):
            await asyncio.sleep(LOOK_S)
        limit = fault.break_after
        writer.write(data if limit is None else data[: max(0, limit - carried)])
        await writer.drain()
        carried += len(data)
        if limit is not None and carried >= limit:
            return
