"""Connections that wait are read a few at a time."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise

from spark_log.server.long_poll import RESUMED_MAX, PausedConnections


class Counts(asyncio.Protocol):
    """Notes what comes, and that it ends."""

    def __init__(self) -> None:
        self.heard = b""
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


async def connected(loop: asyncio.AbstractEventLoop) -> tuple[socket.socket, asyncio.Transport, Counts]:
    """A client's socket, and its connection."""
    theirs, ours = socket.socketpair()
    ours.setblocking(False)
    transport, protocol = await loop.connect_accepted_socket(Counts, ours)
    return theirs, transport, protocol


async def until(loop: asyncio.AbstractEventLoop, protocol: Counts, heard: bytes) -> None:
    deadline = loop.time() + 30
    while protocol.heard != heard and loop.time() < deadline:
        await asyncio.sleep(0.001)
    assert protocol.heard == heard


def test_what_comes_at_once_on_parked_connections_is_read_a_few_at_a_time() -> None:
    """And on another connection meanwhile, before all of them had their turn."""

    async def scenario() -> list[tuple[int, bool]]:
        loop = asyncio.get_running_loop()
        parking = PausedConnections(loop)
        waiting = [await connected(loop) for _ in range(10 * RESUMED_MAX)]
        other, transport, committing = await connected(loop)
        for _, parked, _ in waiting:
            parking.park(parked)
        for client, _, _ in waiting:
            client.send(b"x")
        other.send(b"y")
        seen = []
        while not seen or seen[-1][0] < len(waiting):
            await asyncio.sleep(0)
            seen.append((sum(bool(protocol.heard) for _, _, protocol in waiting), bool(committing.heard)))
        for client, parked, _ in [*waiting, (other, transport, committing)]:
            parked.close()
            client.close()
        parking.close()
        return seen

    seen = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert all(later[0] - earlier[0] <= RESUMED_MAX for earlier, later in pairwise(seen))
    assert next(heard for heard, committed in seen if committed) <= 2 * RESUMED_MAX


def test_a_connection_is_parked_again_and_again() -> None:
    """Each time it is read when something comes, also if that came before."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        parking = PausedConnections(loop)
        client, transport, protocol = await connected(loop)
        for number in range(3):
            parking.park(transport)
            parking.park(transport)
            client.send(b"x")
            await until(loop, protocol, b"x" * (number + 1))
        transport.close()
        parking.park(transport)
        client.close()
        parking.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_that_a_parked_connection_is_closed_is_noticed() -> None:
    """As soon as its client has gone; the number of its socket serves the next one."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        parking = PausedConnections(loop)
        for _ in range(3):
            client, transport, protocol = await connected(loop)
            parking.park(transport)
            client.close()
            deadline = loop.time() + 30
            while not protocol.ended and loop.time() < deadline:
                await asyncio.sleep(0.001)
            assert protocol.ended
        parking.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
