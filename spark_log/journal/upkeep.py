"""What keeps a log small, as steps: sealing, pruning, checkpoints, truncation, and collecting garbage.

Whoever commits a log 100 versions past its newest checkpoint does `housekeeping`; `pylog maintain` does the rest as well.
Each duty may be done by any number of processes at once and given up at any point: only immutable names are written,
swaps re-check what they replace, and deleting is idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from spark_log.errors import CorruptObject
from spark_log.journal.limits import Limits
from spark_log.journal.missing import without_index
from spark_log.journal.ops import Delete, Get, List, Op, Put, Steps
from spark_log.journal.protocol import (
    CHECKPOINTS,
    DATA,
    KEPT_CHECKPOINTS,
    LOG,
    WAVE_MAX,
    Command,
    Context,
    View,
    checkpoint_key,
    checkpoint_version,
    data_key,
    log_key,
    log_version,
    propose,
    upload_epoch,
)
from spark_log.metadata.checkpoint import check_checkpoint, decode_checkpoint, encode_checkpoint
from spark_log.metadata.commands import Expire, Fence, Swap
from spark_log.metadata.index import decode_piece, slices_of
from spark_log.metadata.records import Piece, decode_batch
from spark_log.metadata.rewrite import Rewrite, build_swap, prune_range, resolve, seal_range
from spark_log.metadata.state import State, TopicKey
from spark_log.model import DataObject, Slice
from spark_log.settings import cluster_config

INDEX_BYTES_MAX = 4 << 20
"""Of an index object, that are read in one go."""
SWAP_TRIES = 6

logger = logging.getLogger("spark_log")


def is_due(view: View) -> bool:
    """Whether the log has gone far enough past its newest checkpoint, or a newer one is damaged."""
    past = view.state.version - checkpoint_version(view.checkpoint)
    interval = cluster_config(view.state.configs, "metadata.checkpoint.interval")
    return past >= interval or any(name > view.checkpoint for name in view.damaged)


def housekeeping(view: View, context: Context) -> Steps[View]:
    """Make the state small, and write it down, unless somebody else has done so."""
    view = yield from look_again(view)
    if not is_due(view):
        return view
    fence_before = view.state.fence
    view = yield from shrink(view, context)
    return (yield from write_down(view, context, fence_before))


def look_again(view: View) -> Steps[View]:
    """The view with the newest checkpoint that there is: who follows a coordinator does not list them."""
    return view.moved(view.state, (yield List(CHECKPOINTS)), view.head)


def shrink(view: View, context: Context) -> Steps[View]:
    """Seal, prune, advance the fence, expire."""
    view = yield from seal(view, context)
    view = yield from prune(view, context)
    return (yield from fence_and_expire(view, context))


def write_down(view: View, context: Context, fence_before: int) -> Steps[View]:
    """Checkpoint a view, and drop what the checkpoint replaces.  Nothing of it waits for commits, nor they for it.

    Records above the fence are kept though a checkpoint has them: a store with stale listings still meets the old record
    instead of a name that is free.
    """
    view, intact = yield from checkpoint(view, context)
    names, older = yield from _replaced(intact)
    if older:
        yield Delete([name for name in names if name < older])
        first = max(0, min(fence_before, checkpoint_version(names[0])))
        upto = min(view.state.fence, checkpoint_version(older))
        yield Delete([log_key(version) for version in range(first + 1, upto + 1)[-context.limits.deletes_max :]])
    return view


def fence_and_expire(view: View, context: Context) -> Steps[View]:
    """Advance the fence as far as the age allows, and forget producers and positions that are past theirs."""
    fence, expire = Command(Fence()), Command(Expire())
    return (yield from propose(view, [fence, expire], context))


# ---------------------------------------------------------------------------------------------------- sealing and pruning


def seal(view: View, context: Context) -> Steps[View]:
    """Move slices of topics that have many in the state into index objects."""
    keys = [
        (topic_id, number)
        for topic_id in sorted(view.state.topics)
        if _is_full(view.state, topic_id, context.limits)
        for number, _ in view.state.topic_partitions(topic_id)
    ]
    return (yield from _rewrite_ranges(view, context, keys, _seal_range, sealed=True))


def _seal_range(state: State, key: TopicKey) -> tuple[int, int]:
    part = state.partitions.get(key)
    return (0, 0) if part is None or state.topics[key[0]].deleted else seal_range(part)


def _is_full(state: State, topic_id: str, limits: Limits) -> bool:
    topic = state.topics[topic_id]
    if topic.deleted:
        return False
    inline = sum(isinstance(entry, Slice) for _, part in state.topic_partitions(topic_id) for entry in part.entries)
    return inline > max(limits.inline_slices, limits.inline_per_partition * topic.partitions)


def prune(view: View, context: Context) -> Steps[View]:
    """Take slices below the partitions' starts, and those of deleted topics, out of state and indexes."""
    return (yield from _rewrite_ranges(view, context, view.state.partitions, _prune_range, sealed=False, keep=False))


def _prune_range(state: State, key: TopicKey) -> tuple[int, int]:
    part = state.partitions.get(key)
    return (0, 0) if part is None else prune_range(part, state.topics[key[0]].deleted)


FindRange = Callable[[State, TopicKey], tuple[int, int]]
"""The entries of a partition to rewrite in a state; an empty range where the partition has none, or is gone."""


def _rewrite_ranges(
    view: View, context: Context, keys: Iterable[TopicKey], find: FindRange, *, sealed: bool, keep: bool = True
) -> Steps[View]:
    """Replace ranges of entries by themselves in an index (`sealed`), or by nothing (not `keep`).

    Each swap is prepared on the view that the swap before it left: other processes may have changed the partitions.
    """
    waiting = sorted(key for key in keys if _entries_in(view.state, key, find))
    for at in range(0, len(waiting), context.limits.changes_max):
        few = waiting[at : at + context.limits.changes_max]
        old = {key: entries for key in few if (entries := _entries_in(view.state, key, find))}
        resolved = yield from read_found(entry for entries in old.values() for entry in entries)
        passed_over = yield from without_index(old, resolved)
        rewrites = [
            Rewrite(
                key,
                view.state.partitions[key].edition,
                old[key],
                (slices := resolve(old[key], resolved)),
                slices if keep else (),
                sealed,
            )
            for key in old
            if key not in passed_over
        ]
        if rewrites:
            view, _ = yield from swap_in(view, context, view.state.version, rewrites)
    return view


def _entries_in(state: State, key: TopicKey, find: FindRange) -> tuple[Slice | Piece, ...]:
    low, high = find(state, key)
    return state.partitions[key].entries[low:high] if low < high else ()


def swap_in(
    view: View,
    context: Context,
    epoch: int,
    rewrites: Sequence[Rewrite],
    objects: Sequence[DataObject] = (),
    uncounted: Mapping[str, int] = MappingProxyType({}),
) -> Steps[tuple[View, bool]]:
    """Upload the index of `rewrites`, if they need one, and propose their swap.  False: it did not fit any more."""
    name = data_key(epoch, f"{context.unique()}.idx")
    swap, data = build_swap(epoch, rewrites, name, objects, uncounted)
    if data:
        yield Put(name, (data,))
    command = Command(Swap(swap=swap))
    view = yield from propose(view, [command], context)
    if command.error is not None:
        raise command.error
    return view, bool(command.reply)


def read_pieces(entries: Iterable[Slice | Piece]) -> Steps[dict[Piece, list[Slice]] | None]:
    """The slices of each piece among `entries`; None if an index object is gone (the view is old)."""
    pieces = [entry for entry in entries if isinstance(entry, Piece)]
    found = yield from read_found(pieces)
    return found if all(piece in found for piece in pieces) else None


def read_found(entries: Iterable[Slice | Piece]) -> Steps[dict[Piece, list[Slice]]]:
    """The slices of each piece among `entries`, without pieces whose index object is gone."""
    tables = yield from read_tables(entry for entry in entries if isinstance(entry, Piece))
    return {piece: slices_of(table) for piece, table in tables.items()}


def read_tables(pieces: Iterable[Piece]) -> Steps[dict[Piece, pa.Table]]:
    """The rows of each piece, without pieces whose index object is gone: the view is old, or it is missing (`missing.py`).

    Pieces that lie side by side are read together: a seal puts those of all partitions into one object.
    """
    groups = neighbours(pieces)
    if not groups:
        return {}
    reads: list[Op] = [Get(one[0].object, one[0].position, one[-1].position + one[-1].length) for one in groups]
    tables: dict[Piece, pa.Table] = {}
    for group, data in zip(groups, (yield reads), strict=True):
        if data is None:
            continue
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


def checkpoint(view: View, context: Context) -> Steps[tuple[View, frozenset[str]]]:
    """Write the state of a view, which is confirmed, as a checkpoint, and read it back.

    The view with it, and the checkpoints that were read and are intact.  If the one before it is damaged, a second one is
    written, so that the newest two are intact.
    Raises CorruptObject if the storage does not give back what was put.
    """
    data = encode_checkpoint(view.state)
    names: list[str] = yield List(CHECKPOINTS)
    intact = frozenset[str]()
    for _ in range(KEPT_CHECKPOINTS):
        key = checkpoint_key(view.state.version, context.unique())
        if names and checkpoint_version(names[-1]) == view.state.version:
            key = f"{names[-1]}-{context.unique()}"  # sorts after it
        yield Put(key, (data,))
        found = yield Get(key)
        names = yield List(CHECKPOINTS)
        if key not in names[-KEPT_CHECKPOINTS:]:
            break  # there are newer ones, with which another process has dropped it, or may do so
        if found != data or decode_checkpoint(data, key) != view.state:
            raise CorruptObject(f"{key} cannot be read back as it was written: older checkpoints and records are kept")
        others, damaged = yield from _read_checkpoints(frozenset(names[-KEPT_CHECKPOINTS:]) - intact - {key})
        intact |= others | {key}
        view = view._replace(damaged=view.damaged | damaged)
        if not damaged:
            break
    return view.moved(view.state, names, view.head), intact


def _read_checkpoints(names: Iterable[str]) -> Steps[tuple[frozenset[str], frozenset[str]]]:
    """Those that are intact and those that are damaged; one that is gone is neither."""
    intact, damaged = set[str](), set[str]()
    for name in sorted(names):
        data = yield Get(name)
        if data is None:
            continue
        try:
            check_checkpoint(data, name)
            intact.add(name)
        except CorruptObject as error:
            logger.warning("a checkpoint cannot be read: %s", error)
            damaged.add(name)
    return frozenset(intact), frozenset(damaged)


def damaged_checkpoints() -> Steps[dict[str, str]]:
    """Those of the checkpoints that are kept which cannot be read, by name, and why."""
    found = {}
    for name in (yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:]:
        data = yield Get(name)
        try:
            if data is not None:
                check_checkpoint(data, name)
        except CorruptObject as error:
            found[name] = str(error)
    return found


def damaged_between() -> Steps[dict[str, str]]:
    """Records between the two checkpoints that are kept which are missing or cannot be read, by name, and why.

    The newer one stands in for them; without them the older one cannot stand in for the newer one.
    """
    while True:
        newest = (yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:]
        if len(newest) < KEPT_CHECKPOINTS:
            return {}
        first, upto = (checkpoint_version(name) for name in newest)
        names = [name for name in (yield List(LOG)) if first < log_version(name) <= upto]
        found = _missing_between(first, upto, names)
        for at in range(0, len(names), WAVE_MAX):
            few = names[at : at + WAVE_MAX]
            found |= _damaged(zip(few, (yield [Get(name) for name in few]), strict=True))
        if not found or (yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:] == newest:
            return found


def _missing_between(first: int, upto: int, names: Sequence[str]) -> dict[str, str]:
    """The first of versions (first, upto] that has no record: those that follow it may be very many."""
    there = {log_version(name) for name in names}
    if len(there) == upto - first:
        return {}
    lost = next(version for version in range(first + 1, upto + 1) if version not in there)
    return {log_key(lost): f"{log_key(lost)} is missing"}


def _damaged(files: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    found = {}
    for name, data in files:
        try:
            decode_batch(data or b"", name)
        except CorruptObject as error:
            found[name] = str(error)
    return found


def _replaced(intact: frozenset[str]) -> Steps[tuple[list[str], str]]:
    """All checkpoints, and the older of the newest two: those before it may go, and the records up to it.

    Empty: nothing may go, for there are not two, or one of them cannot be read.
    intact:  checkpoints that were read a moment ago.
    """
    names: list[str] = yield List(CHECKPOINTS)
    newest = names[-KEPT_CHECKPOINTS:]
    others, _ = yield from _read_checkpoints(frozenset(newest) - intact)
    kept = len(newest) == KEPT_CHECKPOINTS and intact | others >= frozenset(newest)
    return names, newest[0] if kept else ""


def truncate(view: View, context: Context) -> Steps[int]:
    """Delete every checkpoint but the newest two, and every log record at or below the older one and the fence.

    Counts deletes; nothing is deleted unless both checkpoints can be read.
    """
    names, older = yield from _replaced(frozenset())
    if not older:
        return 0
    upto = min(view.state.fence, checkpoint_version(older))
    old = [name for name in names if name < older]
    records = [name for name in (yield List(LOG)) if log_version(name) <= upto]
    yield Delete([*old, *records[: context.limits.deletes_max]])
    return len(old) + len(records[: context.limits.deletes_max])


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


def collect(view: View, context: Context) -> Steps[list[str]]:
    """Delete garbage; gives the names.  The view was confirmed before the listing begins."""
    names = yield List(DATA)
    old = garbage(view.state, names)[: context.limits.deletes_max]
    if old:
        yield Delete(old)
    return old
