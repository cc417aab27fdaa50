"""A node of the simulation: a disk, a process that runs a machine or does not, and a clock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from simulation.quorum_sim.disk import Disk
from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.ready import Config


class Node:
    """A replica, as the world and the oracle see it.  `world.py` drives it."""

    def __init__(self, disk: Disk, config: Config) -> None:
        self.disk, self.config = disk, config
        self.machine: Machine | None = None
        self.starts = 0
        """How often its process was started: a report of a disk for an earlier process is void."""
        self.ahead_ms = 0
        """Its clock is ahead of the world's."""
        self.clock_ms = 0
        """At its last input."""
        self.paused: list[Callable[[], None]] | None = None
        """SIGSTOP: inputs wait here."""
        self.wake_ms: int | None = None
        """When the world calls `tick`."""
        self.is_syncing = False

        self.applied = 0
        """Offset of the next entry for the application."""
        self.high_watermark = 0
        self.was_leader = False
        self.end = 0
        """The end of its log."""
        self.led_ms = 0
        """Since when it leads, by its clock."""
        self.heard: dict[ReplicaKey, int] = {}
        """When fetches arrived, by its clock."""

    @property
    def key(self) -> ReplicaKey:
        return self.disk.key

    @property
    def running(self) -> Machine:
        assert self.machine is not None
        return self.machine

    @property
    def leads(self) -> bool:
        return self.machine is not None and self.machine.is_leader

    def start(self, rng: Random, now_ms: int) -> None:
        """Load the snapshot, and make a machine of what the disk has."""
        self.starts += 1
        self.clock_ms = now_ms + self.ahead_ms
        self.machine = Machine(self.key, self.disk.restored(), self.config, rng, self.clock_ms)
        self.applied = self.disk.snapshot.offset
        self.high_watermark, self.was_leader, self.wake_ms = 0, False, None

    def crash(self, rng: Random) -> None:
        """Lose everything that is not durable."""
        self.machine, self.paused, self.is_syncing = None, None, False
        self.disk.crash(rng)

    def __str__(self) -> str:
        return f"{self.key.id}{self.key.directory}"
