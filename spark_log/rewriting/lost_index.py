"""Entries whose slice index is missing or damaged: they are pruned below a partition's start, where they are not needed
any more, or found, to be given up.

The slices of a lost index are unknown, and so are their objects: the segments of an object do not contain their
offsets. If only one index is lost, its slices are those that are counted in the objects but that no readable entry
names. Otherwise their objects are kept until the last lost index is pruned, or until all can be read again and
`drop_unnamed` finds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain

from spark_log.journal.context import Context
from spark_log.journal.index_reads import Unread, read_known
from spark_log.journal.sealing import prunable, swap_in
from spark_log.journal.store_operations import Refresh, Steps
from spark_log.metadata.commits.pending_commits import entries_with_pending
from spark_log.metadata.lines import plan_of
from spark_log.metadata.maintenance.swaps import Rewrite, resolve, unread_slice
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice


def prune_lost(state: State, context: Context) -> Steps[None]:
    """Remove entries with unreadable indexes below the partitions' starts, and of deleted topics."""
    if not (yield from _unread(prunable(state))):
        return
    state = yield Refresh()  # an index may be missing because a newer state has replaced it
    lost = (yield from _unread(prunable(state))).keys()
    old = {key: entries for key, entries in prunable(state).items() if not lost.isdisjoint(entries)}
    if not old:
        return
    known, _ = yield from read_known(chain.from_iterable(old.values()))
    rewrites = [
        Rewrite(
            key,
            state.partitions[key].edition,
            entries,
            resolve(entries, known),
            (),
            sealed=False,
            unread=tuple(piece for piece in _pieces(entries) if piece in lost),
        )
        for key, entries in old.items()
    ]
    uncounted = yield from uncounted_without(state, lost)
    yield from swap_in(context, state.version, plan_of(state), rewrites, uncounted=uncounted)


def drop_unnamed(state: State, context: Context) -> Steps[State]:
    """Drop live objects that no entry names, if all slice indexes can be read.

    One of several lost indexes that was pruned has left them, and the others were restored since.  Nothing can name
    such an object again, so two processes may do this at the same time.
    """
    everything = entries_with_pending(state)
    known, unread = yield from read_known(chain.from_iterable(everything.values()))
    if unread:
        return state
    named = {one.object for entries in everything.values() for one in (*entries, *resolve(entries, known))}
    unnamed = {name: row.live for name, row in state.objects.items() if name not in named}
    rewrite = next((_unchanged(state, key) for key, part in state.partitions.items() if part.entries), None)
    if not unnamed or rewrite is None:
        return state
    state, _ = yield from swap_in(context, state.version, plan_of(state), [rewrite], uncounted=unnamed)
    return state


def _unchanged(state: State, key: TopicKey) -> Rewrite:
    """A rewrite of an entry that stays as it is: a swap has at least one."""
    part = state.partitions[key]
    entry = part.entries[0]
    one, pieces = ([unread_slice(entry)], (entry,)) if isinstance(entry, Piece) else ([entry], ())
    return Rewrite(key, part.edition, (entry,), one, one, sealed=False, unread=pieces)


def find_unread(state: State) -> Steps[list[tuple[TopicKey, Piece]]]:
    """Pieces with live offsets whose index is damaged or missing, maybe because a newer state has replaced it.

    Too little memory is not damage.
    """
    live = {
        key: [entry for entry in part.entries if entry.end > part.start]
        for key, part in sorted(state.partitions.items())
        if not state.topics[key[0]].deleted
    }
    unread = yield from _unread(live)
    lost = {piece for piece, why in unread.items() if not isinstance(why, MemoryError)}
    return [(key, piece) for key, entries in live.items() for piece in _pieces(entries) if piece in lost]


def _unread(entries: Mapping[TopicKey, Sequence[Slice | Piece]]) -> Steps[Unread]:
    return (yield from read_known(chain.from_iterable(entries.values())))[1]


def _pieces(entries: Iterable[Slice | Piece]) -> list[Piece]:
    return [entry for entry in entries if isinstance(entry, Piece)]


def uncounted_without(state: State, removed: Set[Piece]) -> Steps[Counter[str]]:
    """By object, the live slices that are counted in a state, but that no entry names without the removed pieces.

    None if other indexes cannot be read either: it is not known which of them names such a slice.
    """
    everything = entries_with_pending(state)
    known, unread = yield from read_known(chain.from_iterable(everything.values()))
    if not unread.keys() <= removed:
        return Counter()
    known |= {piece: [] for piece in unread}
    counted = Counter({name: row.live for name, row in state.objects.items()})
    for entries in everything.values():
        counted.subtract(one.object for one in resolve(entries, known))
        counted.subtract(entry.object for entry in entries if isinstance(entry, Piece))
    return +counted
