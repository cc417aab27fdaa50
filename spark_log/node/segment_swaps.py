"""Replaces slices by new segments with the records that stay, as steps of the commit protocol.

If others changed the partitions meanwhile, the swap is prepared again on the new state, provided the slices still
exist: no data is written twice.  If a slice was replaced, trimmed or deleted meanwhile, its new segment becomes
garbage, and so do all other segments of the same new object.  Otherwise that object would stay live although it also
has records that an erasure has already removed, and the erasure could not find them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_log.journal.index_reads import read_pieces
from spark_log.journal.proposal import Context
from spark_log.journal.sealing import SWAP_TRIES, swap_in
from spark_log.journal.store_operations import Refresh, Steps
from spark_log.journal.upkeep_limits import StepLimits
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.swaps import Rewrite, resolve
from spark_log.model import DataObject, Slice


class Replacement(NamedTuple):
    """A new segment, and the slices it replaces.  Segments of several partitions may share an object."""

    key: TopicKey
    old: tuple[Slice, ...]
    new: Slice
    object: DataObject


@dataclass(slots=True)
class SwapBatch:
    """Segments that wait for one swap."""

    epoch: int
    done: list[Replacement] = field(default_factory=list)

    def is_full(self, limits: StepLimits, following: Sequence[Replacement]) -> bool:
        """Whether the segments of `following` go into another swap."""
        return (
            sum(made.size for made in objects_of(self.done)) >= limits.swap_bytes
            or sum(len(one.old) for one in self.done) >= limits.swap_slices
            or len({one.key for one in self.done} | {one.key for one in following}) > limits.changes_max
        )


def objects_of(done: Iterable[Replacement]) -> list[DataObject]:
    """The objects of segments, each once."""
    return list({one.object.name: one.object for one in done}.values())


def swap_segments(
    state: State, context: Context, batch: SwapBatch, *, thinned: bool = False
) -> Steps[tuple[State, Sequence[Replacement]]]:
    """Swap segments in.  Returns the state afterwards, and the segments that are in: not those of an object with one
    whose slices have changed, and none if the fence has passed their upload.

    thinned: they have fewer records than the slices that they replace.
    """
    done: Sequence[Replacement] = batch.done
    for _ in range(SWAP_TRIES):
        if not done or batch.epoch <= state.fence:
            break
        prepared = yield from prepare(state, context.limits, done)
        if prepared is None:
            state = yield Refresh()
            continue
        rewrites, done = prepared
        if not done:
            break
        state, fits = yield from swap_in(context, batch.epoch, rewrites, objects_of(done), thinned=thinned)
        if fits:
            return state, done
    return state, ()


def prepare(
    state: State, limits: StepLimits, done: Sequence[Replacement]
) -> Steps[tuple[list[Rewrite], list[Replacement]] | None]:
    """The rewrites that replace the slices with segments in this state, and these segments: all those of an object
    whose slices still exist.

    None if the state is outdated.
    """
    by_key: dict[TopicKey, list[Replacement]] = defaultdict(list)
    for one in sorted(done, key=lambda one: one.new.start):
        by_key[one.key].append(one)
    touched = {key: _touched(state, key, found) for key, found in by_key.items()}
    resolved = yield from read_pieces(entry for entries in touched.values() for entry in entries)
    if resolved is None:
        return None
    rewrites: list[Rewrite] = []
    kept: list[Replacement] = []
    for key, found in by_key.items():
        old = resolve(touched[key], resolved)
        new, placed = _replaced(old, found)
        if placed:
            sealed = len(new) > limits.inline_per_partition and any(isinstance(entry, Piece) for entry in touched[key])
            rewrites.append(Rewrite(key, state.partitions[key].edition, touched[key], old, new, sealed))
            kept += placed
    changed = Counter(one.object.name for one in done) - Counter(one.object.name for one in kept)
    if any(one.object.name in changed for one in kept):
        return (yield from prepare(state, limits, [one for one in kept if one.object.name not in changed]))
    return rewrites, kept


def _touched(state: State, key: TopicKey, found: Sequence[Replacement]) -> tuple[Slice | Piece, ...]:
    """The entries that segments replace, from the first to the last; none if the topic is deleted."""
    part = state.partitions.get(key)
    if part is None or state.topics[key[0]].deleted:
        return ()
    start, end = found[0].new.start, found[-1].new.end
    return tuple(entry for entry in part.entries if entry.start < end and entry.end > start)


def _replaced(old: Sequence[Slice], found: Sequence[Replacement]) -> tuple[list[Slice], list[Replacement]]:
    numbers = {piece.start: number for number, piece in enumerate(old)}
    new: list[Slice] = []
    placed: list[Replacement] = []
    at = 0
    for one in found:
        first = numbers.get(one.new.start)
        if first is None or tuple(old[first : first + len(one.old)]) != one.old:
            continue
        new += [*old[at:first], one.new]
        at = first + len(one.old)
        placed.append(one)
    return [*new, *old[at:]], placed
