"""Actors that look after replicas: replicators, probers, mergers, collectors, and an administrator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace as with_values

from simulation.log_sim.content import PlacedRun
from simulation.replica_sim import copying
from simulation.replica_sim.copying import Held, Object, placed, put_copies, read_copy, read_slice
from simulation.replica_sim.oracle import directory_of, key_in
from simulation.replica_sim.setting import BY_HAND, ReplicaSimulation, broker_file
from simulation.verdict import Violation
from spark_log.errors import InvalidRequest, SparkLogError, StorageUnavailable, WrongRoot
from spark_log.journal import garbage_collection, maintenance
from spark_log.journal.context import Proposal
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Delete, Get, List, Op, Put, Sleep, Steps
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import Report, Swap
from spark_log.metadata.commits.pending_commits import is_given_up, is_gone, is_lost, lacking_objects, lost_entries
from spark_log.metadata.maintenance.swaps import Rewrite, build_swap
from spark_log.metadata.records import Copy, HeldRecord, LostRecord, MissingRecord, SwapRecord
from spark_log.metadata.replicas.copy_retention import keeps_newest
from spark_log.metadata.replicas.decide_replicas import lacking_for_swap, moves_to
from spark_log.metadata.replicas.reassignments import is_moving
from spark_log.metadata.replicas.replica_commands import (
    AddPendingCopies,
    DropCopies,
    ElectLeader,
    FenceBroker,
    JoinIsr,
    RegisterBroker,
    ReturnBroker,
)
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER, OWN_GROUP
from spark_log.metadata.replicas.replicas import (
    can_lead,
    copies_of,
    deficit,
    epoch_of,
    group_number,
    has_active,
    holders,
    is_active,
    keeps,
    last_copies,
)
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import PendingCommit, State, TopicKey
from spark_log.model import DataObject, Run, Slice
from spark_log.roots.broker_roots import BROKER_KEY
from spark_log.store.object_names import DATA, data_key

Result = TypeVar("Result")

SWAP_TRIES = 5
COPIED_AT_ONCE = 4
BEHIND_MAX = 3
"""A replica joins if it lacks at most this many objects."""


def propose(sim: ReplicaSimulation, view: View, command: Command) -> Steps[tuple[View, object]]:
    """Propose a command; returns its reply, or the error with which it was rejected."""
    proposal = Proposal(command)
    view = yield from sim.propose(view, [proposal])
    return view, proposal.reply if proposal.error is None else proposal.error


# -------------------------------------------------------------------------------------------------------------- copying


def replicator(sim: ReplicaSimulation) -> Steps[None]:
    """Copy to a root what it lacks, then let it join.

    Separate steps: the product's replicator has threads, because its roots may hang.
    """
    view, lacking, lost = (yield from sim.load()), dict[tuple[str, int], int](), dict[tuple[str, ...], int]()
    while True:
        yield Sleep(sim.rng.choice((2, 30, 200)))
        view = yield from sim.refresh(view)
        state = view.state
        for broker in sim.rng.sample([OWN_BROKER, *sorted(state.brokers)], len(state.brokers) + 1):
            if not is_active(state, broker):
                continue
            if keeps_newest(state, broker):
                view, dropped = yield from propose(sim, view, DropCopies(broker=broker, answering=_answering(sim)))
                sim.oracle.seen["old copies dropped"] += dropped is True
            for number, group in sorted(state.placement_groups.items()):
                if broker in group.replicas:
                    view = yield from _replicate(sim, view, number, broker)
        if late := tuple(_late(sim, view.state, lacking)):
            view, _ = yield from propose(sim, view, AddPendingCopies(copies=(), late=late))
        view = yield from _lose(sim, view, lost)
        joining = tuple(_ready_to_join(sim, view.state))
        if joining:
            view, _ = yield from propose(sim, view, JoinIsr(members=joining))


def _answering(sim: ReplicaSimulation) -> tuple[int, ...]:
    """The brokers whose roots answer."""
    return tuple(one for one in (OWN_BROKER, *sim.roots.mounted) if one not in (*sim.roots.down, *sim.roots.hanging))


def _late(sim: ReplicaSimulation, state: State, since: dict[tuple[str, int], int]) -> list[tuple[str, int]]:
    """Objects of pending commits that in-sync replicas have lacked for long.

    since:  when this replicator has seen them first.
    """
    now = {(one.name, broker) for one in lacking_objects(state, state.pending) for broker, _ in one.lacking}
    seen = {one: since.get(one, sim.now) for one in now}
    since.clear()
    since.update(seen)
    return sorted(one for one, first in seen.items() if sim.now - first >= sim.lag_ms)


def _lose(sim: ReplicaSimulation, view: View, since: dict[tuple[str, ...], int]) -> Steps[View]:
    """Give up pending commits, as the product's replicator does: what somebody has replaced immediately, all else after
    a wait, if fenced brokers that have it cannot be read then.

    since:  when this replicator has seen them first.
    """
    state = view.state
    lost = {one.objects: one for one in state.pending if is_lost(state, one)}
    seen = {objects: since.get(objects, sim.now) for objects in lost}
    since.clear()
    since.update(seen)
    for objects, commit in lost.items():
        is_over = has_waited(sim, seen[objects]) and (
            is_gone(state, commit) or (yield from _is_away(sim, state, commit))
        )
        if is_over or is_given_up(state, commit):
            view = yield from _give_up(sim, view, state, commit)
    return view


def has_waited(sim: ReplicaSimulation, since: int) -> bool:
    """Whether `replica.lost.after.ms` is over."""
    return sim.now - since >= sim.lost_ms


def _is_away(sim: ReplicaSimulation, state: State, commit: PendingCommit) -> Steps[bool]:
    """Whether no fenced broker can be read that alone has an object of a commit."""
    for name in commit.objects:
        known = copies_of(state, state.objects[name])
        for broker in known.brokers if known is not None and not has_active(state, known) else ():
            if (yield from read_copy(sim, state, broker, name)) is not None:
                return False
    return True


def _give_up(sim: ReplicaSimulation, view: View, state: State, commit: PendingCommit) -> Steps[View]:
    """state:  in which the commit is lost; in the view it may be another one by now."""
    groups = dict[int, list[PlacedRun]]()
    for key, entries in sorted(lost_entries(state, commit).items()):
        run = PlacedRun(key, (), entries[-1].end - entries[0].start)
        groups.setdefault(group_number(state, key), []).append(run)
    objects, named, slices, held = list[Object](), list[DataObject](), list[tuple[int, Run]](), Held()
    for number, runs in sorted(groups.items()):
        encoded = sim.codec.encode(runs)
        name = data_key(state.version, f"{sim.context.unique()}.seg")
        slices += [(len(named), run) for run in encoded.runs]
        named.append(DataObject(name, encoded.size, encoded.index_position))
        objects.append(Object(name, number, encoded.chunks[0]))
    yield from copying.upload(sim, state, copying.targets_of(state, objects), held)
    record = LostRecord(
        commit=commit.objects,
        upload_epoch=state.version,
        objects=tuple(named),
        slices=tuple(slices),
        placed=placed(objects, held),
    )
    view, _ = yield from propose(sim, view, Report.of(state, record))
    return view


def _lacked(sim: ReplicaSimulation, state: State, number: int, broker: int) -> list[str]:
    some = {one for one, known in state.copies.items() if known.group == number and broker not in known.brokers}
    if not some:
        return []
    objects = sim.memoized.objects(state)
    return sorted(name for name, row in objects.items() if row.copies in some and keeps(state, broker, name))


def _replicate(sim: ReplicaSimulation, view: View, number: int, broker: int) -> Steps[View]:
    state, objects, bad, found = view.state, list[Object](), list[Copy](), list[Copy]()
    epoch = epoch_of(state, broker)
    assert epoch is not None
    lacked = _lacked(sim, state, number, broker)
    for name in sim.rng.sample(lacked, min(COPIED_AT_ONCE, len(lacked))):
        known = copies_of(state, state.objects[name])
        assert known is not None
        if not known.brokers:  # no copy is known: it may still have one
            if (yield from has_unknown(sim, state, broker, name)):
                found.append(Copy(name, broker, epoch))
            continue
        for source in holders(state, state.objects[name]):
            content = yield from read_copy(sim, state, source, name)
            if content is not None:
                objects.append(Object(name, number, content))
                break
            # With old disks as in the product: a fenced broker's copies are judged when it returns.
            is_judged = is_active(state, source) or not sim.old_disks
            if (yield from is_bad(sim, state, source, name)) and is_judged:
                bad.append(Copy(name, source, epoch_of(state, source) or 0))
    if objects:
        done = yield from put_copies(sim, state, broker, objects)
        found += [Copy(name, broker, epoch) for name in sorted(done)]
    if sim.world.faults and sim.rng.random() < 0.1:
        yield Sleep(sim.rng.choice((50, 1000)))
    if found:
        view, reply = yield from propose(sim, view, Report(record=HeldRecord(copies=tuple(found))))
        sim.oracle.seen["copied"] += len(found) * (reply is True)
    if bad:
        view = yield from remove_copies(sim, view, bad)
    return view


def has_unknown(sim: ReplicaSimulation, state: State, broker: int, name: str) -> Steps[bool]:
    """Whether a root has an object of which no copy is known."""
    return (yield from read_copy(sim, state, broker, name)) is not None


def is_bad(sim: ReplicaSimulation, state: State, broker: int, name: str) -> Steps[bool]:
    """Whether the right root has no good copy of an object."""
    try:
        yield from copying.check_root(state, broker)
        found = yield from read_copy(sim, state, broker, name)
        there = yield Get(key_in(directory_of(state, broker), name), 0, None, broker)
        yield from copying.check_root(state, broker)
    except (StorageUnavailable, WrongRoot):
        return False
    return found is None and (there is None or copying.is_damaged(there))


def remove_copies(sim: ReplicaSimulation, view: View, bad: Sequence[Copy]) -> Steps[View]:
    """Record copies that are damaged or absent."""
    view, _ = yield from propose(sim, view, Report(record=MissingRecord(copies=tuple(bad))))
    for name, broker, epoch in bad:
        known = copies_of(view.state, view.state.objects[name]) if name in view.state.objects else None
        same = known is not None and broker in known.brokers and epoch_of(view.state, broker) == epoch
        if same and not sim.oracle.has_copy(view.state, broker, name):
            raise Violation(f"noticed: {name} on broker {broker} is bad, and the log still has it")
    return view


def _ready_to_join(sim: ReplicaSimulation, state: State) -> Iterator[tuple[int, int]]:
    for number, group in sorted(state.placement_groups.items()):
        for member in group.members:
            rested = state.time - member.missed > sim.lag_ms * 2 ** min(member.misses, 4) or not member.missed
            if (
                member.role == "out"
                and can_lead(state, member.broker)
                and rested
                and deficit(state, number, member.broker).objects <= BEHIND_MAX
            ):
                yield number, member.broker


def scrubber(sim: ReplicaSimulation) -> Steps[None]:
    """After the faults: read all copies, and record those that are damaged."""
    view = yield from sim.load()
    while True:
        yield Sleep(200)
        if not sim.healing:
            continue
        view = yield from sim.refresh(view)
        bad, state = list[Copy](), view.state
        for name, row in sorted(sim.memoized.objects(state).items()):
            known = copies_of(state, row)
            for broker in known.brokers if known is not None else ():
                if not sim.oracle.has_copy(state, broker, name) and (yield from is_bad(sim, state, broker, name)):
                    bad.append(Copy(name, broker, epoch_of(state, broker) or 0))
        if bad:
            view = yield from remove_copies(sim, view, bad)


# --------------------------------------------------------------------------------------------------------------- probing


@dataclass(slots=True)
class _Memory:
    """The memory of a prober of the roots."""

    failing: dict[int, int] = field(default_factory=dict)
    """Since when a broker fails its checks."""
    marks: dict[tuple[int, str], str] = field(default_factory=dict)
    """The last mark on each root."""


def prober(sim: ReplicaSimulation) -> Steps[None]:
    """Check all roots again and again: fence brokers that fail, and take back those that answer."""
    view, memory = (yield from sim.load()), _Memory()
    while True:
        yield Sleep(sim.rng.choice((10, sim.session_ms // 4)))
        view = yield from sim.refresh(view)
        for broker in sorted(view.state.brokers):
            view = yield from _probe(sim, view, broker, memory)


def _probe(sim: ReplicaSimulation, view: View, broker: int, memory: _Memory) -> Steps[View]:
    state = view.state
    known = state.brokers[broker]
    try:
        went_back = yield from _mark(sim, state, broker, memory)
    except (StorageUnavailable, WrongRoot) as error:
        since = memory.failing.setdefault(broker, sim.now)
        if sim.now - since >= sim.session_ms and not known.fenced:
            fence = FenceBroker(broker=broker, epoch=known.epoch, reason=f"its root fails: {error}", cause="check")
            view, _ = yield from propose(sim, view, fence)
        return view
    memory.failing.pop(broker, None)
    if known.fenced:
        if known.returns or sim.healing:
            view = yield from return_broker(sim, view, broker)
    elif went_back:
        sim.oracle.seen["rollbacks noticed"] += 1
        fence = FenceBroker(broker=broker, epoch=known.epoch, reason="its root is old", cause="check")
        view, _ = yield from propose(sim, view, fence)
    return view


def _mark(sim: ReplicaSimulation, state: State, broker: int, memory: _Memory) -> Steps[bool]:
    """Put a new mark on a root; returns whether the last one is gone."""
    directory = directory_of(state, broker)
    yield from copying.check_root(state, broker)
    new, last = f"{directory}/meta/{sim.fresh('probe-')}", memory.marks.get((broker, directory))
    yield Put(new, (b"mark",), broker)
    gone = last is not None and (yield Get(last, 0, None, broker)) is None
    if last is not None:
        yield Delete([last], broker)
    yield from copying.check_root(state, broker)
    memory.marks[broker, directory] = new
    return gone


def return_broker(sim: ReplicaSimulation, view: View, broker: int) -> Steps[View]:
    """Look what a root has, and take its broker back without the rest."""
    epoch, prefix = view.state.brokers[broker].epoch, f"{directory_of(view.state, broker)}/"
    try:
        listed = yield List(prefix + DATA, broker)
        yield from copying.check_root(view.state, broker)
    except (StorageUnavailable, WrongRoot):
        return view
    names = {key.removeprefix(prefix) for key in listed}
    view = yield from sim.refresh(view)
    if view.state.brokers[broker].epoch != epoch or prefix != f"{directory_of(view.state, broker)}/":
        return view
    missing = tuple(missing_in(view.state, broker, names))
    sim.oracle.looked(broker, epoch, missing, names)
    if sim.world.faults and sim.rng.random() < 0.3:
        yield Sleep(sim.rng.choice((20, 300, 2000)))
    view, reply = yield from propose(sim, view, ReturnBroker(broker=broker, epoch=epoch, missing=missing))
    sim.oracle.seen["returned"] += reply is True
    return view


def missing_in(state: State, broker: int, names: set[str]) -> list[str]:
    """Objects of which a broker should have copies, and that are not in the listing of its root."""
    return sorted(
        name
        for name, row in state.objects.items()
        if (known := copies_of(state, row)) is not None and broker in known.brokers and name not in names
    )


# --------------------------------------------------------------------------------------------------- merges and garbage


def merger(sim: ReplicaSimulation) -> Steps[None]:
    """Rewrite adjacent slices of a partition into one object."""
    view = yield from sim.load()
    while True:
        yield Sleep(sim.rng.choice((20, 200)))
        view = yield from sim.refresh(view)
        keys = [key for key, part in sorted(view.state.partitions.items()) if len(part.entries) > 2]
        if keys and sim.busy:
            view = yield from _merge(sim, view, sim.rng.choice(keys))


def _merge(sim: ReplicaSimulation, view: View, key: TopicKey) -> Steps[View]:
    part = view.state.partitions[key]
    at = sim.rng.randrange(len(part.entries) - 1)
    old = tuple(entry for entry in part.entries[at : at + sim.rng.randint(2, 4)] if isinstance(entry, Slice))
    return (yield from rewrite(sim, view, key, old))


def rewrite(sim: ReplicaSimulation, view: View, key: TopicKey, old: tuple[Slice, ...]) -> Steps[View]:
    """Replace adjacent slices of a partition by one in a new object."""
    state, rng = view.state, sim.rng
    number, rows = group_number(view.state, key), []
    for piece in old:
        found = yield from read_slice(sim, state, key, piece)
        if found is None:
            return view
        rows += [(offset - old[0].start, row) for offset, row in found]
    encoded = sim.codec.encode([PlacedRun(key, tuple(rows), old[-1].end - old[0].start)])
    made = Object(data_key(state.version, f"{sim.context.unique()}.seg"), number, encoded.chunks[0])
    swap = _swap(state, key, old, made, encoded.runs[0])
    held: Held = {}
    yield from copying.upload(sim, state, {broker: [made] for broker in _swap_targets(state, key, old)}, held)
    if number and not held.get(made.name):
        return view
    if sim.world.faults and rng.random() < 0.1:
        yield Sleep(rng.choice((100, sim.age)))
    for _ in range(SWAP_TRIES):
        where = placed([made], held) if number else ()
        view, reply = yield from propose(
            sim, view, Swap(swap=with_values(swap, placed=where), history=history_of(state))
        )
        if reply is not False:
            sim.oracle.seen["swaps"] += 1
            return view
        rows_now = [row for piece in old if (row := view.state.objects.get(piece.object)) is not None]
        lacking = lacking_for_swap(view.state, where, rows_now, moves_to(view.state, [key])).get(number)
        if not lacking:
            return view
        sim.oracle.seen["swap waits"] += 1
        yield from copying.upload_again(sim, view.state, lacking, made, held)
        yield Sleep(rng.choice((5, 100)))
    return view


def _swap(state: State, key: TopicKey, old: tuple[Slice, ...], made: Object, run: Run) -> SwapRecord:
    new = Slice(
        old[0].start, old[-1].end, made.name, run.position, run.length, run.crc, run.batches, run.min_us, run.max_us
    )
    rewrite = Rewrite(key, state.partitions[key].edition, old, old, [new], sealed=False)
    swap, _ = build_swap(state.version, [rewrite], "", [DataObject(made.name, len(made.content), len(made.content))])
    return swap


def _swap_targets(state: State, key: TopicKey, old: Sequence[Slice]) -> set[int]:
    """The replicas that writers wait for, and those that have one of the old objects; all if the partition moves."""
    number = group_number(state, key)
    if number == OWN_GROUP:
        return {OWN_BROKER}
    group = state.placement_groups[number]
    found = {*group.isr, *group.joining}
    if is_moving(state, key):
        found.update(broker for broker in group.replicas if can_lead(state, broker))
    for piece in old:
        known = copies_of(state, state.objects[piece.object])
        found.update(known.brokers if known is not None and known.group == number else ())
    return found


def collector(sim: ReplicaSimulation, broker: int) -> Steps[None]:
    """Delete garbage of one root, as the product does; now and then as a new process, which remembers nothing."""
    view, directory, memory = (yield from sim.load()), "", None
    while True:
        yield Sleep(sim.rng.choice((100, 1000)))
        view = yield from sim.refresh(view)
        if not is_active(view.state, broker):
            continue
        if sim.rng.random() < 0.1 or directory != directory_of(view.state, broker):
            directory, memory = directory_of(view.state, broker), None
        if sim.world.faults and sim.rng.random() < 0.2:
            yield Sleep(sim.rng.choice((50, 1000, sim.age)))
        collecting = garbage_collection.collect(view.state, sim.context, memory, broker)
        try:
            yield from copying.check_root(view.state, broker)
            _, memory = yield from in_directory(collecting, directory)
            if broker != OWN_BROKER:
                dropped = garbage_collection.collect_dropped(view.state, sim.context, broker)
                yield from in_directory(dropped, directory)
        except (StorageUnavailable, WrongRoot):
            continue


def in_directory(steps: Steps[Result], directory: str) -> Steps[Result]:
    """Steps on the root of a broker, whose copies are in a directory of it."""
    prefix, answer, failed = f"{directory}/" if directory else "", None, None
    while True:
        try:
            request = steps.throw(failed) if failed is not None else steps.send(answer)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        answer = failed = None
        try:
            if isinstance(request, list):
                answer = yield [_prefixed(op, prefix) for op in request]
                answer = [_without(one, prefix) for one in answer]
            else:
                answer = _without((yield _prefixed(request, prefix)), prefix)
        except Exception as raised:  # noqa: BLE001  thrown into the steps, which raise it
            failed = raised


def _prefixed(op: Op, prefix: str) -> Op:
    match op:
        case List():
            return op._replace(prefix=prefix + op.prefix)
        case Delete():
            return op._replace(keys=[prefix + key for key in op.keys])
    return op


def _without(answer: Any, prefix: str) -> Any:
    return [key.removeprefix(prefix) for key in answer] if isinstance(answer, list) else answer


def keeper(sim: ReplicaSimulation) -> Steps[None]:
    """Move the fence, write checkpoints, delete old records."""
    while True:
        yield Sleep(sim.rng.choice((50, 500)))
        view = yield from sim.load()
        view, _ = yield from sim.decided(view, maintenance.seal_and_expire(view.state, sim.context))
        yield from sim.run_maintenance(view)


# --------------------------------------------------------------------------------------------------------- administration


def administrator(sim: ReplicaSimulation) -> Steps[None]:
    """Fence and return brokers by hand, replace lost roots, elect leaders."""
    rng, view = sim.rng, (yield from sim.load())
    while True:
        yield Sleep(rng.choice((100, 1000)))
        view = yield from sim.refresh(view)
        state = view.state
        broker, draw = rng.choice(sorted(state.brokers)), rng.random()
        known = state.brokers[broker]
        may_fence = known.returns if known.fenced and sim.fences_again else not known.fenced
        if not sim.healing and draw < 0.3 and may_fence:
            view, _ = yield from propose(sim, view, FenceBroker(broker=broker, reason=BY_HAND))
        elif known.fenced and known.reason == BY_HAND and draw < 0.7:
            view = yield from return_broker(sim, view, broker)
        elif not sim.healing and draw < 0.5 and state.placement_groups:
            view = yield from _elect(sim, view)
        else:
            view = yield from _replace(sim, view, broker)


def _elect(sim: ReplicaSimulation, view: View) -> Steps[View]:
    number = sim.rng.choice(sorted(view.state.placement_groups))
    group = view.state.placement_groups[number]
    unclean = group.leader == NO_LEADER
    leader = sim.rng.choice(group.replicas) if unclean else group.replicas[0]
    view, _ = yield from propose(sim, view, ElectLeader(group=number, leader=leader, unclean=unclean))
    return view


def _replace(sim: ReplicaSimulation, view: View, broker: int) -> Steps[View]:
    """Give a broker whose root is not its own a new directory."""
    known = view.state.brokers[broker]
    try:
        found = yield Get(BROKER_KEY, 0, None, broker)
    except StorageUnavailable:
        return view
    if found == broker_file(broker, known.directory) or (not known.fenced and not sim.healing):
        return view
    lose = bool(last_copies(view.state, broker).objects) and (sim.healing or sim.rng.random() < 0.2)
    command = RegisterBroker(
        broker=broker,
        directory=sim.fresh("dir"),
        url=known.url,
        rack=known.rack,
        is_async=known.is_async,
        keep_ms=known.keep_ms,
        replaces=True,
        lose_data=lose,
    )
    view, reply = yield from propose(sim, view, command)
    if isinstance(reply, SparkLogError):
        if not isinstance(reply, InvalidRequest):
            raise Violation(f"replace: {reply}")
        return view
    sim.oracle.seen["replaced"] += 1
    yield Put(BROKER_KEY, (broker_file(broker, command.directory),), broker)
    return view
