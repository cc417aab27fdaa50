"""The world of coordinators on a quorum: that of the simulation of the log, with nodes and a network between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from simulation.levels import TOMORROW
from simulation.log_sim.world import Actor, FaultRates, Watcher, World
from simulation.verdict import Violation
from spark_log.journal.store_operations import LinkOp
from spark_log.metadata.state import State
from spark_log.quorum.node.node_config import TIMES
from spark_log.rpc.messages import MemberRequest

CLUSTER = "simulated"


class AskMember(NamedTuple):
    """A request of a member of a group.  Answer: the response."""

    request: MemberRequest


async def _nothing(node: Any) -> None:
    pass


class QuorumWorld(World):
    """Actors that are clients, and nodes."""

    network: Any
    links: Any
    storage: Any
    erasures: Any
    """`Network`, `SimulatedLinks`, `SimulatedStorage` and `Erasures`, which use the world."""

    def __init__(self, rng: Random, rates: FaultRates, watcher: Watcher, *, transcript: bool = False) -> None:
        super().__init__(rng, rates, watcher, transcript=transcript)
        self.times = replace(TIMES, fetch_bytes=rng.choice([1000, 1 << 20]))
        self.snapshot_bytes = rng.choice([2_000, 10_000, 100_000])
        self.segment_bytes = rng.choice([1_500, 100_000])
        self.slow_disk_ms = 3_000
        self.slowness = rng.choice([0.0, 0.002, 0.02])
        """How often a disk or a message takes long."""
        self.loss, self.doubling = rng.choice([0.0, 0.01, 0.05]), rng.choice([0.0, 0.05])
        """How often messages between nodes are lost or doubled."""
        self.level = TOMORROW - rng.choice([0, 0, 1])
        """At which the log begins.  If it is not the newest one, some nodes do not know more until they are updated."""
        self.nodes: dict[int, Any] = {}
        """`SimulatedNode`s."""
        self.former: dict[int, Any] = {}
        """Those of a quorum that was replaced."""
        self.observed: Callable[[Any, State, State], State] = lambda node, before, state: state
        """Called with a node, and the states that it had and has."""
        self.prepare: Callable[[Any], Awaitable[None]] = _nothing
        """Called with a node before it leads."""
        self.when_led: Callable[[Any], None] = lambda node: None
        """Called with a node that begins to lead."""
        self._violation = ""

    def add(self, actor: Actor) -> None:
        """A thread of a node.  It crashes with the node alone."""
        self._at(0, ("resume", actor, None))

    def happens(self, probability: float) -> bool:
        return self._chance(probability)

    @property
    def machines(self) -> dict[int, Any]:
        return {**self.former, **self.nodes}

    def others(self, node: Any) -> list[Any]:
        """The other nodes of the quorum."""
        quorum = self.former if self.is_former(node) else self.nodes
        return [other for other in quorum.values() if other is not node]

    def is_former(self, node: Any) -> bool:
        return self.former.get(node.key.id) is node

    def leader(self) -> Any | None:
        """The leader of the newest epoch."""
        leaders = [node for node in self.nodes.values() if node.leads]
        return max(leaders, key=lambda node: node.coordinator.epoch, default=None)

    def note(self, what: str) -> None:
        if self._transcript:
            self._transcript.update(f"{self.now} {what}\n".encode())

    def violate(self, what: str) -> None:
        """In a process, whose event loop must not be left by an error."""
        self._violation = self._violation or what

    def _happen(self, kind: str, actor: Actor, detail: Any) -> None:
        super()._happen(kind, actor, detail)
        if self._violation:
            raise Violation(self._violation)

    def _send(self, actor: Actor, place: int, op: Any) -> None:
        if isinstance(op, LinkOp | AskMember):
            self.links.ask(actor, op, lambda found: self._at(self._stall(), ("answer", actor, (place, found))))
        else:
            super()._send(actor, place, op)

    def close(self) -> None:
        super().close()
        for node in self.machines.values():
            if node.runs:
                node.loop.kill()
        self.links.loop.kill()
