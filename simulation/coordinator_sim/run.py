"""Run one seed from its first step to the verdict."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from simulation.coordinator_sim.adoption import AdoptionSimulation
from simulation.coordinator_sim.faults import Faults
from simulation.coordinator_sim.members import member
from simulation.coordinator_sim.mutations import MUTATIONS
from simulation.coordinator_sim.probes import PROBES
from simulation.coordinator_sim.setting import QuorumSimulation
from simulation.coordinator_sim.tasks import task
from simulation.levels import TOMORROW, supporting
from simulation.log_sim.blocking import SIMULATED
from simulation.log_sim.lost_metadata import lose_metadata
from simulation.log_sim.readers_and_maintenance import (
    DUTIES,
    Collecting,
    consumer,
    maintain,
    persistent,
    read_once,
    reader,
    topics,
)
from simulation.log_sim.writers import plain_writer, streaming_writer, transactional_writer
from simulation.mutation import Patch, mutated, patched
from simulation.verdict import Result, Violation, violation_of
from spark_log.journal import served_log
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.server.quorum import commands as quorum_commands
from spark_log.server.quorum import forgetting as quorum_forgetting
from spark_log.server.quorum import state as quorum_state
from spark_log.server.quorum import take_over as quorum_take_over

FAULTS_MS = 15_000
CALM_MS = 60_000
"""For elections and downloads after the faults, and for each look at the end."""
WRITERS_MS = 180_000
"""For the rest of the writers' work after the faults: some pause for 3 s after almost each of their batches."""
ADOPTED_IN = 7
"""The last digit of the seeds in which the log begins on the storage, and a quorum adopts it."""
logger = logging.getLogger("spark_log")


def simulate(seed: int, mutation: str = "", *, transcript: bool = False) -> Result:
    """Run a seed, without one of the rules if a mutation is named."""
    with _quiet() as errors, supporting(TOMORROW):
        kind = AdoptionSimulation if seed % 10 == ADOPTED_IN else QuorumSimulation
        sim = kind(seed, transcript=transcript)
        patches = (
            *sim.memoized.patches(),
            *(Patch(module, "decode_batch", sim.memoized.decode_batch) for module in (served_log, quorum_state)),
            *(Patch(module, "replay", sim.memoized.replay) for module in (served_log, quorum_state)),
            Patch(quorum_state, "folded", sim.memoized.folded),
            Patch(quorum_state, "state_digest", sim.memoized.digest),
            Patch(quorum_commands, "end_version", sim.memoized.end_version),
            Patch(quorum_take_over, "bootstrap_records", sim.bootstrap_records),
            Patch(quorum_forgetting, "statistics_upto", sim.world.erasures.upto),
        )
        with patched((*sim.constants.patches(), *patches)), mutated(MUTATIONS, mutation):
            faults = Faults(sim.world)
            violation = violation_of(partial(_simulate, sim, faults))
            sim.world.close()
    running = [node for node in sim.world.nodes.values() if node.runs and node.has_begun]
    compared = sum(bool(node.coordinator.node.digests.compared) for node in running)
    counts = (
        sim.oracle.seen
        + Counter(compared=compared)
        + faults.counts
        + Counter(steps=sim.world.events, versions=sim.oracle.state.version)
    )
    return Result(seed, f"error: {errors[0]}" if errors else violation, counts, sim.world.transcript())


def _simulate(sim: QuorumSimulation, faults: Faults) -> None:
    _add_actors(sim)
    sim.world.erasures.begin()
    finished = sim.world.run(FAULTS_MS)
    sim.world.end_faults()
    faults.heal()
    if not finished and not sim.world.run(WRITERS_MS):
        raise Violation("progress: writers are stuck")
    for probe in PROBES:
        sim.world.start(probe.__name__, partial(probe, sim), counts=True)
        if not sim.world.run(CALM_MS):
            raise Violation(f"progress: the probe {probe.__name__} does not end")
    sim.world.start("last", persistent(partial(_last, sim)), counts=True)
    if not sim.world.run(CALM_MS):
        raise Violation("progress: the log cannot be read, or nodes do not catch up")
    if sim.world.erasures.version:
        sim.world.start("erasure", partial(_erasure, sim, faults), counts=True)
        if not sim.world.run(CALM_MS):
            raise Violation("progress: an erasure does not end")
    sim.world.alone(lose_metadata(sim))


def _add_actors(sim: QuorumSimulation) -> None:
    rng, start = sim.rng, sim.world.start
    kind = rng.randrange(3)
    for n in range(2 if kind == 0 else rng.choice((0, 1))):
        start(f"plain{n}", sim.lasting(partial(plain_writer, sim, f"w{n}")), counts=True)
    if kind == 1:
        start("query0", sim.lasting(partial(streaming_writer, sim, "q0")), counts=True, leaves_zombies=True)
    for n in range(2 if kind == 2 else 0):
        start(f"txn{n}", sim.lasting(partial(transactional_writer, sim, "txn:job")), counts=True, leaves_zombies=True)
    for n in range(rng.choice((0, 0, 1, 2))):
        start(f"consumer{n}", sim.lasting(partial(consumer, sim, "group")), counts=False, leaves_zombies=True)
    start("reader0", sim.lasting(partial(rng.choice((reader, follower)), sim)), counts=False)
    for n in range(rng.choice((0, 0, 1, 2))):
        start(f"maintainer{n}", sim.lasting(partial(maintain, sim, (*DUTIES, Collecting().collect))), counts=False)
    for n in range(rng.choice((0, 2, 3))):
        start(f"member{n}", sim.when_served(persistent(partial(member, sim))), counts=False)
    for n in range(rng.choice((0, 3))):
        start(f"task{n}", sim.when_served(persistent(partial(task, sim))), counts=False)
    start("topics", sim.lasting(partial(topics, sim)), counts=False)
    sim.add_operators()


def follower(sim: QuorumSimulation) -> Steps[None]:
    """Looks, as a reader that waits does; any node may answer."""
    view = yield from sim.load()
    while True:
        yield Sleep(sim.rng.choice((20, 200)))
        view = yield from sim.look(view)


def _last(sim: QuorumSimulation) -> Steps[None]:
    """Everything is there once, and all nodes have the same."""
    view = yield from sim.load()
    yield from read_once(sim, view)
    while any(node.seen.version < view.state.version for node in sim.world.nodes.values()):
        yield Sleep(100)


def _erasure(sim: QuorumSimulation, faults: Faults) -> Steps[None]:
    """Nothing is left of before the last one, and no node gets it again.  An operator removes voters that are lost."""
    erasures = sim.world.erasures
    while erasures.done < erasures.version:
        faults.repair()
        yield Sleep(1_000)
    sim.oracle.seen["erasures"] += 1
    erasures.check()


class _Errors(logging.Handler):
    """Errors of which the product only says that they happened.

    Other threads of the process are not simulated, such as one that an earlier test left.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread and record.threadName != SIMULATED:
            return
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Log nothing; give the errors with tracebacks, whatever level the process logs."""
    handler, propagates, level = _Errors(), logger.propagate, logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
