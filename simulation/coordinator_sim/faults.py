"""Faults of nodes and networks, while clients use the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from simulation.coordinator_sim.nodes import SimulatedNode
from simulation.coordinator_sim.world import QuorumWorld
from simulation.levels import TOMORROW
from simulation.log_sim.world import WRONG_CLOCK_MS
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.voter_clocks import SILENT_MS

SKEW_MS = 500
"""Most clocks are so far from the right time, at most."""
LONG_MS = (200, 1500, 2200, 4000)
WATCH_MS = 3_000
"""How long to wait for a leader that has batches under way."""


class Faults:
    """Until `heal`."""

    def __init__(self, world: QuorumWorld) -> None:
        self.world, self.rng = world, world.rng
        kinds: list[Callable[[], None]] = [
            self._crash,
            self._crash_all,
            self._terminate,
            self._stop,
            self._isolate,
            self._cut_one_way,
            self._hide,
            self._fill,
            self._slow,
            self._clock,
            self._hand_over,
            self._update,
            self._replace,
            self._catch,
        ]
        self._kinds = {kind: self.rng.choice([0, 1, 1, 3]) for kind in kinds}
        self._kinds[self._crash] += 1
        self._kinds[self._catch] += 2
        self._gap_ms = self.rng.choice([300, 1000, 3000])
        self.counts = Counter[str]()
        self._wrong_until = 0
        """The last moment at which a clock was wrong by years."""
        self._again()

    def heal(self) -> None:
        """No more faults; what is broken is repaired."""
        world = self.world
        world.network.blocked.clear()
        world.network.hidden.clear()
        for node in world.nodes.values():
            node.files.is_full = node.is_slow = False
            node.resume()
            if node.is_ready and not node.runs:
                node.start()

    def _again(self) -> None:
        self.world.call(self.rng.randrange(1, 2 * self._gap_ms), self._fault)

    def _fault(self) -> None:
        if not self.world.faults:
            return
        if any(abs(node.skew_ms) > SKEW_MS for node in self.world.nodes.values()):
            self._wrong_until = self.world.now
        kind = self.rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        name = kind.__name__.strip("_")
        self.counts[name] += 1
        self.world.note(name)
        kind()
        self._again()

    def _later(self, act: Callable[[], None], after: Iterable[int] = LONG_MS) -> None:
        """The end of a fault."""
        self.world.call(self.rng.choice(tuple(after)), act)

    def _any(self) -> SimulatedNode:
        """More often the leader."""
        leader = self.world.leader()
        if leader is not None and self.rng.random() < 0.6:
            return leader
        return self.rng.choice([*self.world.nodes.values()])

    # -------------------------------------------------------------------------------------------------------- processes

    def _crash(self, node: SimulatedNode | None = None) -> None:
        node = node or self._any()
        if node.runs:
            node.crash()
            self._later(lambda: self._restart(node), (1, 100, 1500, 4000))

    def _crash_all(self) -> None:
        for node in self.world.nodes.values():
            self._crash(node)

    def _terminate(self) -> None:
        node = self._any()
        if node.runs and not node.is_stopped:
            node.terminate()
            self._later(lambda: self._restart(node), (3000, 6000))

    def _restart(self, node: SimulatedNode) -> None:
        if self.world.nodes.get(node.key.id) is not node:
            return
        if not node.runs:
            node.start()
        elif node.is_ending:
            self.world.call(1_000, lambda: self._restart(node))

    def _stop(self, node: SimulatedNode | None = None) -> None:
        node = node or self._any()
        if node.runs and not node.is_stopped:
            node.stop()
            self._later(node.resume)

    def _catch(self) -> None:
        """Isolate, stop or kill a leader whose batches are under way."""
        self._watch(self.world.now + WATCH_MS, self.rng.choice((self._isolate, self._stop, self._crash)))

    def _watch(self, until: int, act: Callable[[SimulatedNode], None]) -> None:
        leader = self.world.leader()
        if leader is not None and leader.decides:
            act(leader)
        elif self.world.now < until and self.world.faults:
            self.world.call(2, lambda: self._watch(until, act))

    # --------------------------------------------------------------------------------------------------------- networks

    def _block(self, pairs: Iterable[tuple[int, int]]) -> None:
        blocked = set(pairs) - self.world.network.blocked
        self.world.network.blocked |= blocked
        self._later(lambda: self.world.network.blocked.difference_update(blocked))

    def _isolate(self, node: SimulatedNode | None = None) -> None:
        """One node, which clients may still reach."""
        one, ids = (node or self._any()).key.id, list(self.world.nodes)
        self._block((a, b) for a in ids for b in ids if (a == one) != (b == one))

    def _cut_one_way(self) -> None:
        one, ids = self._any().key.id, list(self.world.nodes)
        is_heard = self.rng.random() < 0.5
        others = [other for other in ids if other != one and self.rng.random() < 0.8]
        self._block((one, other) if is_heard else (other, one) for other in others)

    def _hide(self) -> None:
        one = self._any().key.id
        self.world.network.hidden.add(one)
        self._later(lambda: self.world.network.hidden.discard(one))

    # ------------------------------------------------------------------------------------------------- disks and clocks

    def _fill(self) -> None:
        node = self._any()
        node.files.is_full = True
        self._later(lambda: setattr(node.files, "is_full", False))

    def _slow(self) -> None:
        node = self._any()
        node.is_slow = True
        self._later(lambda: setattr(node, "is_slow", False))

    def _clock(self) -> None:
        """One of three or more may be wrong by years, and another one when all have heard that this one is right."""
        nodes = [*self.world.nodes.values()]
        node = self.rng.choice(nodes)
        node.skew_ms = self.rng.randint(-SKEW_MS, SKEW_MS)
        if len(nodes) > 2 and self.world.now > self._wrong_until + 2 * SILENT_MS and self.rng.random() < 0.3:
            node.skew_ms = self.rng.choice((-WRONG_CLOCK_MS, WRONG_CLOCK_MS))

    # -------------------------------------------------------------------------------------------------------- operators

    def _hand_over(self) -> None:
        leader = self.world.leader()
        if leader is not None:
            leader.ask(leader.coordinator.node.hand_over)

    def _update(self) -> None:
        """A node gets the newest pylog."""
        node, newest = self._any(), TOMORROW
        if node.runs and not node.is_stopped and node.level < newest:
            node.level = newest
            node.crash()
            node.start()

    def _replace(self) -> None:
        """The disk of a follower is lost: its directory leaves the voters, and a new one joins."""
        leader = self.world.leader()
        if leader is None or len(self.world.nodes) < 3 or any(not node.runs for node in self.world.nodes.values()):
            return
        lost = self.rng.choice([node for node in self.world.nodes.values() if node is not leader])
        if set(leader.voters) != {node.key for node in self.world.nodes.values()}:
            self._repair_often()
            return
        lost.crash()
        key = ReplicaKey(lost.key.id, chr(ord(lost.key.directory) + 1))
        self.world.nodes[key.id] = SimulatedNode(self.world, key, ())
        self.world.nodes[key.id].start()
        self._later(self._repair_often, (500, 2000))

    def _repair_often(self) -> None:
        if self.repair():
            self._later(self._repair_often, (300, 1000))

    def repair(self) -> bool:
        """Remove a voter whose disk is gone, then add the one that took its place.  False: there is nothing to do."""
        leader = self.world.leader()
        if leader is None:
            return False
        node, there = leader.coordinator.node, {node.key for node in self.world.nodes.values()}
        gone, missing = sorted(set(leader.voters) - there), sorted(there - set(leader.voters))
        if gone:
            leader.input(lambda: node.remove_voter(gone[0]))
        elif missing:
            leader.input(lambda: node.add_voter(missing[0]))
        return bool(gone or missing)
