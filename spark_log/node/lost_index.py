"""Pruning of entries whose slice index is missing or damaged, below a partition's start, where they are not needed any
more.

The slices of a lost index are unknown, and so are their objects: the segments of an object do not contain their
offsets. If only one index is lost, its slices are those that are counted in the objects but that no readable entry
names. Otherwise their objects are kept until the last lost index is pruned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spark_log.journal.context import Context
from spark_log.journal.index_reads import read_sound
from spark_log.journal.sealing import Entries, prunable, swap_in
from spark_log.journal.store_operations import Refresh, Steps
from spark_log.metadata.pending_commits import entries_with_pending
from spark_log.metadata.records import Piece
from spark_log.metadata.restores import history_of
from spark_log.metadata.slice_index import slices_of
from spark_log.metadata.state import State
from spark_log.metadata.swaps import Rewrite, resolve
from spark_log.model import Slice


def prune_lost(state: State, context: Context) -> Steps[None]:
    """Remove entries with unreadable indexes below the partitions' starts, and of deleted topics."""
    if not (yield from _lost(_pieces(prunable(state).values()))):
        return
    state = yield Refresh()  # an index may be missing because a newer state has replaced it
    everything = entries_with_pending(state)
    lost = yield from _lost(_pieces(everything.values()))
    old = {key: entries for key, entries in prunable(state).items() if not lost.isdisjoint(entries)}
    if not old:
        return
    known = yield from _read(set(_pieces(everything.values())) - lost)
    known |= {piece: [] for piece in lost}
    pruned = lost.intersection(_pieces(old.values()))
    rewrites = [
        Rewrite(key, state.partitions[key].edition, entries, resolve(entries, known), (), sealed=False)
        for key, entries in old.items()
    ]
    uncounted = _uncounted(state, known) if pruned == lost else Counter[str]()
    yield from swap_in(context, state.version, history_of(state), rewrites, uncounted=uncounted)


def _pieces(groups: Iterable[Entries]) -> list[Piece]:
    return [entry for entries in groups for entry in entries if isinstance(entry, Piece)]


def _lost(pieces: Iterable[Piece]) -> Steps[frozenset[Piece]]:
    pieces = frozenset(pieces)
    return pieces - (yield from _read(pieces)).keys()


def _read(pieces: Iterable[Piece]) -> Steps[dict[Piece, list[Slice]]]:
    """The slices of each piece, without pieces that cannot be read."""
    tables = yield from read_sound(pieces)
    return {piece: slices_of(table) for piece, table in tables.items()}


def _uncounted(state: State, known: dict[Piece, list[Slice]]) -> Counter[str]:
    """By object, the live slices that are counted but that no readable entry names."""
    counted = Counter({name: row.live for name, row in state.objects.items()})
    for entries in entries_with_pending(state).values():
        counted.subtract(one.object for one in resolve(entries, known))
        counted.subtract(entry.object for entry in entries if isinstance(entry, Piece))
    return +counted
