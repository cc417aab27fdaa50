"""What keeps a log small, as steps: sealing, pruning, checkpoints, truncation, and collecting garbage.

Whoever commits a log 100 versions past its newest checkpoint does `housekeeping`; `pylog maintain` does the rest as well.
Each duty may be done by any number of processes at once and given up at any point: only immutable names are written,
swaps re-check what they replace, and deleting is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_log.journal.ops import Delete, Get, List, Op, Put, Steps
from spark_log.journal.protocol import (
    CHECKPOINTS,
    DATA,
    LOG,
    Command,
    Context,
    View,
    checkpoint_key,
    checkpoint_version,
    data_key,
    log_key,
    propose,
    upload_epoch,
)
from spark_log.metadata.checkpoint import encode_checkpoint
from spark_log.metadata.commands import Expire, Fence, Swap
from spark_log.metadata.index import decode_piece, slices_of
from spark_log.metadata.records import Piece
from spark_log.metadata.rewrite import Rewrite, build_swap, prune_range, resolve, seal_range
from spark_log.metadata.state import State, TopicKey
from spark_log.model import DataObject, Slice
from spark_log.settings import cluster_config

INLINE_PER_PARTITION = 8
CHANGES_MAX = 1000
"""Partitions a swap changes at most."""
DELETES_MAX = 20_000
INDEX_BYTES_MAX = 4 << 20
"""Of an index object, that are read in one go."""
SWAP_TRIES = 6


@dataclass(frozen=True, slots=True)
class Limits:
    """A topic with more slices in the state than both of these is sealed."""

    inline_slices: int = 256
    inline_per_partition: int = INLINE_PER_PARTITION


LIMITS = Limits()


def is_due(view: View) -> bool:
    """Whether the log has gone far enough past its newest checkpoint."""
    past = view.state.version - checkpoint_version(view.checkpoint)
    return past >= int(cluster_config(view.state.configs, "metadata.checkpoint.interval"))


def housekeeping(view: View, context: Context, limits: Limits = LIMITS) -> Steps[View]:
    """Make the state small, and write it down."""
    fence_before = view.state.fence
    view = yield from shrink(view, context, limits)
    yield from write_down(view, context, fence_before)
    return view


def shrink(view: View, context: Context, limits: Limits = LIMITS) -> Steps[View]:
    """Seal, prune, advance the fence, expire."""
    view = yield from seal(view, context, limits)
    view = yield from prune(view, context)
    return (yield from fence_and_expire(view, context))


def write_down(view: View, context: Context, fence_before: int) -> Steps[None]:
    """Checkpoint a view, and drop what the checkpoint replaces.  Nothing of it waits for commits, nor they for it."""
    yield from checkpoint(view, context)
    yield from _drop_replaced(view, fence_before)


def fence_and_expire(view: View, context: Context) -> Steps[View]:
    """Advance the fence as far as the age allows, and forget producers and positions that are past theirs."""
    fence, expire = Command(Fence()), Command(Expire())
    return (yield from propose(view, [fence, expire], context))


# ---------------------------------------------------------------------------------------------------- sealing and pruning


def seal(view: View, context: Context, limits: Limits = LIMITS) -> Steps[View]:
    """Move slices of topics that have many in the state into index objects."""
    wanted = {
        (topic_id, number): seal_range(part)
        for topic_id in sorted(view.state.topics)
        if _is_full(view.state, topic_id, limits)
        for number, part in view.state.topic_partitions(topic_id)
    }
    return (yield from _rewrite_ranges(view, context, wanted, sealed=True))


def _is_full(state: State, topic_id: str, limits: Limits) -> bool:
    topic = state.topics[topic_id]
    if topic.deleted:
        return False
    inline = sum(isinstance(entry, Slice) for _, part in state.topic_partitions(topic_id) for entry in part.entries)
    return inline > max(limits.inline_slices, limits.inline_per_partition * topic.partitions)


def prune(view: View, context: Context) -> Steps[View]:
    """Take slices below the partitions' starts, and those of deleted topics, out of state and indexes."""
    wanted = {}
    for key, part in sorted(view.state.partitions.items()):
        low, high = prune_range(part, view.state.topics[key[0]].deleted)
        if low < high:
            wanted[key] = (low, high)
    return (yield from _rewrite_ranges(view, context, wanted, sealed=False, keep=False))


def _rewrite_ranges(
    view: View, context: Context, wanted: dict[TopicKey, tuple[int, int]], *, sealed: bool, keep: bool = True
) -> Steps[View]:
    """Replace ranges of entries by themselves in an index (`sealed`), or by nothing (not `keep`)."""
    keys = sorted(key for key, (low, high) in wanted.items() if low < high)
    for at in range(0, len(keys), CHANGES_MAX):
        chunk = keys[at : at + CHANGES_MAX]
        old = {key: view.state.partitions[key].entries[slice(*wanted[key])] for key in chunk}
        resolved = yield from read_pieces(entry for entries in old.values() for entry in entries)
        if resolved is None:
            return view
        rewrites = [
            Rewrite(
                key,
                view.state.partitions[key].edition,
                old[key],
                (slices := resolve(old[key], resolved)),
                slices if keep else (),
                sealed,
            )
            for key in chunk
        ]
        view, _ = yield from swap_in(view, context, view.state.version, rewrites)
    return view


def swap_in(
    view: View, context: Context, epoch: int, rewrites: Sequence[Rewrite], objects: Sequence[DataObject] = ()
) -> Steps[tuple[View, bool]]:
    """Upload the index of `rewrites`, if they need one, and propose their swap.  False: it did not fit any more."""
    name = data_key(epoch, f"{context.unique()}.idx")
    swap, data = build_swap(epoch, rewrites, name, objects)
    if data:
        yield Put(name, (data,))
    command = Command(Swap(swap=swap))
    view = yield from propose(view, [command], context)
    if command.error is not None:
        raise command.error
    return view, bool(command.reply)


def read_pieces(entries: Iterable[Slice | Piece]) -> Steps[dict[Piece, list[Slice]] | None]:
    """The slices of each piece among `entries`; None if an index object is gone (the view is old)."""
    tables = yield from read_tables(entry for entry in entries if isinstance(entry, Piece))
    return None if tables is None else {piece: slices_of(table) for piece, table in tables.items()}


def read_tables(pieces: Iterable[Piece]) -> Steps[dict[Piece, pa.Table] | None]:
    """The rows of each piece; None if an index object is gone (the view is old).

    Pieces that lie side by side are read together: a seal puts those of all partitions into one object.
    """
    groups = neighbours(pieces)
    if not groups:
        return {}
    reads: list[Op] = [Get(one[0].object, one[0].position, one[-1].position + one[-1].length) for one in groups]
    tables: dict[Piece, pa.Table] = {}
    for group, data in zip(groups, (yield reads), strict=True):
        if data is None:
            return None
        for piece in group:
            at = piece.position - group[0].position
            tables[piece] = decode_piece(piece, memoryview(data)[at : at + piece.length])
    return tables


def neighbours(pieces: Iterable[Piece], bytes_max: int = INDEX_BYTES_MAX) -> list[list[Piece]]:
    """Pieces that follow each other in an index object, together up to `bytes_max`; each once."""
    groups: list[list[Piece]] = []
    for piece in sorted(set(pieces), key=lambda piece: (piece.object, piece.position)):
        last = groups[-1] if groups else [piece]
        side_by_side = (last[-1].object, last[-1].position + last[-1].length) == (piece.object, piece.position)
        if side_by_side and piece.position + piece.length - last[0].position <= bytes_max:
            last.append(piece)
        else:
            groups.append([piece])
    return groups


# -------------------------------------------------------------------------------------------- checkpoints and truncation


def checkpoint(view: View, context: Context) -> Steps[None]:
    """Write the state of a view, which is confirmed, as a checkpoint."""
    yield Put(checkpoint_key(view.state.version, context.unique()), (encode_checkpoint(view.state),))


def _drop_replaced(view: View, fence_before: int) -> Steps[None]:
    """Delete the checkpoints before the newest, and the log records that the fence has passed since the last time.

    Records above the fence are kept though a checkpoint has them: a store with stale listings still meets the old record
    instead of a name that is free.
    """
    names = yield List(CHECKPOINTS)
    newest = max(names)
    yield Delete([name for name in names if name < newest])
    upto = min(view.state.fence, checkpoint_version(newest))
    yield Delete([log_key(version) for version in range(max(fence_before, 0) + 1, upto + 1)][-DELETES_MAX:])


def truncate(view: View) -> Steps[int]:
    """Delete every checkpoint but the newest and every log record that is below it and the fence.  Counts deletes."""
    names = yield List(CHECKPOINTS)
    if not names:
        return 0
    newest = max(names)
    upto = min(view.state.fence, checkpoint_version(newest))
    old = [name for name in names if checkpoint_version(name) < checkpoint_version(newest)]
    records = [name for name in (yield List(LOG)) if int(name.removeprefix(LOG)[:20]) <= upto][:DELETES_MAX]
    yield Delete([*old, *records])
    return len(old) + len(records)


# ----------------------------------------------------------------------------------------------------------------- garbage


def garbage(state: State, names: Iterable[str]) -> list[str]:
    """Those of a listing of `data/` that nothing refers to and nothing will: uploads at or below the fence.

    What was dropped is remembered in the state until the fence has passed, so that readers have their grace.
    """
    return [
        name
        for name in names
        if upload_epoch(name) <= state.fence and name not in state.objects and name not in state.dropped
    ]


def collect(view: View) -> Steps[list[str]]:
    """Delete garbage; gives the names.  The view was confirmed before the listing begins."""
    names = yield List(DATA)
    old = garbage(view.state, names)[:DELETES_MAX]
    if old:
        yield Delete(old)
    return old
