"""Compaction: passes over partitions, as steps of the protocol (docs/decisions/0058-compaction.md).

A pass reads the keys of the dirty part of a partition into a map of the newest offset of each key.  Then it goes
through all slices up to there, compares their keys with the map, and rewrites those that lose a record.  At its end,
the cleaner point of the partition moves.  A pass that is killed leaves the point where it was.  It has removed only
records that newer ones follow, so the next pass does the rest.

Small partitions are compacted in groups, whose requests are made together.  Large ones are compacted one after another,
in steps.  A process that runs several rounds continues its pass in the next round, after the other duties.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from spark_log.configs.settings import has_cleanup_policy
from spark_log.errors import NoSpace, ObjectNotFound, StorageUnavailable
from spark_log.journal.context import Context, Proposal
from spark_log.journal.failure_isolation import OnFailure, partition_name, raise_failure
from spark_log.journal.sealing import SWAP_TRIES
from spark_log.journal.set_aside import AsideSlice, SetAside, Unreadable
from spark_log.journal.store_operations import Decide, Refresh, Steps, together
from spark_log.log_lines import logger
from spark_log.metadata.commands import MarkCleaned
from spark_log.metadata.lines import is_of_plan, plan_of
from spark_log.metadata.records import Cleaned
from spark_log.metadata.state import State, TopicKey
from spark_log.model import CREATE_TIME, Slice
from spark_log.rewriting.compaction_plan import DirtyParts, find_dirty_parts, group_parts
from spark_log.rewriting.compaction_rules import Compared, Pass, compare_keys, map_keys
from spark_log.rewriting.dirty_part import DirtyPart
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.rewriting.merge_policy import window_ms, windows
from spark_log.rewriting.rewrite import OpenSpool, Progress, Rewriting, rewrite
from spark_log.rewriting.rewrite_packs import Stretch
from spark_log.rewriting.segment_swaps import Replacement
from spark_log.segment.keys.key_hashes import KeyHasher
from spark_log.segment.keys.newest_offsets import NewestOffsets
from spark_log.segment.reader import Decoded

Result = TypeVar("Result")


@dataclass(slots=True)
class CompactionTally:
    """The result of a compaction."""

    partitions: int = 0
    """Passes that have ended."""
    records: int = 0
    """Removed records."""
    bytes: int = 0
    """By how much the slices have shrunk."""
    left: int = 0
    """Partitions that wait for the next round: they are in a pass, or had more keys than one pass takes, or no turn."""

    def add(self, other: CompactionTally) -> None:
        """Add the result for other partitions."""
        self.partitions += other.partitions
        self.records += other.records
        self.bytes += other.bytes
        self.left += other.left


@dataclass(slots=True)
class _Work:
    """A round of compaction."""

    context: Context
    open_spool: OpenSpool
    on_failure: OnFailure
    progress: Progress | None
    memory: MaintenanceMemory
    tally: CompactionTally = field(default_factory=CompactionTally)
    is_full: bool = False
    """The disk is full."""

    def failed(self, what: str, error: Exception) -> None:
        self.is_full = self.is_full or isinstance(error, NoSpace)
        self.on_failure(what, error)


def compact(
    state: State,
    context: Context,
    open_spool: OpenSpool,
    progress: Progress | None = None,
    on_failure: OnFailure = raise_failure,
    memory: MaintenanceMemory | None = None,
    *,
    ends_passes: bool = True,
    only: Container[TopicKey] | None = None,
) -> Steps[CompactionTally]:
    """Clean the partitions that are due, by descending dirty ratio, until about `clean_bytes` were read.

    on_failure:   called for an object that cannot be read, and for a partition that cannot be cleaned; if it returns,
                  the others are cleaned.
    memory:       the results of earlier rounds of this process.
    ends_passes:  finish a pass that has begun, even beyond `clean_bytes`.  If False, the next round continues it.
    only:         clean only these partitions; None: all.
    """
    work = _Work(context, open_spool, on_failure, progress, memory or MaintenanceMemory())
    due = yield from find_dirty_parts(state, context.clock.now_ms(), on_failure, work.memory, only)
    large, small = _groups(context, due, work.memory, plan_of(state))
    work.memory.compaction_pass = None
    state = yield from _clean_each(work, state, large, ends_passes=ends_passes)
    yield from _clean_each(work, state, small, ends_passes=True)
    if large and large[0].has_begun:
        (work.memory.compaction_pass,) = large[0].passes
    work.tally.left += sum(len(group.passes) for group in (*large, *small))
    return work.tally


# -------------------------------------------------------------------------------------------------------------- groups


@dataclass(slots=True)
class _Group:
    """Passes over several small partitions, or over a large one, that are made together."""

    passes: list[Pass]
    has_begun: bool = False


def _groups(
    context: Context, due: DirtyParts, memory: MaintenanceMemory, history: str
) -> tuple[deque[_Group], deque[_Group]]:
    """The groups of large partitions, first the one whose pass has begun, and those of small partitions."""
    hasher, keys_max, begun = KeyHasher(context.rng), context.limits.clean_keys, memory.compaction_pass
    waiting = {key: dirty for key, dirty in due.items() if begun is None or key != begun.key}

    def group(parts: DirtyParts) -> _Group:
        new = (
            _new_pass(key, dirty, history, NewestOffsets(hasher, keys_max), memory.aside)
            for key, dirty in parts.items()
        )
        return _Group(list(new))

    large, small = (deque(map(group, groups)) for groups in group_parts(waiting, context.limits))
    if begun is not None:
        large.appendleft(_Group([begun], has_begun=True))
    return large, small


def _new_pass(key: TopicKey, dirty: DirtyPart, history: str, newest: NewestOffsets, aside: SetAside) -> Pass:
    return Pass(
        key=key,
        dirty=(dirty.start, dirty.end),
        tombstones_from=dirty.tombstones_from,
        history=history,
        newest=newest,
        at=dirty.start,
        aside=aside,
    )


def _clean_each(work: _Work, state: State, groups: deque[_Group], *, ends_passes: bool) -> Steps[State]:
    """Clean one group after another.  Those that are left when enough was read stay in `groups`."""
    left = work.context.limits.clean_bytes
    while groups and left > 0 and not work.is_full:
        group = groups[0]
        while group.passes and (left > 0 or ends_passes) and not work.is_full:
            group.has_begun = True
            state, read = yield from _step(work, state, group)
            left -= read
        if not group.passes:
            groups.popleft()
    return state


# --------------------------------------------------------------------------------------------------------------- steps


class _Failed(NamedTuple):
    error: Exception


def _step(work: _Work, state: State, group: _Group) -> Steps[tuple[State, int]]:
    """Continue each pass of a group.  Passes that end, and those that cannot continue, leave the group.

    Returns the state afterwards, and about how many bytes were read.
    """
    group.passes = [one for one in group.passes if _is_wanted(state, one)]
    bytes_max = work.context.limits.swap_bytes
    if mapping := [one for one in group.passes if one.end is None]:
        sizes = yield from together([_attempt(map_keys(state, one, bytes_max)) for one in mapping])
        state, read = yield from _without_failed(work, state, group, mapping, sizes)
        for one, _ in read:
            if one.end is not None and one.newest.collides:
                _begin_again(work, one)
        return state, sum(size for _, size in read)
    found = yield from together([_attempt(compare_keys(state, one, bytes_max)) for one in group.passes])
    state, compared = yield from _without_failed(work, state, group, group.passes, found)
    state = yield from _rewrite(work, state, group, compared)
    state = yield from _mark(work, state, group)
    return state, sum(one.bytes for _, one in compared)


def _begin_again(work: _Work, one: Pass) -> None:
    one.begin_again(NewestOffsets(KeyHasher(work.context.rng), work.context.limits.clean_keys))


def _is_wanted(state: State, one: Pass) -> bool:
    """Whether the topic still exists, and is still compacted, and the log has the records that the pass has read."""
    topic = state.topics.get(one.key[0])
    exists = topic is not None and not topic.deleted and has_cleanup_policy(topic.configs, "compact")
    return exists and is_of_plan(state, one.history)


def _attempt(steps: Steps[Result]) -> Steps[Result | _Failed]:
    try:
        return (yield from steps)
    except StorageUnavailable:
        raise
    except Exception as error:  # noqa: BLE001  continue with the other partitions
        return _Failed(error)


def _without_failed(
    work: _Work, state: State, group: _Group, passes: Sequence[Pass], outcomes: Sequence[Result | _Failed]
) -> Steps[tuple[State, list[tuple[Pass, Result]]]]:
    """The newest state, and the results of passes that can continue.  The others are reported, and leave the group.

    Slices that cannot be read are reported and set aside, and their passes continue without them.  A pass whose objects
    are missing only because its state was old is tried again.
    """
    if any(isinstance(outcome, _Failed) or one.unread for one, outcome in zip(passes, outcomes, strict=True)):
        state = yield Refresh()
    found: list[tuple[Pass, Result]] = []
    for one, outcome in zip(list(passes), outcomes, strict=True):
        error = outcome.error if isinstance(outcome, _Failed) else None
        if not _set_aside(work, state, one, error) or _is_replaced(state, error):
            _retry(group, one)
        elif isinstance(error, Unreadable):
            _begin_again(work, one)
        elif error is not None:
            group.passes.remove(one)
            work.memory.set_uncleanable(state, one.key)
            work.failed(f"compacting {partition_name(state, one.key)}", error)
        elif not isinstance(outcome, _Failed):
            found.append((one, outcome))
    return state, found


def _set_aside(work: _Work, state: State, one: Pass, error: Exception | None) -> bool:
    """Set the slices aside that a step of a pass could not read; False if others have replaced one of them.  Then the
    map must have the records of what replaced it."""
    unread = [*one.unread, *([error] if isinstance(error, Unreadable) else [])]
    one.unread.clear()
    for each in unread:
        if _is_replaced(state, each.why):
            continue
        one.partial_from = min(one.partial_from, each.piece.start)
        if one.aside.add(one.key, AsideSlice(each.piece, work.context.clock.now_ms(), is_index=each.is_index)):
            work.failed(f"compacting {partition_name(state, one.key)}", each.why)
    is_outdated = any(_is_replaced(state, each.why) for each in unread)
    if is_outdated and one.end is None:
        _begin_again(work, one)
    return not is_outdated


def _is_replaced(state: State, error: Exception | None) -> bool:
    """Whether an object is missing only because a newer state has others instead of it."""
    return isinstance(error, ObjectNotFound) and error.key not in state.objects


def _retry(group: _Group, one: Pass) -> None:
    """Others have changed the partition.  After many tries, the pass is left to another round."""
    one.tries += 1
    if one.tries >= SWAP_TRIES:
        group.passes.remove(one)


def _rewrite(work: _Work, state: State, group: _Group, compared: Sequence[tuple[Pass, Compared]]) -> Steps[State]:
    """Remove what goes.  Each pass moves to the end of its slices, or to the first one that was not rewritten."""
    by_key = {one.key: found for one, found in compared}
    failures: list[Exception] = []

    def keep(key: TopicKey, piece: Slice, batch: Decoded) -> npt.NDArray[np.bool_] | None:
        return by_key[key].keep(piece, batch)

    def on_failure(what: str, error: Exception) -> None:
        failures.append(error)
        work.failed(what, error)

    def on_waiting(what: str, error: Exception) -> None:
        failures.append(error)
        logger.warning("%s: %s", what, error)

    how = Rewriting(
        name="compact",
        activity="compacting",
        open_spool=work.open_spool,
        on_failure=on_failure,
        on_waiting=on_waiting,
        aside=work.memory.aside,
        progress=work.progress,
        keep=keep,
    )
    compared = [(one, found) for one, found in compared if _is_wanted(state, one)]
    stretches = [stretch for one, found in compared for stretch in _stretches(state, one, found)]
    state, done = yield from rewrite(state, work.context, stretches, how)
    _count(work.tally, by_key, done)
    rewritten = {(swapped.key, piece.start) for swapped in done for piece in swapped.old}
    for one, found in compared:
        aside = found.losing & one.aside.starts(one.key, found.slices)
        one.partial_from = min([one.partial_from, *aside])
        waiting = sorted(start for start in found.losing - aside if (one.key, start) not in rewritten)
        if not waiting:
            one.at, one.tries = found.end, 0
        elif failures:
            group.passes.remove(one)
        else:
            one.at = waiting[0]
            _retry(group, one)
    return state


def _stretches(state: State, one: Pass, found: Compared) -> Iterator[Stretch]:
    """Adjacent slices that lose records, and become one segment."""
    configs = state.topics[one.key[0]].configs
    numbers = [0] * len(found.slices)
    # Slices that cannot be read were left out between others.
    gaps = accumulate((b.start != a.end for a, b in pairwise(found.slices)), initial=0)
    if has_cleanup_policy(configs, "delete"):  # slices of one window expire at about the same time
        numbers, _ = windows(found.slices, 1000 * window_ms(configs))

    def kind(placed: tuple[Slice, int, int]) -> tuple[bool, bool, int, int]:
        piece, window, gap = placed
        return piece.start in found.losing, piece.time_kind == CREATE_TIME, window, gap

    for (loses, *_), some in groupby(zip(found.slices, numbers, gaps, strict=False), kind):
        if loses:
            yield Stretch(one.key, [piece for piece, *_ in some])


def _count(tally: CompactionTally, compared: Mapping[TopicKey, Compared], done: Iterable[Replacement]) -> None:
    for swapped in done:
        tally.records += compared[swapped.key].removed(swapped.old)
        tally.bytes += sum(piece.length for piece in swapped.old) - swapped.new.length


def _mark(work: _Work, state: State, group: _Group) -> Steps[State]:
    """Move the cleaner points of partitions whose pass is over, and has left out nothing."""
    ended = [(one, one.end) for one in group.passes if one.end is not None and one.is_done and _is_wanted(state, one)]
    points = tuple(Cleaned(*one.key, end) for one, end in ended if not one.is_partial)
    if points:
        state = yield Decide([Proposal(MarkCleaned(partitions=points, history=plan_of(state)))])
    work.memory.aside.passed |= {one.key: end for one, end in ended if one.is_partial}
    group.passes = [one for one in group.passes if not one.is_done]
    work.tally.partitions += len(points)
    work.tally.left += sum(end != one.dirty[1] for one, end in ended)
    return state
