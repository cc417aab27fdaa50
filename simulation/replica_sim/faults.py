"""Faults of the roots of brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from simulation.log_sim.content import Row
from simulation.replica_sim.oracle import Place
from simulation.replica_sim.roots import Disk
from simulation.replica_sim.setting import ReplicaSimulation
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.roots.broker_roots import BROKER_KEY
from spark_log.store.object_names import DATA

DAMAGED = ((0, Row("damaged", 0)),)
"""A run whose checksum is wrong."""
DURATIONS = (5, 60, 400, 2500)
FLICKERS = 0.01
"""How often a mount is gone for a moment in the middle of an upload."""


def _places(disk: Disk) -> set[Place]:
    """The copies on a disk."""
    return {
        (directory, DATA + name)
        for key in disk.files
        for directory, found, name in [key.partition(f"/{DATA}")]
        if found
    }


def _replace(sim: ReplicaSimulation, broker: int, new: Disk) -> None:
    """Another disk is mounted; the one that was there is lost."""
    old = sim.roots.mounted[broker]
    sim.roots.mounted[broker] = new
    sim.oracle.spoil(place for place in _places(old) if not sim.oracle.is_intact(*place))
    sim.oracle.check()


@contextmanager
def unmounted(sim: ReplicaSimulation, broker: int, other: Disk | None = None) -> Iterator[None]:
    """An empty folder where the root was, or another disk."""
    roots, disk = sim.roots, sim.roots.mounted[broker]
    if disk in roots.away:
        yield
        return
    roots.away.append(disk)
    roots.mounted[broker] = folder = other or Disk()
    try:
        yield
    finally:
        lost = disk
        if roots.mounted[broker] is folder:
            roots.mounted[broker], lost = disk, folder
        roots.away.remove(disk)
        if BROKER_KEY in lost.files:  # in an empty folder, nobody should have put anything
            sim.oracle.spoil(place for place in _places(lost) if not sim.oracle.is_intact(*place))


def flicker(sim: ReplicaSimulation, broker: int) -> None:
    """Now and then a mount is gone for a moment."""
    if broker and sim.world.faults and not sim.roots.away and sim.rng.random() < FLICKERS:
        sim.oracle.seen["flickers"] += 1
        sim.world.start("flicker", lambda: _away(sim, broker, sim.rng.choice((4, 10, 30))), counts=False)


def _away(sim: ReplicaSimulation, broker: int, duration: int, other: Disk | None = None) -> Steps[None]:
    with unmounted(sim, broker, other):
        yield Sleep(duration)


def _backup(sim: ReplicaSimulation, broker: int, backups: dict[int, Disk]) -> Disk | None:
    """Now and then, an older copy of a broker's disk is mounted in its place, by mistake."""
    if not sim.old_disks or broker not in backups or sim.acks_rng.random() < 0.5:
        return None
    sim.oracle.seen["old disks"] += 1
    return backups[broker].copy()


@contextmanager
def _among(brokers: set[int], broker: int) -> Iterator[None]:
    brokers.add(broker)
    try:
        yield
    finally:
        brokers.discard(broker)


def faults(sim: ReplicaSimulation) -> Steps[None]:
    """One fault after another."""
    rng, backups = sim.rng, dict[int, Disk]()
    while True:
        yield Sleep(rng.choice((20, 200, 1000)))
        if not sim.world.faults:
            return
        broker, duration = rng.choice(sorted(sim.roots.mounted)), rng.choice(DURATIONS)
        if rng.random() < sim.harm:
            _harm(sim, broker, backups)
            continue
        kind = rng.choice(("down", "hangs", "unmounted"))
        sim.oracle.seen[kind] += 1
        if kind == "unmounted":
            if not sim.roots.away:
                yield from _away(sim, broker, duration, _backup(sim, broker, backups))
        else:
            with _among(sim.roots.down if kind == "down" else sim.roots.hanging, broker):
                yield Sleep(duration)


def _harm(sim: ReplicaSimulation, broker: int, backups: dict[int, Disk]) -> None:
    rng, disk = sim.rng, sim.roots.mounted[broker]
    if disk in sim.roots.away or sim.roots.away:
        return
    kind = rng.choice(("backup", "backup", "restored", "wiped", "damaged", "damaged", "lost", "lost"))
    keys = sorted(key for key in disk.files if f"/{DATA}" in key)
    if kind == "backup":
        backups[broker] = disk.copy()
    elif kind == "restored" and broker in backups:
        _replace(sim, broker, backups.pop(broker))
    elif kind == "wiped" and rng.random() < 0.3:
        _replace(sim, broker, Disk())
    elif kind in ("damaged", "lost") and keys:
        changed, key = disk.copy(), rng.choice(keys)
        if kind == "lost":
            del changed.files[key]
        else:
            changed.files[key] = tuple(DAMAGED for _ in changed.files[key])
        _replace(sim, broker, changed)
    else:
        return
    sim.oracle.seen[kind] += 1


def end_faults(sim: ReplicaSimulation) -> None:
    """From here on all roots work."""
    sim.world.end_faults()
    sim.roots.down.clear()
    sim.roots.hanging.clear()
    sim.healing = True
