"""Faults, while clients append and operators change the voters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simulation.quorum_sim.node import Node
from simulation.quorum_sim.world import World
from spark_log.quorum.leading import VoterChange
from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.replica_log import ReplicaLog
from spark_log.quorum.voters import Voters

NODES_MAX = 5


class Faults:
    """Clients, operators and faults, until `stop`."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self._is_over = False
        self._gone: set[ReplicaKey] = set()
        """Replicas whose disks were replaced."""
        kinds: list[Callable[[], None]] = [
            self._crash,
            self._pause,
            self._isolate,
            self._cut_one_way,
            self._split,
            self._jump,
            self._snapshot,
            self._hand_over,
            self._change_voters,
            self._replace_disk,
        ]
        self._kinds = {kind: self.rng.choice([0, 1, 1, 3]) for kind in kinds}
        self._kinds[self._snapshot] += 1
        self._kinds[self._change_voters] *= 2
        self._gap_ms = self.rng.choice([60, 150, 300, 600])
        self._client_gap_ms = self.rng.choice([15, 40, 100, 300])
        self._eagerness = self.rng.choice([0.0, 0.5, 1.0])
        """How often an operator changes the voters as soon as a replica leads."""
        world.when_led = self._led
        world.at(self.rng.randrange(1000), self._client)
        world.at(self.rng.randrange(1000), self._fault)

    def stop(self) -> None:
        """Begin nothing more; faults that have begun still end."""
        self._is_over = True

    def _again(self, gap_ms: int, act: Callable[[], None]) -> None:
        self.world.at(self.rng.randrange(1, 2 * gap_ms), lambda: None if self._is_over else act())

    def _nodes(self, running: bool = True) -> list[Node]:
        return [node for _, node in sorted(self.world.nodes.items()) if (node.machine is not None) == running]

    def _client(self) -> None:
        leaders = [node for node in self._nodes() if node.leads and node.paused is None]
        if leaders:
            node = self.rng.choice(leaders)
            if self.rng.random() < 0.5:
                self.world.read(node)
            if self.world.append(node, self.rng.randint(1, 3)) is not None:
                self.world.counts["appends"] += 1
        self._again(self._client_gap_ms, self._client)

    def _fault(self) -> None:
        kinds = list(self._kinds)
        kind = self.rng.choices(kinds, list(self._kinds.values()))[0]
        self.world.counts[kind.__name__.strip("_")] += 1
        kind()
        self._again(self._gap_ms, self._fault)

    # ----------------------------------------------------------------------------------------------------------- faults

    def _crash(self) -> None:
        nodes = self._nodes()
        if not nodes:
            return
        node = self.rng.choice(nodes)
        self.world.crash(node)
        self.world.at(self.rng.choice([1, 100, 1500]), lambda: self._restart(node))

    def _restart(self, node: Node) -> None:
        if node.machine is None and self.world.nodes[node.key.id] is node and not self._is_over:
            self.world.start(node)

    def _pause(self) -> None:
        nodes = [node for node in self._nodes() if node.paused is None]
        if nodes:
            node = self.rng.choice(nodes)
            waiting = node.paused = []
            self.world.at(
                self.rng.choice([50, 300, 1500]), lambda: self.world.resume(node) if node.paused is waiting else None
            )

    def _block(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Nothing passes, for a time."""
        blocked = set(pairs) - self.world.blocked
        self.world.blocked |= blocked
        self.world.at(self.rng.choice([100, 500, 1500]), lambda: self.world.blocked.difference_update(blocked))

    def _isolate(self) -> None:
        """One node, more often one that leads."""
        ids = sorted(self.world.nodes)
        leading = [node.key.id for node in self._nodes() if node.leads]
        one = self.rng.choice(leading or ids) if self.rng.random() < 0.5 else self.rng.choice(ids)
        self._block_around(one)

    def _block_around(self, one: int) -> None:
        ids = sorted(self.world.nodes)
        self._block((a, b) for a in ids for b in ids if (a == one) != (b == one))

    def _cut_one_way(self) -> None:
        ids = sorted(self.world.nodes)
        one = self.rng.choice(ids)
        others = [number for number in ids if self.rng.random() < 0.7]
        self._block([(one, other) if self.rng.random() < 0.5 else (other, one) for other in others])

    def _split(self) -> None:
        ids = sorted(self.world.nodes)
        side = {number for number in ids if self.rng.random() < 0.5}
        self._block((a, b) for a in ids for b in ids if (a in side) != (b in side))

    def _jump(self) -> None:
        """A clock moves forward: the machine of a node was suspended."""
        node = self.rng.choice([*self.world.nodes.values()])
        node.ahead_ms += self.rng.choice([50, 200, 1500])

    def _snapshot(self) -> None:
        nodes = self._nodes()
        if nodes:
            self.world.take_snapshot(self.rng.choice(nodes), self.rng.choice([0, 0, 3, 30]))

    # -------------------------------------------------------------------------------------------------------- operators

    def _leader(self) -> Node | None:
        leaders = [node for node in self._nodes() if node.leads and node.paused is None]
        return self.rng.choice(leaders) if leaders else None

    def _hand_over(self) -> None:
        leader = self._leader()
        if leader is not None:
            self.world.input(leader, lambda machine, now_ms: machine.hand_over(now_ms))

    def _change_voters(self) -> None:
        """Change the voters of a replica that leads."""
        leader = self._leader()
        if leader is not None:
            self._change_voters_of(leader)

    def _led(self, node: Node) -> None:
        if not self._is_over and self.rng.random() < self._eagerness:
            self.world.at(self.rng.randrange(4), lambda: self._change_voters_of(node))

    def _change_voters_of(self, leader: Node) -> None:
        """Remove a replica whose disk is gone first; else remove or add one."""
        if not leader.leads or leader.paused is not None:
            return
        voters = leader.running.voters
        gone = sorted(self._gone & set(voters))
        if gone:
            self._remove(leader, gone[0])
        elif len(voters) > 1 and self.rng.random() < 0.4:
            self._remove(leader, self.rng.choice([voter for voter in voters if voter != leader.key]))
        else:
            self._add(leader)

    def _remove(self, leader: Node, voter: ReplicaKey) -> None:
        def remove(machine: Machine, now_ms: int) -> None:
            self._changed(leader, machine.remove_voter(voter, now_ms), "removed")

        self.world.input(leader, remove)

    def _add(self, leader: Node) -> None:
        """A replica that is not a voter yet; most often it has to be made first, and is added later."""
        voters = leader.running.voters
        ids = [voter.id for voter in voters]
        others = [node for number, node in sorted(self.world.nodes.items()) if number not in ids]
        if not others and len(self.world.nodes) < NODES_MAX:
            self.world.add_node(ReplicaKey(len(self.world.nodes) + 1, "a"), ())
        elif others:
            key = self.rng.choice(others).key

            def add(machine: Machine, now_ms: int) -> None:
                answer = machine.add_voter(key, now_ms)
                if answer is VoterChange.NONE:
                    self.world.oracle.added(leader, key)
                self._changed(leader, answer, "added")

            self.world.input(leader, add)

    def _changed(self, leader: Node, answer: VoterChange, what: str) -> None:
        """Sometimes the leader is cut off before the change is committed."""
        self.world.counts[what if answer is VoterChange.NONE else f"not {what}"] += 1
        if answer is VoterChange.NONE:
            self.world.oracle.changed(leader, self.world.nodes.values())
            if self.rng.random() < 0.3:
                self._block_around(leader.key.id)

    def _replace_disk(self) -> None:
        """Replace the disk of a node, if a majority of each set of voters that may be in force keeps its disks."""
        node = self.rng.choice([*self.world.nodes.values()])
        if any(not self._may_lose(voters, node.key) for voters in self._sets_of_voters()):
            return
        self.world.counts["disks replaced"] += 1
        self._gone.add(node.key)
        if node.machine is not None:
            self.world.crash(node)
        directory = node.key.directory if self.world.keeps_directory else chr(ord(node.key.directory) + 1)
        self.world.add_node(ReplicaKey(node.key.id, directory), ())

    def _may_lose(self, voters: Voters, key: ReplicaKey) -> bool:
        return key not in voters or len({*self._gone, key} & set(voters)) <= (len(voters) - 1) // 2

    def _sets_of_voters(self) -> Iterable[Voters]:
        yield self.world.oracle.voters
        for node in self.world.nodes.values():
            disk = node.disk
            yield ReplicaLog.restore(disk.snapshot, disk.voters, disk.log).voters
            if node.machine is not None:
                yield node.machine.voters
