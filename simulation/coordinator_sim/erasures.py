"""Erasures: each node deletes what its disk has of before one, and the leader says when nothing of it is left.

Nothing is erased: only the versions are drawn at which an erasure would have ended, behind the fence.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from simulation.coordinator_sim.world import QuorumWorld
from simulation.harness.crash_files import CrashFiles
from spark_log.metadata.state import State
from spark_log.quorum.messages import Kind
from spark_log.quorum.node.disk import Disk
from spark_log.quorum.node.log_file_sequence import log_names, snapshots_among
from spark_log.quorum.unit_format import units_of
from spark_log.server.quorum.state import parse_snapshot
from spark_log.store.object_names import SNAPSHOTS, snapshot_version

ERASED_IN = 9
"""The last digit of the seeds that draw erasures."""
GAPS_MS = (500, 2_000, 6_000)
AGAIN_MS = 100
"""Without a leader."""


class Erasures:
    """The oracle `forgotten`: once a leader has said that nothing of before an erasure is left, no disk of a node has
    it, nor would it after a power cut.
    """

    def __init__(self, world: QuorumWorld, seed: int) -> None:
        self.are_drawn = seed % 10 == ERASED_IN
        self._world, self._rng = world, Random(seed)
        self.version = 0
        """At which the last one ended."""
        self._ends: dict[int, int] = {}
        """By version: entries before this offset made it."""
        self.done = 0
        """The newest version of which a leader has said that nothing of before is left."""

    def begin(self) -> None:
        if self.are_drawn:
            self._world.call(self._rng.choice(GAPS_MS), self._draw)

    def _draw(self) -> None:
        leader = self._world.leader()
        if not self._world.faults:
            return
        if leader is None or leader.is_stopped or not leader.coordinator.state.version:
            self._world.call(AGAIN_MS, self._draw)
            return
        self.version = leader.coordinator.state.version
        self._ends[self.version] = leader.coordinator.node._applier.end
        self._world.note(f"an erasure ends at version {self.version}")
        self.begin()

    def upto(self, state: State) -> int:
        """In place of `statistics_upto`."""
        return self.version if self.version <= state.version else 0

    def ask(self, coordinator: Any) -> None:
        """Whether nothing is left, on a leader."""
        if self.version > self.done and coordinator.ask_log(lambda log: log.forget(None, self.version))[1]:
            self.done = self.version
        self.check()

    def check(self) -> None:
        for node in self._world.nodes.values():
            for when, files in (("", node.files), (" after a power cut", node.files.after_power_cut())):
                for name in self._left(files):
                    self._world.violate(f"forgotten: {node} has {name}{when}, and nothing is said to be left")
        for name in self._world.storage.list(SNAPSHOTS):
            if snapshot_version(name) < self.done:
                self._world.violate(f"forgotten: {name} is there, and nothing is said to be left")

    def _left(self, files: CrashFiles) -> Iterator[str]:
        """The files with something of before the newest erasure that is done."""
        if not self.done:
            return
        names, end = files.names(), self._ends[self.done]
        for name in log_names(names, files.path):
            if any(
                entry.kind is Kind.DATA and entry.offset < end
                for unit, _ in units_of(name, files.read(name))
                for entry in unit.entries
            ):
                yield name
        disk = Disk(files)
        for snapshot in snapshots_among(names):
            if 0 < snapshot.offset < end:
                pieces = disk.read_state(snapshot)
                if parse_snapshot(pieces, "a snapshot").state.version < self.done:
                    yield f"a snapshot of {snapshot.offset} entries"
