"""Run one seed from its first step to the verdict."""

from __future__ import annotations

from collections import Counter
from functools import partial

from simulation.levels import TOMORROW, supporting
from simulation.log_sim import clients
from simulation.log_sim.compaction import cleaner, tailer
from simulation.log_sim.content import SegmentCodec
from simulation.log_sim.coordinators import MEMBERS, coordinator, member, operator
from simulation.log_sim.erasure import eraser, finish
from simulation.log_sim.idle import abandon
from simulation.log_sim.lost_metadata import lose_metadata
from simulation.log_sim.mirrored import MIRROR_PATCHES, add_mirrors, recover_mirrors
from simulation.log_sim.mutations import MUTATIONS
from simulation.log_sim.promises.recreated import recreator, rereader
from simulation.log_sim.put_back import lose_and_put_back
from simulation.log_sim.readers_and_maintenance import (
    bit_rot,
    consumer,
    follower,
    maintainer,
    persistent,
    query,
    read_once,
    reader,
    topics,
)
from simulation.log_sim.restored import lose_and_restore
from simulation.log_sim.setting import Simulation
from simulation.log_sim.writers import (
    application,
    batching_writer,
    handover_writer,
    late_writers,
    plain_writer,
    streaming_writer,
    transactional_writer,
)
from simulation.mutation import Patch, mutated, patched
from simulation.verdict import Result, Violation, violation_of
from spark_log.client.consumer import membership
from spark_log.groups.member_id import MemberOrigin
from spark_log.journal.store_operations import Steps

STEPS_MAX = 60_000
"""Steps with faults.  Afterwards up to eight times as many run without faults."""
APPLICATIONS_IN = (2,)
"""Last digits of the seeds in which an application writes versions, some of them twice."""
COORDINATED_IN = (6,)
"""Last digits of the seeds in which coordinators take the log over from each other and from embedded writers."""
DAMAGED_IN = (3, 8)
"""Last digits of the seeds in which checkpoints are damaged."""
QUERIES_IN = (5, 9)
"""Last digits of the seeds in which queries and a consumer contend for a group."""

RECREATED_IN = (29, 49)
"""Last two digits of the seeds in which a topic is created again and again while consumers read it."""

ORIGIN = MemberOrigin("consumer", "simulated", 1)
SAME_ORIGIN = Patch(membership, "MemberOrigin", lambda *_: ORIGIN)
"""Members of groups have the number of their process in their names, which would be another one in each run."""


def simulate(seed: int, mutation: str = "", *, transcript: bool = False) -> Result:
    """Run a seed, without one of the rules if a mutation is named."""
    with supporting(TOMORROW):
        sim = Simulation(seed, transcript=transcript)
        constants = sim.constants.patches(looks_back=sim.looks_back)
        patches = (*constants, *sim.memoized.patches(), *MIRROR_PATCHES, SAME_ORIGIN)
        with patched(patches), mutated(MUTATIONS, mutation):
            violation = violation_of(partial(_simulate, sim, seed))
            sim.world.close()
    counts = sim.oracle.seen + Counter(steps=sim.world.events, versions=sim.oracle.state.version)
    return Result(seed, violation, counts, sim.world.transcript())


def _simulate(sim: Simulation, seed: int) -> None:
    if sim.restores:
        lose_and_restore(sim)
        return
    if sim.puts_back:
        lose_and_put_back(sim)
        return
    _add_actors(sim)
    _add_actors_of_some(sim, seed)
    finished = sim.world.run(STEPS_MAX)
    sim.world.end_faults()
    if not finished and not sim.world.run(8 * STEPS_MAX):
        raise Violation("progress: writers are stuck")
    sim.world.alone(finish(sim))
    sim.world.alone(_read_all(sim))
    if sim.mirrors:
        recover_mirrors(sim)
    sim.world.alone(abandon(sim))
    sim.world.alone(lose_metadata(sim))


def _add_actors_of_some(sim: Simulation, seed: int) -> None:
    """Those that only some seeds have."""
    if seed % 10 in QUERIES_IN:
        _add_queries(sim)
    if isinstance(sim.codec, SegmentCodec):
        _add_clients(sim)
    if sim.mirrors:
        add_mirrors(sim)
    if seed % 100 in RECREATED_IN:
        _add_rereaders(sim)
    if sim.peeks:
        sim.world.start("late", persistent(partial(late_writers, sim, "late")), counts=False)
    if seed % 10 in APPLICATIONS_IN:
        sim.world.start("application", persistent(partial(application, sim, "app:etl")), counts=True)
    if seed % 10 in COORDINATED_IN:
        _add_coordinators(sim)
    if seed % 10 in DAMAGED_IN:
        sim.world.start("rot", persistent(partial(bit_rot, sim)), counts=False)


def _add_actors(sim: Simulation) -> None:
    rng, start = sim.rng, sim.world.start
    for n in range(rng.randint(1, 3)):
        start(f"plain{n}", persistent(partial(plain_writer, sim, f"w{n}")), counts=True)
    for n in range(rng.randint(0, 1)):
        start(f"grouping{n}", persistent(partial(batching_writer, sim, f"g{n}")), counts=True)
    for n in range(rng.randint(1, 2)):
        writer = persistent(partial(streaming_writer, sim, f"q{n}"))
        start(f"query{n}", writer, counts=True, leaves_zombies=True)
    for n in range(rng.choice((0, 0, 1, 3))):
        writer = persistent(partial(handover_writer, sim, "sink"))
        start(f"sink{n}", writer, counts=True, leaves_zombies=True)
    for n in range(rng.choice((0, 0, 2))):
        start(f"txn{n}", persistent(partial(transactional_writer, sim, "txn:job")), counts=True, leaves_zombies=True)
    for n in range(rng.choice((0, 1, 2))):
        start(f"consumer{n}", persistent(partial(consumer, sim, "group")), counts=False, leaves_zombies=True)
    for n in range(rng.choice((1, 1, 2, 3))):
        start(f"maintainer{n}", persistent(partial(maintainer, sim)), counts=False)
    for n in range(rng.choice((1, 1, 2))):
        start(f"reader{n}", persistent(partial(reader, sim)), counts=False)
    if rng.random() < 0.3:
        start("follower", persistent(partial(follower, sim)), counts=False)
    if sim.compacts:
        start("tailer", persistent(partial(tailer, sim)), counts=False)
        for n in range(2):
            start(f"cleaner{n}", persistent(partial(cleaner, sim)), counts=False)
    for n in range(2 if sim.erases else 0):
        start(f"eraser{n}", persistent(partial(eraser, sim)), counts=False, leaves_zombies=True)
    if rng.random() < 0.6:
        start("topics", persistent(partial(topics, sim)), counts=False)


def _add_queries(sim: Simulation) -> None:
    for n in range(2):
        actor = persistent(partial(query, sim, "group", f"token{n}"))
        sim.world.start(f"held{n}", actor, counts=False, leaves_zombies=True)
    sim.world.start("rival", persistent(partial(consumer, sim, "group")), counts=False, leaves_zombies=True)


def _add_clients(sim: Simulation) -> None:
    for n in range(sim.rng.choice((1, 2, 3))):
        sim.world.start(f"user{n}", persistent(clients.user(sim)), counts=True)
    sim.world.start("maintenance", persistent(clients.maintainer(sim)), counts=True)


def _add_rereaders(sim: Simulation) -> None:
    for n in range(2):
        sim.world.start(f"rereader{n}", persistent(partial(rereader, sim)), counts=False)
    sim.world.start("recreator", persistent(partial(recreator, sim)), counts=False)


def _add_coordinators(sim: Simulation) -> None:
    for n in range(sim.rng.choice((1, 2, 3))):
        sim.world.start(f"coordinator{n}", persistent(partial(coordinator, sim)), counts=False, leaves_zombies=True)
    for n in range(MEMBERS):
        sim.world.start(f"member{n}", persistent(partial(member, sim, n)), counts=False)
    sim.world.start("operator", persistent(partial(operator, sim)), counts=False)


def _read_all(sim: Simulation) -> Steps[None]:
    """Open the log alone and read everything."""
    view = yield from sim.load()
    if view.state != sim.oracle.state:
        raise Violation("state: the log that opens is not the log that was written")
    yield from read_once(sim, view)
