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

from spark_log.errors import NotEnoughReplicas
from spark_log.journal.context import Context
from spark_log.journal.index_reads import read_known
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.sealing import SWAP_TRIES, swap_in
from spark_log.journal.store_operations import CopyReplicas, Refresh, Steps
from spark_log.metadata.lines import is_of_plan
from spark_log.metadata.maintenance.swaps import Rewrite, resolve
from spark_log.metadata.records import LostOffsets, Piece
from spark_log.metadata.replicas.decide_replicas import lacking_for_swap, moves_to
from spark_log.metadata.replicas.replica_state import OWN_BROKER, OWN_GROUP
from spark_log.metadata.replicas.replicas import epoch_of
from spark_log.metadata.state import ObjectRow, State, TopicKey
from spark_log.model import DataObject, Placed, Slice
from spark_log.rewriting.lost_index import uncounted_without


class Replacement(NamedTuple):
    """A new segment, and the slices it replaces.  Segments of several partitions may share an object."""

    key: TopicKey
    old: tuple[Slice, ...]
    new: Slice
    object: DataObject
    placed: Placed = Placed(OWN_GROUP)
    """Where the object is."""
    lost: tuple[tuple[int, int], ...] = ()
    """Offsets of the slices, from the first to before the second, whose records are given up."""


@dataclass(slots=True)
class SwapBatch:
    """Segments that wait for one swap."""

    epoch: int
    history: str
    """The history of the log at the version of the plan."""
    done: list[Replacement] = field(default_factory=list)
    lacking: set[int] = field(default_factory=set)
    """Active brokers that must have the objects and did not take them."""

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


def swap_segments(state: State, context: Context, batch: SwapBatch) -> Steps[tuple[State, Sequence[Replacement]]]:
    """Replace slices by new segments.  Returns the state afterwards, and the segments that were swapped in.

    If the slices under one segment have changed, all segments of its object are left out; if the fence has passed the
    upload, or the log was restored from a copy since, all are.

    Objects missing from replicas that must have them are copied there first.  Segments of an object that cannot be
    copied are left out, too: the next round rewrites their slices again.
    """
    done: Sequence[Replacement] = batch.done
    is_newest = False
    for _ in range(SWAP_TRIES):
        if not done or batch.epoch <= state.fence or not is_of_plan(state, batch.history):
            break
        prepared = yield from prepare(state, context.limits, done, is_newest=is_newest)
        is_newest = True
        if prepared is None:
            state = yield Refresh()
            continue
        rewrites, done = prepared
        if not done:
            break
        objects, placed = objects_of(done), places_of(done)
        given_up = [LostOffsets(*one.key, *span) for one in done for span in one.lost]
        gone = frozenset(piece for one in rewrites for piece in one.unread if piece not in one.kept)
        state, fits = yield from swap_in(
            context,
            batch.epoch,
            batch.history,
            rewrites,
            objects,
            (yield from uncounted_without(state, gone)) if gone else {},
            placed=placed,
            lost=given_up,
        )
        if fits:
            return state, done
        if placed:
            done = yield from _with_copies(state, done, batch.lacking)
    return state, ()


def _with_copies(state: State, done: Sequence[Replacement], missed: set[int]) -> Steps[Sequence[Replacement]]:
    """The segments, after their objects were copied to the replicas that must have them.  Those of an object that is
    still not there are left out, and the brokers are added to `missed`."""
    where = {one.object.name: one.placed for one in done}
    for made in objects_of(done):
        within = [one for one in done if one.object == made]
        lacking = _lacking(state, where[made.name], within)
        if lacking:
            where[made.name] = yield CopyReplicas(made.name, made.size, where[made.name], lacking)
            lacking = _lacking(state, where[made.name], within)
        if lacking:
            missed |= {broker for broker, _ in lacking}
            del where[made.name]
    return [one._replace(placed=where[one.object.name]) for one in done if one.object.name in where]


def waiting_for(state: State, brokers: Iterable[int]) -> NotEnoughReplicas:
    """Why slices cannot be replaced now: brokers that must have the new objects are away."""
    ways = [_way_back(state, broker) for broker in sorted(brokers)]
    return NotEnoughReplicas(
        f"waiting for {'a broker' if len(ways) == 1 else 'brokers'} that must have the new objects: {'; '.join(ways)}. "
        "Once a broker has been fenced for an hour, nothing waits for it",
        lacking={},
    )


def _way_back(state: State, broker: int) -> str:
    known = state.brokers.get(broker)
    if known is None or broker == OWN_BROKER:
        return "the log's own root does not take them: bring it back"
    lost = f"if its disk is lost, run `pylog broker replace {broker}`"
    if known.fenced:
        return f"broker {broker} ({known.url}) is fenced: {known.reason}: bring it back with `pylog broker unfence {broker}`; {lost}"
    away = f"if it stays away, run `pylog broker fence {broker}`"
    return f"broker {broker} ({known.url}) does not take them: bring its disk or bucket back; {away}; {lost}"


def _lacking(state: State, placed: Placed, within: Sequence[Replacement]) -> list[tuple[int, int]]:
    """(broker, epoch) of the replicas that must have an object with these segments, and do not."""
    old = old_objects(state, (piece for one in within for piece in one.old))
    moved_to = moves_to(state, [one.key for one in within])
    brokers = lacking_for_swap(state, [placed], old, moved_to).get(placed.group, ())
    return [(broker, epoch) for broker in brokers if (epoch := epoch_of(state, broker)) is not None]


def old_objects(state: State, slices: Iterable[Slice]) -> list[ObjectRow]:
    """The objects of slices."""
    names = sorted({piece.object for piece in slices})
    return [row for name in names if (row := state.objects.get(name)) is not None]


def places_of(done: Iterable[Replacement]) -> list[Placed]:
    """Where each of `objects_of` is; empty: all are in the log's own root."""
    places = list({one.object.name: one.placed for one in done}.values())
    return places if any(place.group != OWN_GROUP for place in places) else []


def prepare(
    state: State, limits: StepLimits, done: Sequence[Replacement], *, is_newest: bool = False
) -> Steps[tuple[list[Rewrite], list[Replacement]] | None]:
    """The rewrites that replace slices by segments in this state, and these segments.  None if the state is outdated.

    An object's segments are included only if the slices under all of them still exist.  Between them, pieces that
    cannot be read stay as they are.

    is_newest:  nobody has changed the log since: a slice index that is missing is lost.
    """
    by_key: dict[TopicKey, list[Replacement]] = defaultdict(list)
    for one in sorted(done, key=lambda one: one.new.start):
        by_key[one.key].append(one)
    touched = {key: _touched(state, key, found) for key, found in by_key.items()}
    resolved, unread = yield from read_known(entry for entries in touched.values() for entry in entries)
    if None in unread.values() and not is_newest:
        return None
    rewrites: list[Rewrite] = []
    kept: list[Replacement] = []
    for key, found in by_key.items():
        old = resolve(touched[key], resolved)
        new, placed = _replaced(old, found)
        if placed:
            sealed = len(new) > limits.inline_per_partition and any(isinstance(entry, Piece) for entry in touched[key])
            lost = tuple(entry for entry in touched[key] if isinstance(entry, Piece) and entry in unread)
            rewrites.append(Rewrite(key, state.partitions[key].edition, touched[key], old, new, sealed, lost))
            kept += placed
    changed = Counter(one.object.name for one in done) - Counter(one.object.name for one in kept)
    if any(one.object.name in changed for one in kept):
        kept = [one for one in kept if one.object.name not in changed]
        return (yield from prepare(state, limits, kept, is_newest=is_newest))
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
