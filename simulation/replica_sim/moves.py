"""Actors of moves: an administrator who gives partitions other replicas, and processes that move their slices."""

from __future__ import annotations

from simulation.replica_sim.maintenance import propose, rewrite
from simulation.replica_sim.setting import ReplicaSimulation
from simulation.verdict import Violation
from spark_log.errors import InvalidRequest, NoReassignmentInProgress, SparkLogError
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.metadata.commands import Report
from spark_log.metadata.records import Moved, MovedRecord
from spark_log.metadata.replicas.reassignments import moving, objects_elsewhere
from spark_log.metadata.replicas.replica_commands import AlterReassignments, NewReplicas
from spark_log.metadata.state import TopicKey
from spark_log.model import Slice


def reassigner(sim: ReplicaSimulation) -> Steps[None]:
    """Give partitions other replicas, and cancel that now and then."""
    rng, view = sim.rng, (yield from sim.load())
    while True:
        yield Sleep(rng.choice((50, 300, 1000)))
        if sim.healing:
            continue
        view = yield from sim.refresh(view)
        key = rng.choice(sorted(view.state.partitions))
        some = rng.sample(range(sim.brokers), rng.randint(1, sim.brokers))
        replicas = None if rng.random() < 0.3 else tuple(some)
        view, reply = yield from propose(sim, view, AlterReassignments(partitions=(NewReplicas(*key, replicas),)))
        if isinstance(reply, SparkLogError) and not isinstance(reply, InvalidRequest | NoReassignmentInProgress):
            raise Violation(f"reassign: {reply}")
        sim.oracle.seen["reassigned"] += reply == 1
        sim.oracle.seen["cancelled"] += reply == 1 and replicas is None


def mover(sim: ReplicaSimulation) -> Steps[None]:
    """Rewrite slices of partitions that move, and record which moves are done."""
    view = yield from sim.load()
    while True:
        yield Sleep(sim.rng.choice((20, 300)))
        view = yield from sim.refresh(view)
        keys = moving(view.state)
        if keys:
            view = yield from _move(sim, view, sim.rng.choice(keys))


def _move(sim: ReplicaSimulation, view: View, key: TopicKey) -> Steps[View]:
    state = view.state
    entries = [entry for entry in state.partitions[key].entries if isinstance(entry, Slice)]
    names = objects_elsewhere(state, key, (entry.object for entry in entries))
    places = [at for at, entry in enumerate(entries) if entry.object in names]
    if places:
        at = sim.rng.choice(places)
        return (yield from rewrite(sim, view, key, tuple(entries[at : at + sim.rng.randint(1, 3)])))
    if sim.world.faults and sim.rng.random() < 0.5:
        yield Sleep(sim.rng.choice((50, 1000, 4000)))
    done = Moved(*key, state.reassignments[key].version, state.version)
    view, reply = yield from propose(sim, view, Report(record=MovedRecord(partitions=(done,))))
    sim.oracle.seen["moved"] += reply is True
    return view
