"""Sealing and pruning: move slices from the state into index objects, and remove trimmed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from spark_log.journal.context import Context, Proposal
from spark_log.journal.index_reads import read_known
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.store_operations import OWN_ROOT, Decide, Put, Steps
from spark_log.metadata.commands import Swap
from spark_log.metadata.lines import plan_of
from spark_log.metadata.maintenance.swaps import Rewrite, build_swap, prune_range, resolve, seal_range
from spark_log.metadata.maps.column_map import inline_slices, maybe_trimmed
from spark_log.metadata.records import LostOffsets, Piece, SwapRecord
from spark_log.metadata.state import State, Topic, TopicKey
from spark_log.model import DataObject, Placed, Slice
from spark_log.store.object_names import (
    data_key,
)

SWAP_TRIES = 6
Entries = tuple[Slice | Piece, ...]


def seal(state: State, context: Context) -> Steps[State]:
    """Move slices of topics that have many in the state into index objects."""
    inline = inline_slices(state.partitions)
    keys = [
        (topic_id, number)
        for topic_id, topic in sorted(state.topics.items())
        if not topic.deleted and inline[topic_id] > _inline_max(topic, context.limits)
        for number in range(topic.partitions)
    ]
    return (yield from _rewrite_ranges(state, context, keys, _seal_range, _all, sealed=True))


def _seal_range(state: State, key: TopicKey) -> tuple[int, int]:
    part = state.partitions.get(key)
    return (0, 0) if part is None or state.topics[key[0]].deleted else seal_range(part)


def _inline_max(topic: Topic, limits: StepLimits) -> int:
    return max(limits.inline_slices, limits.inline_per_partition * topic.partitions)


def prune(state: State, context: Context) -> Steps[State]:
    """Remove slices below the partitions' starts, and those of deleted topics, from state and indexes."""
    return (yield from _rewrite_ranges(state, context, prunable(state), _prune_range, _none, sealed=False))


def prunable(state: State) -> dict[TopicKey, Entries]:
    """Entries below the partitions' starts, and those of deleted topics."""
    deleted = (
        (topic_id, number)
        for topic_id, topic in state.topics.items()
        if topic.deleted
        for number in range(topic.partitions)
    )
    keys = {*maybe_trimmed(state.partitions), *deleted}
    return {key: entries for key in sorted(keys) if (entries := _entries_in(state, key, _prune_range))}


def _prune_range(state: State, key: TopicKey) -> tuple[int, int]:
    part = state.partitions.get(key)
    return (0, 0) if part is None else prune_range(part, state.topics[key[0]].deleted)


def prune_indexes(state: State, context: Context, keys: Iterable[TopicKey]) -> Steps[State]:
    """Remove slices below the partitions' starts from the index objects that have others above, too."""
    return (yield from _rewrite_ranges(state, context, keys, _piece_across_start, _above_start, sealed=True))


def renew_indexes(state: State, context: Context) -> Steps[tuple[State, frozenset[str]]]:
    """Write the entries of index objects again that also have bytes of slices of before, so that these are dropped.

    Returns the names of those that others have changed all the time, or that are lost.
    """
    names = _partly_dead_indexes(state)
    find, left = partial(_pieces_in, names), -1
    while (count := sum(len(_entries_in(state, key, find)) for key in state.partitions)) and count != left:
        left = count
        state = yield from _rewrite_ranges(state, context, list(state.partitions), find, _above_start, sealed=True)
    return state, frozenset(
        entry.object for part in state.partitions.values() for entry in part.entries if entry.object in names
    )


def _partly_dead_indexes(state: State) -> frozenset[str]:
    live: Counter[str] = Counter()
    for part in state.partitions.values():
        for entry in part.entries:
            if isinstance(entry, Piece):
                live[entry.object] += entry.length
    return frozenset(name for name, size in live.items() if size < state.objects[name].size)


def _pieces_in(names: frozenset[str], state: State, key: TopicKey) -> tuple[int, int]:
    """The first adjacent ones in some index objects."""
    part = state.partitions.get(key)
    entries = () if part is None else part.entries
    first = next((at for at, entry in enumerate(entries) if entry.object in names), len(entries))
    end = next((at for at in range(first, len(entries)) if entries[at].object not in names), len(entries))
    return first, end


def _piece_across_start(state: State, key: TopicKey) -> tuple[int, int]:
    if (part := state.partitions.get(key)) is not None:
        for number, entry in enumerate(part.entries):
            if isinstance(entry, Piece) and entry.start < part.start < entry.end:
                return number, number + 1
    return 0, 0


def _above_start(state: State, key: TopicKey, slices: Sequence[Slice]) -> Sequence[Slice]:
    return [piece for piece in slices if piece.end > state.partitions[key].start]


def _all(state: State, key: TopicKey, slices: Sequence[Slice]) -> Sequence[Slice]:
    return slices


def _none(state: State, key: TopicKey, slices: Sequence[Slice]) -> Sequence[Slice]:
    return ()


FindRange = Callable[[State, TopicKey], tuple[int, int]]
"""The entries of a partition to rewrite in a state; an empty range if it has none, or does not exist."""

Kept = Callable[[State, TopicKey, Sequence[Slice]], Sequence[Slice]]
"""Which slices of such a range stay."""


def _rewrite_ranges(
    state: State, context: Context, keys: Iterable[TopicKey], find: FindRange, kept: Kept, *, sealed: bool
) -> Steps[State]:
    """Replace ranges of entries by the slices that stay, in an index (`sealed`) or in the state.

    Each swap is prepared on the state after the previous swap: other processes may have changed the partitions.  Pieces
    that cannot be read stay as they are.
    """
    waiting = sorted(key for key in keys if _entries_in(state, key, find))
    for at in range(0, len(waiting), context.limits.changes_max):
        few = waiting[at : at + context.limits.changes_max]
        old = {key: entries for key in few if (entries := _entries_in(state, key, find))}
        resolved, unread = yield from read_known(entry for entries in old.values() for entry in entries)
        prepared = [_rewritten(state, key, old[key], resolved, unread, kept, sealed=sealed) for key in old]
        rewrites = [one for one in prepared if one.kept == one.unread]  # `prune_lost` removes the others
        if rewrites:
            state, _ = yield from swap_in(context, state.version, plan_of(state), rewrites)
    return state


def _rewritten(
    state: State,
    key: TopicKey,
    old: Entries,
    resolved: Mapping[Piece, Sequence[Slice]],
    unread: Container[Piece],
    kept: Kept,
    *,
    sealed: bool,
) -> Rewrite:
    slices = resolve(old, resolved)
    lost = tuple(entry for entry in old if isinstance(entry, Piece) and entry in unread)
    return Rewrite(key, state.partitions[key].edition, old, slices, kept(state, key, slices), sealed, lost)


def _entries_in(state: State, key: TopicKey, find: FindRange) -> Entries:
    low, high = find(state, key)
    return state.partitions[key].entries[low:high] if low < high else ()


def swap_in(
    context: Context,
    epoch: int,
    history: str,
    rewrites: Sequence[Rewrite],
    objects: Sequence[DataObject] = (),
    uncounted: Mapping[str, int] = MappingProxyType({}),
    placed: Sequence[Placed] = (),
    lost: Sequence[LostOffsets] = (),
) -> Steps[tuple[State, bool]]:
    """Upload the index of `rewrites`, if they need one, and decide on their swap.  False: the swap was void, or a
    replica lacks one of the objects.

    history:       of the log at the version `epoch`.
    placed, lost:  as for `build_swap`.
    """
    name = data_key(epoch, f"{context.unique()}.idx")
    swap, data = build_swap(epoch, rewrites, name, objects, uncounted, placed, lost)
    if data:
        yield Put(name, (data,), OWN_ROOT)
    command = Proposal(Swap(swap=swap, history=history))
    state: State = yield Decide([command])
    # If its answer was lost, it was sent again, and was void then.
    return state, bool(command.reply) or (command.sent and is_swapped(state, swap))


def is_swapped(state: State, swap: SwapRecord) -> bool:
    """Whether partitions have the entries of a swap, and have got them since it was prepared."""
    parts = [(state.partitions.get((change.topic_id, change.partition)), change) for change in swap.changes]
    return all(
        part is not None
        and part.edition > change.edition
        and {*change.slices, *change.pieces}
        == {entry for entry in part.entries if change.start <= entry.start and entry.end <= change.end}
        for part, change in parts
    )
