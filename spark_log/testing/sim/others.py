"""Actors that read, consume, change topics and keep the log small."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spark_log.errors import (
    CoordinatorNotAvailable,
    GroupInUse,
    IllegalGeneration,
    InvalidRequest,
    StorageUnavailable,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_log.journal import protocol, upkeep
from spark_log.journal.ops import Sleep, Steps
from spark_log.journal.protocol import Command, View
from spark_log.metadata import decide as d
from spark_log.metadata.records import GroupCommit, OffsetEntry, Piece
from spark_log.metadata.rewrite import Rewrite, resolve
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.model import Slice
from spark_log.node import merge as segments
from spark_log.testing.sim.content import Row, Rows, SegmentCodec
from spark_log.testing.sim.setting import Setting
from spark_log.testing.sim.world import Violation

SESSION_MS = 300
"""Of queries that keep a group."""

# -------------------------------------------------------------------------------------------------------------- readers


def reader(sim: Setting) -> Steps[None]:
    """Plans at one version, holds the plan for a while, and reads all of it."""
    while True:
        start = grace_start(sim)
        view = yield from sim.load()
        start = grace_start(sim, start)
        if sim.rng.random() < 0.7:
            yield Sleep(sim.age - 20 if sim.rng.random() < 0.3 else sim.rng.randrange(1, sim.age))
        for key in sorted(view.state.partitions):
            yield from read_partition(sim, view, key, start)
        yield Sleep(sim.rng.choice((1, 100)))


def grace_start(sim: Setting, before_load: int | None = None) -> int:
    """When a reader's grace begins: at the start of its load, not at the end."""
    return sim.now if before_load is None else before_load


def read_partition(sim: Setting, view: View, key: TopicKey, start: int) -> Steps[list[Row]]:
    """All records of a partition; what is gone after the grace is planned again, by offset."""
    part = view.state.partitions[key]
    while True:
        rows = yield from _read_entries(sim, key, part)
        if rows is not None:
            sim.oracle.check_read(key, part.start, rows)
            if len(rows) != part.end - part.start:
                raise Violation(f"offsets: {len(rows)} rows of {key} in [{part.start}, {part.end})")
            return rows
        if sim.now - start < sim.age:
            raise Violation(f"grace: an object of {key} at version {view.state.version} is gone")
        start = sim.now
        view = yield from sim.load()
        if key not in view.state.partitions:
            return []
        part = view.state.partitions[key]


def _read_entries(sim: Setting, key: TopicKey, part: Partition) -> Steps[list[Row] | None]:
    resolved = yield from upkeep.read_pieces(part.entries)
    if resolved is None:
        return None
    slices = [piece for piece in resolve(part.entries, resolved) if piece.end > part.start]
    _check_cover(key, part, slices)
    rows = yield from sim.read_slices(key, slices)
    return None if rows is None else rows[part.start - slices[0].start :] if slices else []


def _check_cover(key: TopicKey, part: Partition, slices: Iterable[Slice]) -> None:
    at: int | None = None
    for piece in slices:
        if at is not None and piece.start != at:
            raise Violation(f"offsets: {key} has a gap or an overlap at {at}")
        at = piece.end
    if at is not None and at != part.end:
        raise Violation(f"offsets: {key} ends at {at}, not at {part.end}")


def follower(sim: Setting) -> Steps[None]:
    """A reader that waits for what is new."""
    view = yield from sim.load()
    while True:
        newer = yield from protocol.poll(view, relist=sim.rng.random() < 0.2, together=sim.together)
        sim.oracle.check_view(newer)
        if newer.state.version < view.state.version:
            raise Violation("state: a follower went back")
        view = newer
        yield Sleep(sim.rng.choice((5, 200)))


# ------------------------------------------------------------------------------------------------------------ consumers


def consumer(sim: Setting, group: str) -> Steps[None]:
    """Takes the group, reads on from its positions, commits, until a newer one has it; then it takes it again."""
    view = yield from sim.load()
    for _ in range(3):
        join = Command(_join(group, sim.fresh("member")))
        view = yield from sim.propose(view, [join])
        if isinstance(join.error, GroupInUse):
            yield Sleep(SESSION_MS // 2)
            continue
        sim.oracle.ack_generation(group, join.reply)
        for _ in range(4):
            view = yield from sim.refresh(view)
            ends = tuple(OffsetEntry(*key, part.end) for key, part in sorted(view.state.partitions.items()))
            commits = (GroupCommit(group, join.reply, ends),)
            commit = Command(lambda state, now, commits=commits: d.decide_commit_offsets(state, commits))  # type: ignore[misc]
            view = yield from sim.propose(view, [commit])
            if isinstance(commit.error, IllegalGeneration):
                break
            yield from sim.pause()


def query(sim: Setting, group: str, token: str) -> Steps[None]:
    """Keeps the group by signs of life; is itself when it comes back, and refused while another one is alive."""
    view = yield from sim.load()
    for _ in range(3):
        join = Command(_join(group, sim.fresh("member"), token=token, timeout_ms=SESSION_MS))
        view = yield from sim.propose(view, [join])
        if isinstance(join.error, GroupInUse):
            yield Sleep(SESSION_MS)
            continue
        sim.oracle.ack_generation(group, join.reply)
        for _ in range(6):
            yield Sleep(sim.rng.choice((SESSION_MS // 3, 2 * SESSION_MS)))
            sign = Command(lambda state, now, at=join.reply: d.decide_sign_of_life(state, group, at))  # type: ignore[misc]
            view = yield from sim.propose(view, [sign])
            if isinstance(sign.error, IllegalGeneration):
                break


def _join(group: str, member: str, token: str = "", timeout_ms: int = 0) -> protocol.Decide:
    def decide(state: State, now: int) -> d.Decision[int]:
        d.check_group_free(state, group, now, token)
        return d.decide_join_group(state, group, member, token=token, timeout_ms=timeout_ms)

    return decide


# --------------------------------------------------------------------------------------------------------------- topics


def topics(sim: Setting) -> Steps[None]:
    """Creates, alters, trims and deletes topics; "t0" stays."""
    while True:
        yield Sleep(sim.rng.choice((20, 500, 2000)))
        view = yield from sim.load()
        command = Command(_some_change(sim, view.state))
        yield from sim.propose(view, [command])
        expected = InvalidRequest | UnknownTopicOrPartition | TopicAlreadyExists
        if command.error is not None and not isinstance(command.error, expected):
            raise command.error


def _some_change(sim: Setting, state: State) -> protocol.Decide:
    rng = sim.rng
    name, topic_id, partitions = rng.choice(("t1", "t2")), sim.fresh("id"), rng.randint(1, 2)
    key, part = rng.choice(
        sorted((key, part) for key, part in state.partitions.items() if part.end) or [(("", 0), Partition())]
    )
    starts = {key: rng.randint(part.start, part.end)} if part.end else {}
    kind = rng.choice(("CreateTime", "LogAppendTime", None))
    change: Mapping[str, Callable[[State], d.Decision[Any]]] = {
        "create": lambda state: d.decide_create_topic(state, name, partitions, {}, topic_id),
        "delete": lambda state: d.decide_delete_topic(state, name),
        "alter": lambda state: d.decide_set_configs(state, "t0", {"message.timestamp.type": kind}),
        "grow": lambda state: d.decide_add_partitions(state, name, 3),
        "trim": lambda state: d.decide_trim(state, starts),
    }
    chosen = change[rng.choice(sorted(change))]
    return lambda state, now: chosen(state)


# ---------------------------------------------------------------------------------------------------------- maintainers


def maintainer(sim: Setting) -> Steps[None]:
    """All duties in any order, each on a view of its own."""
    duties = [_keep_house, _merge, _merge, _seal, _prune, _fence, _checkpoint, _collect] + [_truncate] * sim.truncations
    while True:
        for duty in sim.rng.sample(duties, len(duties)):
            view = yield from sim.load()
            view = yield from duty(sim, view)
            sim.oracle.check_view(view)
        yield Sleep(sim.rng.choice((1, 100, 2 * sim.age)))


def _keep_house(sim: Setting, view: View) -> Steps[View]:
    return (yield from upkeep.housekeeping(view, sim.context, sim.limits))


def _seal(sim: Setting, view: View) -> Steps[View]:
    return (yield from upkeep.seal(view, sim.context, upkeep.Limits(0, 0)))


def _prune(sim: Setting, view: View) -> Steps[View]:
    return (yield from upkeep.prune(view, sim.context))


def _fence(sim: Setting, view: View) -> Steps[View]:
    return (yield from upkeep.fence_and_expire(view, sim.context))


def _checkpoint(sim: Setting, view: View) -> Steps[View]:
    if sim.rng.random() < 0.3:
        yield from upkeep.checkpoint(view, sim.context)
    return view


def _truncate(sim: Setting, view: View) -> Steps[View]:
    yield from upkeep.truncate(view)
    return view


def _collect(sim: Setting, view: View) -> Steps[View]:
    yield from upkeep.collect(view)
    return view


def _merge(sim: Setting, view: View) -> Steps[View]:
    """Rewrite neighbouring entries of a partition as one slice, inline or in an index."""
    if isinstance(sim.codec, SegmentCodec) and sim.rng.random() < 0.5:
        view, _ = yield from segments.merge(view, sim.context, io.BytesIO)
        return view
    keys = sorted(key for key, part in view.state.partitions.items() if len(part.entries) > 1)
    if not keys:
        return view
    key = sim.rng.choice(keys)
    entries = view.state.partitions[key].entries
    at = sim.rng.randrange(len(entries) - 1)
    old = entries[at : at + sim.rng.randint(2, 4)]
    resolved = yield from upkeep.read_pieces(old)
    if resolved is None:
        return view
    slices = resolve(old, resolved)
    rows = yield from sim.read_slices(key, slices)
    if rows is None:
        return view
    return (yield from _swap(sim, view, key, old, slices, tuple(rows)))


def _swap(
    sim: Setting, view: View, key: TopicKey, old: tuple[Slice | Piece, ...], slices: list[Slice], rows: Rows
) -> Steps[View]:
    epoch = view.state.version
    made, (run,) = yield from sim.put_object(epoch, [(key, rows)])
    new = Slice(
        old[0].start, old[-1].end, made.name, run.position, run.length, run.crc, run.batches, run.min_us, run.max_us
    )
    sealed = sim.rng.random() < 0.5
    for _ in range(upkeep.SWAP_TRIES):
        part = view.state.partitions.get(key, Partition())
        if epoch <= view.state.fence or not set(old) <= set(part.entries):
            return view
        rewrite = Rewrite(key, part.edition, old, slices, (new,), sealed)
        view, done = yield from upkeep.swap_in(view, sim.context, epoch, [rewrite], [made])
        if done:
            return view
    return view


def persistent(steps: Callable[[], Steps[None]]) -> Callable[[], Steps[None]]:
    """The same from the beginning whenever the storage gave up on it."""

    def run() -> Steps[None]:
        while True:
            try:
                yield from steps()
                return
            except (StorageUnavailable, CoordinatorNotAvailable):
                yield Sleep(10)

    return run
