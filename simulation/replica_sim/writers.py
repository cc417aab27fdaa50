"""Actors that write and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace as with_values

from simulation.log_sim.content import Row, whole_run
from simulation.replica_sim.copying import (
    Held,
    Object,
    copy_pending,
    placed,
    read_copy,
    read_slice,
    targets_of,
    upload,
    upload_again,
)
from simulation.replica_sim.oracle import directory_of
from simulation.replica_sim.setting import ReplicaSimulation
from simulation.verdict import Violation
from spark_log.errors import (
    ClockSkewed,
    DataLoss,
    LeaderNotAvailable,
    NotEnoughReplicas,
    OutOfOrderSequence,
    StorageUnavailable,
    UnknownProducerId,
    UploadFenced,
)
from spark_log.journal.context import Proposal
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.metadata.commands import Append
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.records import CommitRecord, GroupCommit, OffsetEntry
from spark_log.metadata.replicas.replica_commands import AddPendingCopies
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import copies_of, group_number, keeps
from spark_log.metadata.state import State, TopicKey
from spark_log.model import ACKS_ALL, ACKS_LEADER, DataObject, Run, Slice
from spark_log.store.object_names import data_key

COMMIT_TRIES = 8


@dataclass(slots=True)
class Upload:
    """The puts of a writer."""

    objects: list[Object]
    held: Held
    commit: CommitRecord

    def record(self) -> CommitRecord:
        """The commit, with the copies that are known."""
        return with_values(self.commit, placed=placed(self.objects, self.held))


def writer(sim: ReplicaSimulation) -> Steps[None]:
    """Upload and commit, with a view that may be old."""
    view, left = (yield from sim.load()), sim.rng.randint(6, 20)
    while left:
        if sim.rng.random() < 0.4:
            view = yield from sim.refresh(view)
        made = yield from _upload(sim, view.state)
        if sim.world.faults and sim.rng.random() < 0.15:
            yield Sleep(sim.rng.choice((50, 400, sim.age + 200)))
        view = yield from _commit(sim, view, made)
        left -= 1
        view = yield from sim.run_maintenance(view)
        yield from sim.pause()


def _upload(sim: ReplicaSimulation, state: State) -> Steps[Upload]:
    """One object for each group of some partitions, on all replicas for which a writer waits."""
    rng, payload = sim.rng, sim.fresh("p")
    keys = sorted(state.partitions)
    chosen = [key for key in keys if rng.random() < 0.4] or [rng.choice(keys)]
    groups: dict[int, list[TopicKey]] = {}
    for key in chosen:
        groups.setdefault(group_number(state, key), []).append(key)
    objects, named, slices, number = list[Object](), list[DataObject](), list[tuple[int, Run]](), 0
    for group, some in sorted(groups.items()):
        rows = [tuple(Row(payload, number := number + 1) for _ in range(rng.randint(1, 2))) for _ in some]
        encoded = sim.codec.encode([whole_run(key, part) for key, part in zip(some, rows, strict=True)])
        name = data_key(state.version, f"{sim.context.unique()}.seg")
        slices += [(len(named), run) for run in encoded.runs]
        named.append(DataObject(name, encoded.size, encoded.index_position))
        objects.append(Object(name, group, encoded.chunks[0]))
    held: Held = {}
    acks = ACKS_LEADER if sim.acks_rng.random() < sim.leader_share else ACKS_ALL
    yield from upload(sim, state, targets_of(state, objects, acks), held)
    commit = CommitRecord(
        producer=payload,
        sequence=0,
        birth=state.version,
        upload_epoch=state.version,
        objects=tuple(named),
        slices=tuple(slices),
        acks=acks,
        groups=_positions(keys[0], payload) if sim.copies and acks == ACKS_ALL else (),
    )
    return Upload(objects, held, commit)


def _positions(key: TopicKey, payload: str) -> tuple[GroupCommit, ...]:
    """A group that has a position if the commit is in the log, as one that a transaction names."""
    return (GroupCommit(payload, -1, (OffsetEntry(*key, 0),)),)


def _commit(sim: ReplicaSimulation, view: View, made: Upload) -> Steps[View]:
    """Try to commit, as a client does until its delivery timeout; between the tries, copy what is lacking."""
    if not all(made.held.get(one.name) for one in made.objects):
        sim.oracle.seen["upload failed"] += 1
        return view
    unsure = False
    for _ in range(COMMIT_TRIES):
        commit = made.record()
        proposal = Proposal(Append(commit=commit))
        try:
            view = yield from sim.propose(view, [proposal])
        except (StorageUnavailable, ClockSkewed):
            unsure = True
            continue
        match proposal.error:
            case None:
                view = yield from _await_visible(sim, view, commit, proposal.reply)
                if sim.rng.random() < 0.1:
                    yield from _repeat(sim, view, made)
                return view
            case NotEnoughReplicas() as error:
                sim.oracle.seen["not enough"] += 1
                yield from _copy_lacking(sim, view.state, made, error.lacking)
                yield Sleep(sim.rng.choice((5, 50, 300)))
            case LeaderNotAvailable():
                sim.oracle.seen["no leader"] += 1
                yield Sleep(sim.rng.choice((50, 300)))
            case UploadFenced() | UnknownProducerId() | OutOfOrderSequence() | DataLoss():
                sim.oracle.seen["fenced"] += 1
                if not unsure and isinstance(proposal.error, UploadFenced):
                    sim.oracle.refuse(commit)
                return view
            case error:
                raise Violation(f"progress: {type(error).__name__}: {error}")
    sim.oracle.seen["given up"] += 1
    return view


def _await_visible(sim: ReplicaSimulation, view: View, commit: CommitRecord, reply: Committed) -> Steps[View]:
    """With acks=all copy what is pending before the commit, until readers see it; else perhaps what it lacks."""
    if commit.acks != ACKS_ALL:
        sim.oracle.seen["acks=1"] += 1
    for _ in range(COMMIT_TRIES):
        if commit.acks != ACKS_ALL or not reply.pending:
            sim.oracle.ack(commit, reply)
        if not reply.pending or (commit.acks != ACKS_ALL and sim.acks_rng.random() < 0.5):
            return view
        sim.oracle.seen["pending"] += 1
        made = yield from copy_pending(sim, view.state, reply.lacking)
        yield Sleep(sim.acks_rng.choice((1, 50, 300)))
        asked = [Proposal(AddPendingCopies(copies=made)), again := Proposal(Append(commit=commit))]
        try:
            view = yield from sim.propose(view, asked)
        except (StorageUnavailable, ClockSkewed):
            continue
        if again.error is not None:
            if isinstance(again.error, UnknownProducerId | UploadFenced | DataLoss) or _is_lost(sim, commit):
                return view
            raise Violation(f"repeat: {type(again.error).__name__}: {again.error}")
        reply = again.reply
    sim.oracle.seen["not visible in time"] += 1
    return view


def _repeat(sim: ReplicaSimulation, view: View, made: Upload) -> Steps[None]:
    """Send a commit again, whatever has become of its replicas."""
    again = Proposal(Append(commit=made.record()))
    try:
        yield from sim.propose(view, [again])
    except (StorageUnavailable, ClockSkewed):
        return
    if again.error is None:
        if made.commit.acks != ACKS_ALL or not again.reply.pending:
            sim.oracle.ack(made.commit, again.reply)
    elif not (isinstance(again.error, UnknownProducerId | UploadFenced | DataLoss) or _is_lost(sim, made.commit)):
        raise Violation(f"repeat: {type(again.error).__name__}: {again.error}")


def _is_lost(sim: ReplicaSimulation, commit: CommitRecord) -> bool:
    """Whether a commit was in the log, and is not any more: its objects cannot be committed again."""
    return any(made.name in sim.oracle.state.dropped for made in commit.objects)


def _copy_lacking(
    sim: ReplicaSimulation, state: State, made: Upload, lacking: Mapping[str, Sequence[int]]
) -> Steps[None]:
    """Copy objects from root to root, before they are in the log."""
    objects = {one.name: one for one in made.objects}
    for name, brokers in sorted(lacking.items()):
        content = None
        for source in sorted(made.held[name]):
            if content is None:
                content = yield from read_copy(sim, state, source, name)
        if content is not None:
            found = objects[name]._replace(content=content)
            yield from upload_again(sim, state, brokers, found, made.held)


def reader(sim: ReplicaSimulation) -> Steps[None]:
    """Plan at one version, keep the plan for a while, then read all of it, from whatever root has it."""
    while True:
        start = sim.now
        state = (yield from sim.load()).state
        yield Sleep(sim.rng.choice((1, 200, sim.grace // 2)))
        for key, part in sorted(state.partitions.items()):
            for piece in part.entries:
                assert isinstance(piece, Slice)
                rows = yield from read_slice(sim, state, key, piece)
                if rows is not None:
                    sim.oracle.check_slice(key, piece, rows)
                    sim.oracle.seen["reads"] += 1
                elif sim.now < start + sim.grace:
                    _check_kept(sim, state, piece.object)
        yield Sleep(sim.rng.choice((20, 500)))


def _check_kept(sim: ReplicaSimulation, state: State, name: str) -> None:
    """No copy that a reader has planned with may have been deleted, unless it is old: the product plans again."""
    sim.oracle.seen["unread"] += 1
    known = copies_of(state, state.objects[name])
    holders = () if known is None else known.brokers
    brokers = (OWN_BROKER, *sorted(state.brokers))
    kept = [one for one in brokers if one in holders or keeps(state, one, name)]
    kept = [one for one in kept if keeps(sim.oracle.state, one, name)]
    places = [(directory_of(state, broker), name) for broker in kept]
    gone = [place for place in places if place in sim.oracle.collected]
    if gone:
        raise Violation(f"referenced: {gone} were deleted, and version {state.version} has the object")
