"""Simulated roots of brokers.

Operations on the root of a broker name whole keys, `<directory>/data/…` or `meta/broker.json`, and reach whatever disk
is mounted there when they take effect.  A root that is *down* fails them; a root that *hangs* does not answer, and some
of its puts and deletes take effect long after the caller gave up.  Broker 0 is the log's own root and never fails.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from simulation.log_sim.world import LATE, Actor, FaultRates, Store, Watcher, World
from spark_log.errors import StorageUnavailable
from spark_log.journal.store_operations import METADATA, OWN_ROOT, Delete, Get, List, Op, Put
from spark_log.metadata.state import State
from spark_log.store.object_names import DATA

GIVEN_UP_MS = 60
"""When the caller of an operation on a hanging root gives up."""
LANDS_LATE = 0.5
"""How often an operation on a hanging root takes effect later."""


@dataclass(slots=True, eq=False)
class Disk:
    """Files that can be mounted at the root of a broker."""

    files: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> Disk:
        """A backup of the disk."""
        return Disk(dict(self.files))


class RootWatcher(Watcher, Protocol):
    """Sees also what changes on the roots of brokers."""

    def copied(self, key: str, content: Any, files: Mapping[str, Any]) -> None: ...

    def removed(self, key: str) -> None: ...


class Roots(Store):
    """The log's own root, and those of its brokers."""

    def __init__(self, watcher: RootWatcher, rng: random.Random, listed_ms: int) -> None:
        super().__init__(watcher, rng, listed_ms)
        self._roots_watcher = watcher
        self.own = Disk(self.files[DATA])
        self.mounted: dict[int, Disk] = {}
        self.away: list[Disk] = []
        """Disks that exist and are not mounted."""
        self.down: set[int] = set()
        self.hanging: set[int] = set()

    def disks(self) -> list[Disk]:
        """All disks that exist."""
        return [self.own, *self.mounted.values(), *self.away]

    def apply(self, op: Op, now: int, decided: State | None = None) -> Any:
        root = getattr(op, "root", METADATA)
        if root in (METADATA, OWN_ROOT):
            return super().apply(op, now, decided)
        if root in self.down:
            return StorageUnavailable(f"broker {root} does not answer")
        files = self.mounted[root].files
        match op:
            case Get():
                content = files.get(op.key)
                return content if content is None else content[op.start : op.end]
            case List():
                return sorted(key for key in files if key.startswith(op.prefix))
            case Delete():
                for key in op.keys:
                    if files.pop(key, None) is not None:
                        self._roots_watcher.removed(key)
            case Put():
                assert not callable(op.chunks)
                (content,) = op.chunks
                files[op.key] = content
                self._roots_watcher.copied(op.key, content, files)
            case _:
                raise NotImplementedError(f"{type(op).__name__} on the root of a broker")
        return None


class ReplicaWorld(World):
    """The scheduler, for a log with brokers."""

    def __init__(
        self, rng: random.Random, rates: FaultRates, watcher: RootWatcher, *, transcript: bool = False
    ) -> None:
        super().__init__(rng, rates, watcher, transcript=transcript)
        self.store: Roots = Roots(watcher, rng, rates.listed_ms)

    def _send(self, actor: Actor, place: int, op: Op) -> None:
        if getattr(op, "root", METADATA) not in self.store.hanging:
            super()._send(actor, place, op)
            return
        if self.rng.random() < LANDS_LATE:
            self._at(self.rng.choice(LATE), ("effect", actor, (None, op, True, None)))
        self._at(GIVEN_UP_MS, ("answer", actor, (place, StorageUnavailable("no answer"))))
