"""Run one seed from its first step to the verdict."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

from simulation.log_sim.readers_and_maintenance import persistent
from simulation.mutation import mutated, patched
from simulation.replica_sim import maintenance, moves, writers
from simulation.replica_sim.copies import Backups, backup_job
from simulation.replica_sim.copying import read_slice
from simulation.replica_sim.faults import end_faults, faults
from simulation.replica_sim.mutations import MUTATIONS
from simulation.replica_sim.setting import ReplicaSimulation
from simulation.verdict import Result, Violation, violation_of
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.model import Slice

STEPS_MAX = 60_000
"""Steps with faults."""
HEALED_MS = 150_000
"""Within this time after the faults, all replicas are in sync."""


def simulate(seed: int, mutation: str = "", *, transcript: bool = False) -> Result:
    """Run a seed, without one of the rules if a mutation is named."""
    sim = ReplicaSimulation(seed, transcript=transcript)
    with (
        tempfile.TemporaryDirectory(prefix="pylog-sim-") as folder,
        patched(sim.patches()),
        mutated(MUTATIONS, mutation),
    ):
        violation = violation_of(partial(_simulate, sim, Path(folder)))
        sim.world.close()
    counts = sim.oracle.seen + Counter(steps=sim.world.events, versions=sim.oracle.state.version)
    return Result(seed, violation, counts, sim.world.transcript())


def _simulate(sim: ReplicaSimulation, folder: Path) -> None:
    sim.world.alone(sim.begin())
    _add_actors(sim)
    if sim.copies:
        sim.world.start("backup", partial(backup_job, sim, Backups(folder, sim.rng)), counts=False)
    sim.world.run(STEPS_MAX)
    end_faults(sim)
    sim.world.start("end", partial(_until_healed, sim), counts=True)
    if not sim.world.run(HEALED_MS):
        raise Violation(f"healed: after {HEALED_MS} ms, {sim.unhealed()}; garbage: {sim.garbage()[:3]}")
    sim.world.alone(_read_all(sim))


def _add_actors(sim: ReplicaSimulation) -> None:
    rng, start = sim.rng, sim.world.start
    for number in range(rng.choice((1, 2, 3))):
        start(f"writer{number}", persistent(partial(writers.writer, sim)), counts=True)
    for number in range(rng.choice((1, 2))):
        start(
            f"replicator{number}", persistent(partial(maintenance.replicator, sim)), counts=False, leaves_zombies=True
        )
        start(f"prober{number}", persistent(partial(maintenance.prober, sim)), counts=False, leaves_zombies=True)
        start(f"merger{number}", persistent(partial(maintenance.merger, sim)), counts=False, leaves_zombies=True)
        start(f"faults{number}", persistent(partial(faults, sim)), counts=False)
    for broker in (0, *sim.roots.mounted):
        actor = persistent(partial(maintenance.collector, sim, broker))
        start(f"broker{broker} collector", actor, counts=False, leaves_zombies=True)
    start("reader", persistent(partial(writers.reader, sim)), counts=False)
    start("keeper", persistent(partial(maintenance.keeper, sim)), counts=False)
    start("administrator", persistent(partial(maintenance.administrator, sim)), counts=False)
    if sim.moves:
        start("reassigner", persistent(partial(moves.reassigner, sim)), counts=False)
        for number in range(2):
            start(f"mover{number}", persistent(partial(moves.mover, sim)), counts=False, leaves_zombies=True)
    start("scrubber", persistent(partial(maintenance.scrubber, sim)), counts=False)


def _until_healed(sim: ReplicaSimulation) -> Steps[None]:
    while (unhealed := sim.unhealed()) or sim.garbage():
        sim.busy = bool(unhealed) and sim.busy
        yield Sleep(100)


def _read_all(sim: ReplicaSimulation) -> Steps[None]:
    """Read all records of which a root still has a copy."""
    state = sim.oracle.state
    for key, part in sorted(state.partitions.items()):
        for piece in part.entries:
            assert isinstance(piece, Slice)
            rows = yield from read_slice(sim, state, key, piece)
            if rows is not None:
                sim.oracle.check_slice(key, piece, rows)
            elif sim.oracle.survivors(state, piece.object):
                raise Violation(f"kept: {piece.object} cannot be read at the end")
            else:
                sim.oracle.seen["lost"] += 1
