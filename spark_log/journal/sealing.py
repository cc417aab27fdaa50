"""Sealing and pruning: move slices from the state into index objects, and remove trimmed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from spark_log.journal.index_reads import read_found
from spark_log.journal.missing_indexes import without_index
from spark_log.journal.object_names import (
    data_key,
)
from spark_log.journal.proposal import Context, Proposal
from spark_log.journal.store_operations import OWN_ROOT, Decide, Put, Steps
from spark_log.journal.upkeep_limits import StepLimits
from spark_log.metadata.commands import Swap
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.swaps import Rewrite, build_swap, prune_range, resolve, seal_range
from spark_log.model import DataObject, Slice

SWAP_TRIES = 6


def seal(state: State, context: Context) -> Steps[State]:
    """Move slices of topics that have many in the state into index objects."""
    keys = [
        (topic_id, number)
        for topic_id in sorted(state.topics)
        if _is_full(state, topic_id, context.limits)
        for number, _ in state.topic_partitions(topic_id)
    ]
    return (yield from _rewrite_ranges(state, context, keys, _seal_range, sealed=True))


def _seal_range(state: State, key: TopicKey) -> tuple[int, int]:
    part = state.partitions.get(key)
    return (0, 0) if part is None or state.topics[key[0]].deleted else seal_range(part)


def _is_full(state: State, topic_id: str, limits: StepLimits) -> bool:
    topic = state.topics[topic_id]
    if topic.deleted:
        return False
    inline = sum(isinstance(entry, Slice) for _, part in state.topic_partitions(topic_id) for entry in part.entries)
    return inline > max(limits.inline_slices, limits.inline_per_partition * topic.partitions)


def prune(state: State, context: Context) -> Steps[State]:
    """Remove slices below the partitions' starts, and those of deleted topics, from state and indexes."""
    return (yield from _rewrite_ranges(state, context, state.partitions, _prune_range, sealed=False, keep=False))


def _prune_range(state: State, key: TopicKey) -> tuple[int, int]:
    part = state.partitions.get(key)
    return (0, 0) if part is None else prune_range(part, state.topics[key[0]].deleted)


FindRange = Callable[[State, TopicKey], tuple[int, int]]
"""The entries of a partition to rewrite in a state; an empty range if it has none, or does not exist."""


def _rewrite_ranges(
    state: State, context: Context, keys: Iterable[TopicKey], find: FindRange, *, sealed: bool, keep: bool = True
) -> Steps[State]:
    """Replace ranges of entries by an index of them (`sealed`), or by nothing (not `keep`).

    Each swap is prepared on the state after the previous swap: other processes may have changed the partitions.
    """
    waiting = sorted(key for key in keys if _entries_in(state, key, find))
    for at in range(0, len(waiting), context.limits.changes_max):
        few = waiting[at : at + context.limits.changes_max]
        old = {key: entries for key in few if (entries := _entries_in(state, key, find))}
        resolved = yield from read_found(entry for entries in old.values() for entry in entries)
        passed_over = yield from without_index(old, resolved)
        rewrites = [
            Rewrite(
                key,
                state.partitions[key].edition,
                old[key],
                (slices := resolve(old[key], resolved)),
                slices if keep else (),
                sealed,
            )
            for key in old
            if key not in passed_over
        ]
        if rewrites:
            state, _ = yield from swap_in(context, state.version, rewrites)
    return state


def _entries_in(state: State, key: TopicKey, find: FindRange) -> tuple[Slice | Piece, ...]:
    low, high = find(state, key)
    return state.partitions[key].entries[low:high] if low < high else ()


def swap_in(
    context: Context,
    epoch: int,
    rewrites: Sequence[Rewrite],
    objects: Sequence[DataObject] = (),
    uncounted: Mapping[str, int] = MappingProxyType({}),
) -> Steps[tuple[State, bool]]:
    """Upload the index of `rewrites`, if they need one, and decide on their swap.  False: the swap was void."""
    name = data_key(epoch, f"{context.unique()}.idx")
    swap, data = build_swap(epoch, rewrites, name, objects, uncounted)
    if data:
        yield Put(name, (data,), OWN_ROOT)
    command = Proposal(Swap(swap=swap))
    state: State = yield Decide([command])
    return state, bool(command.reply)
