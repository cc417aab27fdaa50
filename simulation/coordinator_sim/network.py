"""The networks between nodes, and between clients and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from simulation.coordinator_sim.nodes import SimulatedNode
from simulation.coordinator_sim.world import QuorumWorld
from simulation.harness.simulated_process import ProcessLoop
from spark_log.quorum.wire import Received

Answer = tuple[int, bytes]
CHECK_MS = 1000
"""QUICK_CHECK_S of the client: after this long without an answer, it checks whether the process is alive."""


class Refused(ConnectionRefusedError):
    """Nobody listens, so nothing was sent."""


class Network:
    def __init__(self, world: QuorumWorld) -> None:
        self._world, self._rng = world, world.rng
        self.blocked: set[tuple[int, int]] = set()
        """Pairs of node ids: nothing of the first reaches the second."""
        self.hidden: set[int] = set()
        """Nodes that no client reaches."""
        self._waiting: dict[SimulatedNode, dict[asyncio.Future[Answer], None]] = {}
        """Requests of clients that a node has not answered."""

    # ------------------------------------------------------------------------------------------------------ between nodes

    def send(self, source: SimulatedNode, received: Received, refused: Callable[[int], None]) -> None:
        world, target = self._world, received.message.target.id
        if world.happens(world.loss):
            return
        for _ in range(2 if world.happens(world.doubling) else 1):
            slow = world.happens(world.slowness)
            delay = self._rng.randrange(20, 2000) if slow else self._rng.randrange(1, 5)
            world.call(delay, partial(self._deliver, source, received, refused, target))

    def _deliver(self, source: SimulatedNode, received: Received, refused: Callable[[int], None], target: int) -> None:
        node = self._world.machines.get(target)
        if node is None or (source.key.id, target) in self.blocked:
            return
        if node.runs:
            node.receive(received)
        elif (target, source.key.id) not in self.blocked:
            source.input(partial(refused, target))

    # -------------------------------------------------------------------------------------------------------- of clients

    def ended(self, node: SimulatedNode) -> None:
        """Its connections are reset."""
        for future in self._waiting.pop(node, {}):
            if not future.done():
                future.set_exception(ConnectionResetError("the connection was reset"))

    async def ask(
        self, loop: ProcessLoop, address: str, method: str, path: str, body: bytes, limit_ms: float
    ) -> Answer:
        """The answer of a node.  Raises OSError; Refused if nothing was sent."""
        node = next(node for node in self._world.machines.values() if node.address == address)
        await asyncio.sleep(self._rng.randrange(1, 4) / 1000)
        if self._is_hidden(node):
            await asyncio.sleep(2 * CHECK_MS / 1000)
            raise TimeoutError("no answer")
        if not node.runs:
            raise Refused("nobody listens")
        answered: asyncio.Future[Answer] = loop.create_future()
        waiting = self._waiting.setdefault(node, {})
        waiting[answered] = None
        try:
            if not self._world.happens(self._world.rates.lost):
                node.answer(method, path, body, partial(self._answered, node, answered))
            elif self._world.happens(0.5):
                raise ConnectionResetError("the connection was reset before the request arrived")
            return await self._answer(loop, node, answered, limit_ms)
        finally:
            waiting.pop(answered, None)

    def _is_hidden(self, node: SimulatedNode) -> bool:
        return node.key.id in self.hidden

    def _answered(self, node: SimulatedNode, answered: asyncio.Future[Answer], status: int, body: bytes) -> None:
        """The answer travels to the client."""
        if self._world.happens(self._world.rates.lost) or self._is_hidden(node):
            return
        slow = self._world.happens(self._world.slowness)
        delay = self._rng.randrange(20, 4000) if slow else self._rng.randrange(1, 4)
        self._world.call(delay, partial(_resolve, answered, (status, body)))

    async def _answer(
        self, loop: ProcessLoop, node: SimulatedNode, answered: asyncio.Future[Answer], limit_ms: float
    ) -> Answer:
        """Answers as long as the process is alive."""
        starts, waited_ms, is_alive = node.starts, 0, True
        while waited_ms < limit_ms and is_alive:
            is_alive = node.starts == starts and not node.is_stopped and not self._is_hidden(node)
            await _done_or_late(loop, answered)
            waited_ms += CHECK_MS
            if answered.done():
                return answered.result()
        raise TimeoutError("no answer")


async def _done_or_late(loop: ProcessLoop, answered: asyncio.Future[Answer]) -> None:
    """Does what `asyncio.wait` does with a timeout, which takes longer than all else that a request does."""
    waiter: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(CHECK_MS / 1000, _resolve, waiter, None)

    def end(done: object) -> None:
        timer.cancel()
        _resolve(waiter, None)

    answered.add_done_callback(end)
    try:
        await waiter
    finally:
        timer.cancel()
        answered.remove_done_callback(end)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
