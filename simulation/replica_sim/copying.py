"""The steps with which copies are put, read and checked.  Writers, mergers and replicators share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from simulation.log_sim.content import Row
from simulation.replica_sim.faults import DAMAGED, flicker
from simulation.replica_sim.oracle import directory_of, key_in
from simulation.replica_sim.setting import ReplicaSimulation, broker_file
from spark_log.errors import StorageUnavailable, WrongRoot
from spark_log.journal.store_operations import Get, Put, Steps
from spark_log.metadata.commits.pending_commits import LackingObject
from spark_log.metadata.records import Copy
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER
from spark_log.metadata.replicas.replicas import epoch_of, group_at, holders
from spark_log.metadata.state import State, TopicKey
from spark_log.model import ACKS_ALL, Placed, Slice
from spark_log.roots.broker_roots import BROKER_KEY

Held = dict[str, dict[int, int]]
"""By object, the brokers that have it whole, with their epochs when the put began."""


class Object(NamedTuple):
    """An object to put."""

    name: str
    group: int
    content: Any


def check_root(state: State, broker: int) -> Steps[None]:
    """Raises WrongRoot unless the root of a broker is the broker's."""
    if broker == OWN_BROKER:
        return
    found = yield Get(BROKER_KEY, 0, None, broker)
    if found != broker_file(broker, state.brokers[broker].directory):
        raise WrongRoot(f"broker {broker}")


def check_root_again(state: State, broker: int) -> Steps[None]:
    """After the puts: a disk may have been mounted or unmounted meanwhile."""
    yield from check_root(state, broker)


def is_damaged(content: Any) -> bool:
    """Whether the checksum of a run is wrong."""
    return DAMAGED in content


def is_whole(state: State, broker: int, made: Object) -> Steps[bool]:
    """Whether a root has an object with its size."""
    found = yield Get(key_in(directory_of(state, broker), made.name), 0, None, broker)
    return found is not None and len(found) == len(made.content)


def put_copies(sim: ReplicaSimulation, state: State, broker: int, objects: Iterable[Object]) -> Steps[set[str]]:
    """Put objects on a root; returns those that are there for certain."""
    done, some = set[str](), list(objects)
    try:
        yield from check_root(state, broker)
        for made in some:
            flicker(sim, broker)
            yield Put(key_in(directory_of(state, broker), made.name), (made.content,), broker)
        yield from check_root_again(state, broker)
        for made in some:
            if (yield from is_whole(state, broker, made)):
                done.add(made.name)
    except (StorageUnavailable, WrongRoot):
        return set()
    return done


def upload(sim: ReplicaSimulation, state: State, targets: Mapping[int, list[Object]], held: Held) -> Steps[None]:
    """Put objects on the roots of brokers, and note in `held` which have them.  Missed puts are tried once more."""
    order = sim.rng.sample(sorted(targets), len(targets))
    for _ in range(2):
        for broker in order:
            lacking = [made for made in targets[broker] if broker not in held.setdefault(made.name, {})]
            epoch = epoch_of(state, broker)
            if not lacking or epoch is None:
                continue
            for name in (yield from put_copies(sim, state, broker, lacking)):
                held[name][broker] = epoch


def upload_again(sim: ReplicaSimulation, state: State, brokers: Sequence[int], made: Object, held: Held) -> Steps[None]:
    """Put an object on roots that lack it, under the epochs that they have now."""
    for broker in brokers:
        known = state.brokers.get(broker)
        epoch = 0 if known is None else known.epoch
        if (yield from put_copies(sim, state, broker, [made])):
            held.setdefault(made.name, {})[broker] = epoch
            sim.oracle.seen["copied uncommitted"] += 1


def copy_pending(sim: ReplicaSimulation, state: State, lacking: Iterable[LackingObject]) -> Steps[tuple[Copy, ...]]:
    """Copy objects of pending commits to in-sync replicas that lack them; returns the copies that were made."""
    done: list[Copy] = []
    for one in lacking:
        for source, _ in one.held:
            content = yield from read_copy(sim, state, source, one.name)
            if content is not None:
                break
        else:
            continue
        for broker, epoch in one.lacking:
            current = epoch_of(state, broker) == epoch
            if current and (yield from put_copies(sim, state, broker, [Object(one.name, one.group, content)])):
                done.append(Copy(one.name, broker, epoch))
    return tuple(done)


def targets_of(state: State, objects: Iterable[Object], acks: int = ACKS_ALL) -> dict[int, list[Object]]:
    """The replicas for which a writer waits, with their objects."""
    found: dict[int, list[Object]] = {}
    for made in objects:
        group = group_at(state, made.group)
        led = acks != ACKS_ALL and group.leader != NO_LEADER
        for broker in (group.leader,) if led else (*group.isr, *group.joining):
            found.setdefault(broker, []).append(made)
    return found


def placed(objects: Iterable[Object], held: Held) -> tuple[Placed, ...]:
    """For a record: where objects are."""
    return tuple(
        Placed(made.group, tuple(sorted(held.get(made.name, {}).items())) if made.group else ()) for made in objects
    )


def read_copy(sim: ReplicaSimulation, state: State, broker: int, name: str) -> Steps[Any]:
    """The content of a copy whose checksums are right; None if it is damaged, absent or cannot be read."""
    if broker != OWN_BROKER and broker not in state.brokers:
        return None
    try:
        found = yield Get(key_in(directory_of(state, broker), name), 0, None, broker)
    except StorageUnavailable:
        return None
    return None if found is None or is_damaged(found) else found


def read_slice(
    sim: ReplicaSimulation, state: State, key: TopicKey, piece: Slice
) -> Steps[list[tuple[int, Row]] | None]:
    """The rows of a slice from the first root that has them; None if none has."""
    for broker in holders(state, state.objects[piece.object]):
        found = yield from read_copy(sim, state, broker, piece.object)
        if found is not None:
            content = found[piece.position : piece.position + piece.length]
            return [(piece.start + offset, row) for offset, row in content[0]]
        sim.oracle.seen["fallbacks"] += 1
    return None
