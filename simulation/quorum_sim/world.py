"""The world of a simulation: a clock, a network that loses, doubles and delays, and nodes that are driven by events."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

from simulation.quorum_sim.disk import Disk
from simulation.quorum_sim.node import Node
from simulation.quorum_sim.oracle import Oracle, snapshot_of
from simulation.verdict import Violation
from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import FetchRequest, FetchSnapshotRequest, Message, ReplicaKey
from spark_log.quorum.ready import Config, ReadChunk
from spark_log.quorum.voters import Voters

CHUNK = 30
"""Bytes of a chunk of a snapshot."""
KEEP_MS = 600
"""Less than a follower is away in a probe that makes the leader forget what it lacks."""
CONNECT_MS = 50
"""Until a connection that broke is replaced, if it can be."""
LAST_PART_SLOWNESS = 0.3
"""How slow the last part of a snapshot is: another replica may lead by the time at which it is durable."""
EVENTS_MAX = 30_000
"""More than any run needs: a run with more is going round in circles."""


class World:
    def __init__(self, seed: int, keeps_directory: bool = False, transcript: bool = False) -> None:
        self.rng = rng = Random(seed)
        self.when_led: Callable[[Node], None] = lambda node: None
        """Called when a node begins to lead."""
        self.now_ms = 0
        self.counts: Counter[str] = Counter()
        self.transcript: list[str] | None = [] if transcript else None
        self.keeps_directory = keeps_directory
        """A rule that was removed: a disk that was replaced has the directory id of the old one."""
        self.config = Config(
            fetch_timeout_ms=300,
            election_timeout_ms=150,
            fetch_wait_ms=80,
            high_watermark_wait_ms=5 if seed % 4 == 1 else 0,
            retry_ms=150,
            keep_ms=KEEP_MS,
            fetch_bytes=rng.choice([20, 100, 1 << 20]),
        )
        self.is_faulty = True
        self.loss, self.doubling = rng.choice([0.0, 0.01, 0.1]), rng.choice([0.0, 0.05])
        self.slowness = rng.choice([0.0, 0.01, 0.05])
        """Share of messages and of fsyncs that take long."""
        self.blocked: set[tuple[int, int]] = set()
        """Pairs of node ids: nothing of the first reaches the second."""
        self._broken: set[tuple[int, int]] = set()
        """Pairs of node ids: the first connects to the second again."""
        self.cut_off: Node | None = None
        """Nothing reaches it, and nothing leaves it."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._item = 0
        self._reads: dict[tuple[ReplicaKey, int, int], tuple[int, int]] = {}
        """By node, start and number: the high watermark that was noted, and how much was committed then."""

        voters = tuple(ReplicaKey(number, "a") for number in range(1, rng.choice([1, 2, 3, 3, 3, 4, 5, 5]) + 1))
        self.oracle = Oracle(voters)
        self.nodes: dict[int, Node] = {}
        for key in voters:
            self.add_node(key, voters)

    # ----------------------------------------------------------------------------------------------------------- events

    def at(self, after_ms: int, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + after_ms, self._count, event))

    def run(self, until_ms: int) -> None:
        """Run all events up to a time."""
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, event = heapq.heappop(self._events)
            self.counts["events"] += 1
            if self.counts["events"] > EVENTS_MAX:
                raise Violation("the replicas never rest")
            event()
        self.now_ms = until_ms

    def run_for(self, ms: int) -> None:
        self.run(self.now_ms + ms)

    def note(self, what: str) -> None:
        if self.transcript is not None:
            self.transcript.append(f"{self.now_ms} {what}")

    # ------------------------------------------------------------------------------------------------------------ nodes

    def add_node(self, key: ReplicaKey, voters: Voters) -> None:
        """A node with a new disk, in place of one with the same id."""
        node = self.nodes[key.id] = Node(Disk(key, voters), self.config)
        node.ahead_ms = self.rng.randrange(100_000)
        self.oracle.disks[key] = node.disk
        self.start(node)

    def start(self, node: Node) -> None:
        self.note(f"{node} starts")
        node.start(Random(self.rng.random()), self.now_ms)
        node.led_ms = 0
        if node.disk.snapshot.offset:
            self.oracle.restored(node, node.disk.snapshot, node.disk.snapshot_data)
        self.after_input(node)
        for other in self.nodes.values():
            if other is not node and other.machine is not None:
                self._meet(node, other)
                self._meet(other, node)

    def _meet(self, node: Node, other: Node) -> None:
        self.input(node, lambda machine, now_ms: machine.meet(other.key, now_ms))

    def crash(self, node: Node) -> None:
        self.note(f"{node} crashes")
        self.counts["crashes"] += 1
        node.crash(self.rng)

    def input(self, node: Node, act: Callable[[Machine, int], object]) -> None:
        """Give a machine an input, now or when its process is continued; nothing, if the process is gone."""
        starts = node.starts
        if node.machine is None:
            return
        if node.paused is not None:
            node.paused.append(lambda: self.input(node, act) if node.starts == starts else None)
            return
        node.clock_ms = max(node.clock_ms, self.now_ms + node.ahead_ms)
        act(node.machine, node.clock_ms)
        self.after_input(node)

    def resume(self, node: Node) -> None:
        """Continue a stopped process: what waited arrives, in any order."""
        waiting, node.paused = node.paused or [], None
        self.rng.shuffle(waiting)
        for act in waiting:
            act()
        self.input(node, Machine.tick)

    def after_input(self, node: Node) -> None:
        """Do what the machine says, and check the promises."""
        machine = node.running
        if machine.is_leader and not node.was_leader:
            node.led_ms, node.heard = node.clock_ms, {}
            self.note(f"{node} leads epoch {machine.epoch}")
            self.counts["leaders"] += 1
            self.when_led(node)
        ready = machine.ready()
        if ready.persist is not None:
            if ready.persist.truncate_to is not None or ready.restore is not None:
                self.oracle.check_log(node, node.end)
            node.disk.pending.append(ready.persist)
            self._sync(node)
        for message in ready.send:
            self.oracle.said(node, message)
            self.send(message)
        for read in ready.read:
            self.at(self.rng.randrange(20), lambda read=read: self._read(node, read))  # type: ignore[misc]
        if ready.restore is not None:
            self.counts["snapshots installed"] += 1
            node.applied = ready.restore.offset
            if ready.restore in node.disk.snapshots:  # otherwise a newer one has replaced it, and follows
                self.oracle.restored(node, ready.restore, node.disk.snapshots[ready.restore])
        self.oracle.applied(node, ready.committed)
        self.oracle.check(node, self.nodes.values())
        node.was_leader, node.end = machine.is_leader, machine.log.end
        for number in ready.confirmed:
            self._confirmed(node, number)
        self._schedule_tick(node)

    def _schedule_tick(self, node: Node) -> None:
        deadline = node.running.next_deadline()
        if deadline is None:
            return
        wake_ms = max(self.now_ms, deadline - node.ahead_ms)
        if node.wake_ms is None or wake_ms < node.wake_ms:
            node.wake_ms, starts = wake_ms, node.starts
            self.at(wake_ms - self.now_ms, lambda: self._wake(node, wake_ms, starts))

    def _wake(self, node: Node, wake_ms: int, starts: int) -> None:
        if node.wake_ms == wake_ms and node.starts == starts:
            node.wake_ms = None
            self.input(node, Machine.tick)

    # ------------------------------------------------------------------------------------------------------------- disk

    def _sync(self, node: Node) -> None:
        if node.is_syncing or not node.disk.pending:
            return
        node.is_syncing, starts = True, node.starts
        chunk = node.disk.pending[0].chunk
        slowness = LAST_PART_SLOWNESS if chunk is not None and chunk.is_last else self.slowness
        slow = self.is_faulty and self.rng.random() < slowness
        self.at(self.rng.randrange(50, 800) if slow else self.rng.randrange(1, 5), lambda: self._synced(node, starts))

    def _synced(self, node: Node, starts: int) -> None:
        if node.starts != starts or node.machine is None:
            return
        number, node.is_syncing = node.disk.sync(), False
        self._sync(node)
        self.input(node, lambda machine, now_ms: machine.persisted(number, now_ms))

    def _read(self, node: Node, read: ReadChunk) -> None:
        if node.machine is None:
            return
        data, start = node.disk.snapshots.get(read.request.snapshot), read.request.start
        self.send(read.answer(b"", None) if data is None else read.answer(data[start : start + CHUNK], len(data)))

    def take_snapshot(self, node: Node, kept: int) -> None:
        """Snapshot everything that the application has applied; that many entries of the log before it are kept."""
        log, end = node.running.log, node.applied
        if node.paused is not None or end <= log.snapshot.offset:
            return
        self.counts["snapshots"] += 1
        keep_from = max(log.start.offset, end - kept)
        snapshot = log.position_at(end)
        node.disk.take_snapshot(snapshot, snapshot_of(self.oracle.digests[end]), log.voters_at(end))
        self.input(node, lambda machine, now_ms: node.disk.drop(machine.snapshotted(end, keep_from, now_ms)))

    # ---------------------------------------------------------------------------------------------------------- network

    def send(self, message: Message) -> None:
        source, target = message.source.id, message.target.id
        if self._is_blocked(source, target) or (self.is_faulty and self.rng.random() < self.loss):
            self._break(source, target)
            return
        for _ in range(2 if self.is_faulty and self.rng.random() < self.doubling else 1):
            slow = self.is_faulty and self.rng.random() < self.slowness
            self.at(self.rng.randrange(20, 1000) if slow else self.rng.randrange(1, 6), lambda: self._deliver(message))

    def _is_blocked(self, source: int, target: int) -> bool:
        cut_off = self.cut_off is not None and self.cut_off.key.id in (source, target)
        return cut_off or (source, target) in self.blocked

    def _deliver(self, message: Message) -> None:
        source, target = message.source.id, message.target.id
        if self._is_blocked(source, target):
            self._break(source, target)
            return
        node = self.nodes[target]
        if node.machine is None and source in self.nodes:
            self.input(self.nodes[source], lambda machine, now_ms: machine.unreachable(message.target, now_ms))
        self.input(node, lambda machine, now_ms: self._step(node, machine, message, now_ms))

    def _break(self, source: int, target: int) -> None:
        """A message was lost, so the connection is: another one is made as soon as one can."""
        if (source, target) not in self._broken:
            self._broken.add((source, target))
            self.at(CONNECT_MS, lambda: self._connect_again(source, target))

    def _connect_again(self, source: int, target: int) -> None:
        if self._is_blocked(source, target):
            self.at(CONNECT_MS, lambda: self._connect_again(source, target))
            return
        self._broken.remove((source, target))
        self._meet(self.nodes[source], self.nodes[target])

    def _step(self, node: Node, machine: Machine, message: Message, now_ms: int) -> None:
        if self.transcript is not None:
            self.note(f"{message.source.id} > {node}: {message}")
        machine.step(message, now_ms)
        if isinstance(message, FetchRequest | FetchSnapshotRequest) and message.epoch == machine.epoch:
            node.heard[message.source] = now_ms

    # ---------------------------------------------------------------------------------------------------------- clients

    def append(self, node: Node, count: int = 1) -> int | None:
        """Append numbered entries on a node that leads, as far as it knows; the offset of the first."""
        found: list[int | None] = []
        items = [b"%d" % (self._item + index) for index in range(count)]
        self._item += count
        self.input(node, lambda machine, now_ms: found.append(machine.append(items, now_ms)))
        offset = found[0] if found else None
        self.note(f"append {count} at {node}: {offset}")
        return offset

    def read(self, node: Node) -> None:
        """Begin a linearizable read."""

        def begin(machine: Machine, now_ms: int) -> None:
            number = machine.confirm(now_ms)
            if number is not None:
                self._reads[node.key, node.starts, number] = machine.high_watermark, self.oracle.end

        self.input(node, begin)

    def _confirmed(self, node: Node, number: int) -> None:
        noted, committed = self._reads.pop((node.key, node.starts, number))
        self.counts["reads"] += 1
        self.oracle.require(noted >= committed, f"{node} reads up to {noted}, after {committed} were committed")
