"""Actors that read, consume, change topics and run maintenance."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulation.log_sim.content import COMPACTED, PlacedRows, PlacedRun, SegmentCodec, is_compacted
from simulation.log_sim.setting import COPIED_ID, UPGRADE, Simulation
from simulation.verdict import Violation
from spark_log.errors import (
    ClockSkewed,
    CoordinatorNotAvailable,
    CorruptObject,
    GroupIdNotFound,
    GroupInUse,
    IllegalGeneration,
    InvalidRequest,
    OffsetOutOfRange,
    StorageUnavailable,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_log.journal import dropped_lists, garbage_collection, index_reads, maintenance, sealing
from spark_log.journal.context import DecisionRule, Proposal
from spark_log.journal.garbage_collection import Collected
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.storage import checkpointing, opening
from spark_log.journal.storage.opening import KEPT_CHECKPOINTS, View
from spark_log.journal.store_operations import Refresh, Sleep, Steps
from spark_log.maintenance.retention import expire_records
from spark_log.metadata import commands
from spark_log.metadata.groups import group_commands
from spark_log.metadata.maintenance.swaps import resolve
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.model import Slice
from spark_log.rewriting import segment_swaps
from spark_log.rewriting.merge import merge
from spark_log.store.object_names import CHECKPOINTS, DATA

SESSION_MS = 300
"""Tokens of queries that hold a group."""
ALL = StepLimits(inline_slices=0, inline_per_partition=0)
"""Every slice is sealed."""

# -------------------------------------------------------------------------------------------------------------- readers


def reader(sim: Simulation) -> Steps[None]:
    """Plan at one version, keep the plan for a while, then read all of it."""
    while True:
        start = grace_start(sim)
        view = yield from sim.load()
        start = grace_start(sim, start)
        if sim.rng.random() < 0.7:
            yield Sleep(sim.grace - 20 if sim.rng.random() < 0.3 else sim.rng.randrange(1, sim.age))
        for key in sorted(view.state.partitions):
            yield from read_partition(sim, view, key, start)
        yield Sleep(sim.rng.choice((1, 100)))


def grace_start(sim: Simulation, before_load: int | None = None) -> int:
    """The start of a reader's grace: the start of its load, not the end."""
    return sim.now if before_load is None else before_load


def read_once(sim: Simulation, view: View) -> Steps[None]:
    """Read everything: no record is there twice."""
    seen: Counter[object] = Counter()
    for key in sorted(view.state.partitions):
        rows = yield from read_partition(sim, view, key, sim.now)
        seen.update(row for _, row in rows)
    doubled = [row for row, count in seen.items() if count > 1]
    if doubled:
        raise Violation(f"twice: {doubled[:3]} are in the log twice")


def read_partition(sim: Simulation, view: View, key: TopicKey, start: int) -> Steps[PlacedRows]:
    """All records of a partition.  After the grace, missing objects are planned again, by offset."""
    part = view.state.partitions[key]
    while True:
        rows = yield from read_entries(sim, key, part)
        if rows is not None:
            sim.oracle.check_partition(key, view.state, rows)
            return rows
        if sim.now - start < sim.grace:
            raise Violation(f"grace: an object of {key} at version {view.state.version} is gone")
        start = sim.now
        view = yield from sim.load()
        if key not in view.state.partitions:
            return []
        part = view.state.partitions[key]


def read_entries(sim: Simulation, key: TopicKey, part: Partition) -> Steps[PlacedRows | None]:
    """The records of a partition; None if an object is gone."""
    resolved = yield from index_reads.read_pieces(part.entries)
    if resolved is None:
        return None
    slices = [piece for piece in resolve(part.entries, resolved) if piece.end > part.start]
    _check_cover(key, part, slices)
    rows = yield from sim.read_slices(key, slices)
    return None if rows is None else [(offset, row) for offset, row in rows if offset >= part.start]


def _check_cover(key: TopicKey, part: Partition, slices: Iterable[Slice]) -> None:
    at: int | None = None
    for piece in slices:
        if at is not None and piece.start != at:
            raise Violation(f"offsets: {key} has a gap or an overlap at {at}")
        at = piece.end
    if at is not None and at != part.end:
        raise Violation(f"offsets: {key} ends at {at}, not at {part.end}")


def follower(sim: Simulation) -> Steps[None]:
    """A reader that waits for new records."""
    view = yield from sim.load()
    while True:
        newer = yield from opening.poll(view, relist=sim.rng.random() < 0.2, together=sim.shares_rounds(view))
        sim.oracle.check_view(newer)
        if newer.state.version < view.state.version:
            raise Violation("state: a follower went back")
        view = newer
        yield Sleep(sim.rng.choice((5, 200)))


# ------------------------------------------------------------------------------------------------------------ consumers


def consumer(sim: Simulation, group: str) -> Steps[None]:
    """Take the group, read from its positions and commit until a newer consumer owns the group, then take it back."""
    view = yield from sim.load()
    for _ in range(3):
        join = Proposal(group_commands.JoinGroup(group=group, member=sim.fresh("member")))
        view = yield from sim.propose(view, [join])
        if isinstance(join.error, GroupInUse):
            yield Sleep(SESSION_MS // 2)
            continue
        sim.oracle.ack_generation(group, join.reply)
        for _ in range(4):
            view = yield from sim.refresh(view)
            ends = tuple(OffsetEntry(*key, part.end) for key, part in sorted(view.state.partitions.items()))
            commit = Proposal(group_commands.CommitOffsets(commit=GroupCommit(group, join.reply, ends), live_only=True))
            view = yield from sim.propose(view, [commit])
            if isinstance(commit.error, IllegalGeneration):
                break
            yield from sim.pause()


def query(sim: Simulation, group: str, token: str) -> Steps[None]:
    """Hold the group by heartbeats.  A restarted query keeps its identity, and is refused while another owner lives."""
    view = yield from sim.load()
    for _ in range(3):
        join = Proposal(
            group_commands.JoinGroup(group=group, member=sim.fresh("member"), token=token, timeout_ms=SESSION_MS)
        )
        view = yield from sim.propose(view, [join])
        if isinstance(join.error, GroupInUse):
            yield Sleep(SESSION_MS)
            continue
        sim.oracle.ack_generation(group, join.reply)
        for _ in range(6):
            yield Sleep(sim.rng.choice((SESSION_MS // 3, 2 * SESSION_MS)))
            sign = Proposal(group_commands.RenewSession(group=group, generation=join.reply))
            view = yield from sim.propose(view, [sign])
            if isinstance(sign.error, IllegalGeneration):
                break


# --------------------------------------------------------------------------------------------------------------- topics


def topics(sim: Simulation) -> Steps[None]:
    """Create, alter, trim and delete topics, and delete groups; "t0" remains."""
    while True:
        yield Sleep(sim.rng.choice((20, 500, 2000)))
        view = yield from sim.load()
        command = Proposal(_some_change(sim, view.state))
        yield from sim.propose(view, [command])
        expected = (
            InvalidRequest
            | UnknownTopicOrPartition
            | TopicAlreadyExists
            | GroupInUse
            | GroupIdNotFound
            | OffsetOutOfRange
        )
        if command.error is not None and not isinstance(command.error, expected):
            raise command.error


def _some_change(sim: Simulation, state: State) -> DecisionRule:
    """A change as `log.admin` sends it: in an atomic set."""
    rng = sim.rng
    name, partitions = rng.choice(("t1", "t2")), rng.randint(1, 2)
    run_bytes = sim.run_bytes
    change: Mapping[str, Callable[[], commands.AnyCommand]] = {
        "create": lambda: _create(sim, name, partitions),
        "delete": lambda: commands.DeleteTopic(name=name, topic_id=state.names.get(name, "")),
        "stamp": lambda: _alter("message.timestamp.type", rng.choice(("CreateTime", "LogAppendTime", None))),
        "age": lambda: _alter("retention.ms", rng.choice(("300", "3000", None))),
        "size": lambda: _alter("retention.bytes", rng.choice((str(2 * run_bytes), str(8 * run_bytes), None))),
        "upgrade": lambda: UPGRADE,
        "grow": lambda: commands.AddPartitions(name=name, total=3),
        "trim": lambda: _trim(sim, state),
        "forget": lambda: group_commands.DeleteOffsets(group=rng.choice(("group", "shared", "with-records"))),
    }
    found = change[rng.choice(sorted(change))]()
    if isinstance(found, commands.Trim | commands.SeveralCommands):
        return found
    return commands.SeveralCommands(commands=(found,))


def _create(sim: Simulation, name: str, partitions: int) -> commands.CreateTopic:
    compacts = sim.compacts and name == "t1"
    configs, stem = (sim.compacted_configs(), COMPACTED) if compacts else ({}, "id")
    return commands.CreateTopic(name=name, partitions=partitions, configs=configs, topic_id=sim.fresh(stem))


def _alter(name: str, value: str | None) -> commands.SetConfigs:
    return commands.SetConfigs(name="t0", changes={name: value})


def _trim(sim: Simulation, state: State) -> commands.Trim:
    key = sim.rng.choice(sorted(key for key in state.partitions if key[0] != COPIED_ID))
    part = state.partitions[key]
    start = sim.rng.randint(part.start, part.end)
    sim.oracle.retained.ask({key: start})
    return commands.Trim(starts=(commands.Start(*key, start),))


# ---------------------------------------------------------------------------------------------------------- maintainers


Duty = Callable[[Simulation, Any], Steps[Any]]


def maintainer(sim: Simulation) -> Steps[None]:
    """All duties in any order, each on its own view."""
    duties = [run_maintenance, *DUTIES, _checkpoint, Collecting().collect]
    yield from maintain(sim, duties + [_truncate] * sim.truncations)


def maintain(sim: Simulation, duties: Sequence[Duty]) -> Steps[None]:
    while True:
        for duty in sim.rng.sample(duties, len(duties)):
            view = yield from sim.load()
            try:
                view = yield from duty(sim, view)
            except CorruptObject:  # a checkpoint that was damaged before it was read back
                sim.oracle.seen["put off"] += 1
            sim.oracle.check_view(view)
        yield Sleep(sim.rng.choice((1, 100, 2 * sim.age)))


def expire(sim: Simulation, view: View) -> Steps[View]:
    """Run retention, and check its decision."""
    before, ahead = view.state, sim.context.clock.now_ms() - sim.now
    wanted = sim.oracle.retained.expired(before, sim.context.clock.now_ms())
    sim.oracle.retained.ask(wanted)
    view, (_, removals) = yield from sim.decided(view, expire_records(before, sim.context))
    sim.oracle.seen["expired from compacted"] += sum(map(is_compacted, removals))
    if sim.context.clock.now_ms() - sim.now == ahead:  # otherwise the clock was set in between
        starts = {key: removal.start for key, removal in removals.items()}
        sim.oracle.retained.check_expired(wanted, before, starts, whole=not sim.oracle.has_pieces(before))
    return view


def run_maintenance(sim: Simulation, view: View) -> Steps[View]:
    return (yield from sim.maintenance_if_due(view, sim.context))


def _seal(sim: Simulation, view: View) -> Steps[View]:
    view, _ = yield from sim.decided(view, sealing.seal(view.state, replace(sim.context, limits=ALL)))
    return view


def _prune(sim: Simulation, view: View) -> Steps[View]:
    view, _ = yield from sim.decided(view, sealing.prune(view.state, sim.context))
    return view


def _fence(sim: Simulation, view: View) -> Steps[View]:
    view, _ = yield from sim.decided(view, maintenance.fence_and_expire(view.state, sim.context))
    return view


def _checkpoint(sim: Simulation, view: View) -> Steps[View]:
    if sim.rng.random() < 0.3:
        yield from checkpointing.checkpoint(view, sim.context)
    return view


def _list(sim: Simulation, view: View) -> Steps[View]:
    view, _ = yield from sim.decided(view, dropped_lists.list_dropped(view.state, sim.context))
    return view


def bit_rot(sim: Simulation) -> Steps[None]:
    """Damage one of the newest two checkpoints; while it is one of them, leave the other one intact.  And damage or
    remove lists of dropped objects."""
    while True:
        yield Sleep(sim.rng.choice((200, 2000)))
        objects = sim.world.store.files[DATA]
        lists = sorted(name for name in sim.oracle.state.dropped_lists if name in objects)
        if lists and sim.rng.random() < 0.5:
            name = sim.rng.choice(lists)
            objects[name] = objects[name][:-1]
            if sim.rng.random() < 0.5:
                del objects[name]
            sim.oracle.seen["damaged lists"] += 1
            continue
        files = sim.world.store.files[CHECKPOINTS]
        newest = sorted(files)[-KEPT_CHECKPOINTS:]
        if newest and not sim.oracle.damaged.keys() & newest:
            name = sim.rng.choice(newest)
            at = sim.rng.randrange(len(files[name]))
            files[name] = files[name][:at] + bytes([files[name][at] ^ 0x80]) + files[name][at + 1 :]
            sim.oracle.damaged[name] = sim.now
            sim.oracle.seen["damaged"] += 1


def _truncate(sim: Simulation, view: View) -> Steps[View]:
    yield from checkpointing.truncate(view, sim.context)
    return view


class Collecting:
    """A process that collects garbage, most often by what it knows of its last collection."""

    def __init__(self) -> None:
        self._before: Collected | None = None

    def collect(self, sim: Simulation, view: View) -> Steps[View]:
        before = self._before if sim.rng.random() < 0.7 else None
        _, self._before = yield from garbage_collection.collect(view.state, sim.context, before)
        return view


def _merge(sim: Simulation, view: View) -> Steps[View]:
    """Merges what the product would, or some neighbours alone."""
    if isinstance(sim.codec, SegmentCodec) and sim.rng.random() < 0.5:
        view, _ = yield from sim.decided(view, merge(view.state, sim.context, io.BytesIO))
    else:
        view, _ = yield from sim.decided(view, _merge_neighbours(sim, view.state))
    return view


DUTIES = (expire, _merge, _merge, _seal, _prune, _fence, _list)
"""Those of clients, whatever the log is."""


def _merge_neighbours(sim: Simulation, state: State) -> Steps[None]:
    """Rewrite neighbouring entries of a partition as one slice, inline or in an index."""
    keys = sorted(key for key, part in state.partitions.items() if len(part.entries) > 1)
    if not keys:
        return
    key = sim.rng.choice(keys)
    entries = state.partitions[key].entries
    at = sim.rng.randrange(len(entries) - 1)
    old = entries[at : at + sim.rng.randint(2, 4)]
    resolved = yield from index_reads.read_pieces(old)
    if resolved is None:
        return
    slices = resolve(old, resolved)
    rows = yield from sim.read_slices(key, slices)
    if rows is not None:
        yield from _swap(sim, state, (yield from written(sim, state.version, key, slices, rows)))


def written(
    sim: Simulation, epoch: int, key: TopicKey, slices: Sequence[Slice], rows: PlacedRows
) -> Steps[segment_swaps.Replacement]:
    """Write one slice of these rows in place of some slices."""
    start, end = slices[0].start, slices[-1].end
    placed = PlacedRun(key, [(offset - start, row) for offset, row in rows], end - start)
    made, (run,) = yield from sim.put_object(epoch, [placed])
    span_us = min(piece.min_us for piece in slices), max(piece.max_us for piece in slices)
    new = Slice(start, end, made.name, run.position, run.length, run.crc, run.batches, *span_us)
    return segment_swaps.Replacement(key, tuple(slices), new, made)


def _swap(sim: Simulation, state: State, swapped: segment_swaps.Replacement) -> Steps[None]:
    """Swap a slice in, while other actors change the partition."""
    epoch, history = state.version, history_of(state)
    for _ in range(sealing.SWAP_TRIES):
        if epoch <= state.fence:
            return
        prepared = yield from segment_swaps.prepare(state, sim.context.limits, [swapped])
        if prepared is None:
            state = yield Refresh()
            continue
        rewrites, done = prepared
        if not done:
            return
        state, fits = yield from sealing.swap_in(sim.context, epoch, history, rewrites, [swapped.object])
        if fits:
            return


def persistent(steps: Callable[[], Steps[None]]) -> Callable[[], Steps[None]]:
    """Restart the steps whenever the storage was given up."""

    def run() -> Steps[None]:
        while True:
            try:
                yield from steps()
                return
            except (StorageUnavailable, CoordinatorNotAvailable, ClockSkewed):
                yield Sleep(10)

    return run
