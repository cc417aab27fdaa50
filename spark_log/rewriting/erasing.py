"""Erasure: removes all records of given keys from a topic, as steps of the protocol (docs/decisions/0059-erasure.md).

A round reads the keys of the topic's slices, and those of its dead slices: merged or trimmed ones, in objects that are
live because of other slices.  Then all live slices of each object with such a key are rewritten, so that the object is
dropped.  The rounds end when one reads everything and finds nothing, so slices that others have merged meanwhile are
found, too.  An erasure that is killed has removed a part of the records.  The next one does the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_log.errors import ConcurrentChange, ObjectNotFound, StorageUnavailable
from spark_log.journal.context import Context
from spark_log.journal.failure_isolation import Entries, Failures, partition_name, resolve_each
from spark_log.journal.sealing import SWAP_TRIES, prune, prune_indexes, renew_indexes
from spark_log.journal.set_aside import SetAside
from spark_log.journal.store_operations import Get, Op, Refresh, Steps, together
from spark_log.metadata.lines import check_plan
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State, TopicKey
from spark_log.model import CREATE_TIME, Slice
from spark_log.rewriting.maintenance_memory import LiveSlices
from spark_log.rewriting.merge_policy import SEGMENT_BYTES, window_ms
from spark_log.rewriting.rewrite import Progress, Rewriting, open_spool, rewrite
from spark_log.rewriting.rewrite_packs import PACK_BYTES, Stretch, segment_limit
from spark_log.rewriting.segment_swaps import Replacement, objects_of
from spark_log.rewriting.slice_reads import READ_BYTES, READ_OPS, WHOLE_BYTES_MAX, chunks, decode_into, read_chunk
from spark_log.roots.broker_roots import ANY_ROOT
from spark_log.runtime.size_groups import size_groups
from spark_log.segment.keys.key_set import KeySet
from spark_log.segment.offsets import as_array
from spark_log.segment.reader import BatchRef, Decoded, Index, Place, batches_of_topic, decode_batch, parse_index

PARTITIONS = 1000
"""Partitions whose slices are looked at together."""
PARALLEL_PARTITIONS = 48
"""Partitions that are read in the same rounds of requests."""

Slices = Mapping[TopicKey, Sequence[Slice]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasing:
    """The records to erase, and the way to do it."""

    topic: str
    """Its name for messages: the log may forget the topic meanwhile."""
    topic_id: str
    ends: Mapping[int, int]
    """By partition: records before this offset are erased."""
    history: str
    """The log in which the ends were looked up: `plan_of`."""
    keys: KeySet
    failures: Failures
    """Data that cannot be read or written.  The rest is erased."""
    progress: Progress | None = None
    objects: frozenset[str] | None = None
    """Only these are searched; None: all."""

    def check(self, state: State) -> None:
        """Raises ConcurrentChange if the log was restored or set back since: other records are before the ends then."""
        check_plan(state, self.history, f"erasing from {self.topic}")

    def is_searched(self, name: str) -> bool:
        """Whether the object is searched."""
        return self.objects is None or name in self.objects

    def matches(self, key: TopicKey, piece: Slice, batch: Decoded) -> npt.NDArray[np.bool_]:
        """Which records of a batch are erased."""
        end = self.ends.get(key[1], 0)
        found = self.keys.matches(batch.records.column("key"))
        if piece.end > end:
            found &= as_array(batch.offsets) + piece.start < end
        return found

    def keep(self, key: TopicKey, piece: Slice, batch: Decoded) -> npt.NDArray[np.bool_] | None:
        """Which records of a batch stay; None: all."""
        if key[0] != self.topic_id or piece.start >= self.ends.get(key[1], 0):
            return None
        return ~self.matches(key, piece, batch)


@dataclass(slots=True)
class Erased:
    """The result of an erasure; of a plan, what it would be."""

    records: int = 0
    """Erased records."""
    objects: int = 0
    """Objects with such records, or with dead copies of them."""
    bytes: int = 0
    """Size of the slices that were rewritten."""
    checked: set[str] = field(default_factory=set)
    """Objects without such records, and new ones.  A search leaves them out."""

    def add(self, other: Erased) -> None:
        """Add the result for other objects."""
        self.records += other.records
        self.objects += other.objects
        self.bytes += other.bytes
        self.checked |= other.checked


@dataclass(slots=True)
class _Round:
    """The findings of a round."""

    records: Counter[tuple[TopicKey, int]] = field(default_factory=Counter)
    """Records to erase, by the partition and the start of their slice."""
    objects: set[str] = field(default_factory=set)
    """Objects with such records, live or dead."""
    checked: set[str] = field(default_factory=set)
    """Objects that were read."""
    live: LiveSlices = field(default_factory=LiveSlices)
    """The live slices of all topics."""
    is_outdated: bool = False
    """A slice or an index was missing because others have replaced it: the next round reads what replaced it."""
    trimmed: dict[str, set[TopicKey]] = field(default_factory=lambda: defaultdict(set))
    """By object: partitions that have a slice in it below their start, in an index with live slices."""

    def hold(self, state: State, key: TopicKey, pieces: Sequence[Slice]) -> Sequence[Slice]:
        """Note the slices of a partition, and return the live ones."""
        live = _live(state, key, pieces)
        self.live.hold(key, live)
        for piece in pieces[: len(pieces) - len(live)]:
            self.trimmed[piece.object].add(key)
        return live

    def trimmed_in(self, objects: Iterable[str]) -> set[TopicKey]:
        """Partitions with a slice below their start in one of the objects."""
        return {key for name in objects for key in self.trimmed.get(name, ())}


def plan_shares(state: State, wanted: Erasing, bytes_max: int) -> Steps[list[frozenset[str]]]:
    """The objects to search, in shares of about `bytes_max` or one object.  Each share can be erased by another
    process, with `Erasing.objects`.  Neighbours are in one share, so that they become one segment.
    """
    names, live = dict[str, None](), LiveSlices()
    keys = sorted(state.partitions)
    for first in range(0, len(keys), PARTITIONS):
        slices = yield from _live_slices(state, keys[first : first + PARTITIONS], wanted.failures)
        for key, pieces in slices.items():
            live.hold(key, pieces)
            if key[0] == wanted.topic_id:
                before = wanted.ends.get(key[1], 0)
                names |= dict.fromkeys(piece.object for piece in pieces if piece.start < before)
    names |= dict.fromkeys(_partly_dead(state, live))
    shares: list[set[str]] = []
    size = bytes_max
    for name in names:
        size += state.objects[name].size
        if size > bytes_max:
            shares.append(set())
            size = state.objects[name].size
        shares[-1].add(name)
    return [frozenset(share) for share in shares]


def plan_erasure(state: State, wanted: Erasing, checked: Iterable[str] = ()) -> Steps[Erased]:
    """Count the records that an erasure would remove now.  Writes nothing.

    checked:  objects that other processes have searched.
    """
    found = yield from _search(state, wanted, checked)
    stretches = yield from _stretches(state, wanted, found)
    return Erased(
        records=sum(found.records.values()),
        objects=len(found.objects),
        bytes=sum(stretch.bytes for stretch in stretches),
        checked=found.checked | found.objects,
    )


def erase(state: State, context: Context, wanted: Erasing, checked: Iterable[str] = ()) -> Steps[Erased]:
    """Erase the records.  Raises ConcurrentChange if other processes keep changing the same partitions.

    checked:  objects that other processes have searched, or that they have written without such records.
    """
    result, tries = Erased(checked=set(checked)), 0
    how = Rewriting(
        name="erase",
        activity="erasing from",
        open_spool=open_spool,
        on_failure=wanted.failures,
        on_waiting=wanted.failures,
        progress=wanted.progress,
        keep=wanted.keep,
    )
    while True:
        state = yield from prune(state, context)
        failed = len(wanted.failures.errors)
        found = yield from _search(state, wanted, result.checked)
        result.checked |= found.checked - found.objects
        if not found.objects and not found.is_outdated:
            yield from _renew_indexes(state, context, wanted)
            return result
        stretches = yield from _stretches(state, wanted, found)
        state = yield from prune_indexes(state, context, trimmed := found.trimmed_in(found.objects))
        _, done = yield from rewrite(state, context, stretches, how)
        _count(result, found, done)
        left = found.objects - {piece.object for one in done for piece in one.old}
        result.checked |= {made.name for made in objects_of(done)}
        if left and len(wanted.failures.errors) > failed:
            return result
        tries = 0 if done or trimmed else tries + 1
        if tries >= SWAP_TRIES:
            raise ConcurrentChange(
                f"erasing from {wanted.topic}: other processes rewrite the same slices all the time; run it again"
            )
        state = yield Refresh()


def _renew_indexes(state: State, context: Context, wanted: Erasing) -> Steps[None]:
    """Drop index objects with statistics of slices that are not in the log any more: of typed topics only."""
    if wanted.topic_id not in state.schemas or wanted.objects is not None:
        return
    _, left = yield from renew_indexes(state, context)
    for name in sorted(left):
        wanted.failures(f"rewriting {name}", ConcurrentChange("it may have statistics of erased records; run it again"))


def _count(result: Erased, found: _Round, done: Sequence[Replacement]) -> None:
    result.records += sum(found.records[one.key, piece.start] for one in done for piece in one.old)
    result.objects += len(found.objects & {piece.object for one in done for piece in one.old})
    result.bytes += sum(piece.length for one in done for piece in one.old)


# -------------------------------------------------------------------------------------------------------------- search


def _search(state: State, wanted: Erasing, checked: Iterable[str]) -> Steps[_Round]:
    """The records and objects of the topic with such keys, apart from objects that were checked before."""
    wanted.check(state)
    found, skipped = _Round(), frozenset(checked)
    keys = sorted(state.partitions)
    total = sum(part.end - part.start for key, part in state.partitions.items() if key[0] == wanted.topic_id)
    at = 0
    for first in range(0, len(keys), PARTITIONS):
        entries = _entries(state, keys[first : first + PARTITIONS])
        slices = yield from _readable(state, entries, wanted.failures)
        found.is_outdated |= len(slices) < len(entries)
        live = {key: found.hold(state, key, pieces) for key, pieces in slices.items()}
        own = {key: pieces for key, pieces in live.items() if key[0] == wanted.topic_id}
        for group in _groups(own):
            yield from _search_group(state, wanted, group, skipped, found)
            at += sum(pieces[-1].end - pieces[0].start for pieces in group.values() if pieces)
            if wanted.progress is not None:
                wanted.progress("search", min(at, total), total)
    yield from _search_dead(state, wanted, skipped, found)
    return found


def _entries(state: State, keys: Iterable[TopicKey]) -> dict[TopicKey, tuple[Slice | Piece, ...]]:
    """The entries of partitions, without those of deleted topics."""
    return {key: state.partitions[key].entries for key in keys if not state.topics[key[0]].deleted}


def _live(state: State, key: TopicKey, pieces: Sequence[Slice]) -> list[Slice]:
    return [piece for piece in pieces if piece.end > state.partitions[key].start]


def _readable(state: State, entries: Entries, failures: Failures) -> Steps[Slices]:
    """The slices of partitions, without those whose index cannot be read, which is a failure.

    A partition whose index is missing because the state is outdated is left out.
    """
    aside = SetAside()
    slices = yield from resolve_each(state, entries, failures, aside)
    return {key: list(chain.from_iterable(aside.between(key, pieces))) for key, pieces in slices.items()}


def _live_slices(state: State, keys: Iterable[TopicKey], failures: Failures) -> Steps[Slices]:
    slices = yield from _readable(state, _entries(state, keys), failures)
    return {key: _live(state, key, pieces) for key, pieces in slices.items()}


def _groups(slices: Slices) -> Iterator[dict[TopicKey, Sequence[Slice]]]:
    """Partitions that are read together; of each one, a limited part is in memory."""
    group: dict[TopicKey, Sequence[Slice]] = {}
    size = 0
    for key, pieces in slices.items():
        held = min(READ_BYTES, sum(piece.length for piece in pieces))
        if group and (size + held > PACK_BYTES or len(group) >= PARALLEL_PARTITIONS):
            yield group
            group, size = {}, 0
        group[key] = pieces
        size += held
    if group:
        yield group


def _search_group(state: State, wanted: Erasing, group: Slices, skipped: frozenset[str], found: _Round) -> Steps[None]:
    searches = []
    for key, pieces in group.items():
        before = wanted.ends.get(key[1], 0)
        new = [
            piece
            for piece in pieces
            if piece.start < before and piece.object not in skipped and wanted.is_searched(piece.object)
        ]
        searches.append(_search_partition(state, wanted, key, new, found))
    errors = yield from together(searches)
    newest: State = (yield Refresh()) if any(errors) else state
    for key, failed in zip(group, errors, strict=True):
        lasting = [one for one in failed if not isinstance(one, ObjectNotFound) or one.key in newest.objects]
        found.is_outdated |= len(lasting) < len(failed)
        if lasting:
            wanted.failures(f"searching {partition_name(state, key)}", lasting[0])


def _search_partition(
    state: State, wanted: Erasing, key: TopicKey, pieces: Sequence[Slice], found: _Round
) -> Steps[list[Exception]]:
    """The errors of slices that cannot be read; the other slices are searched."""
    failed: list[Exception] = []
    for chunk in chunks(pieces):
        blobs = yield from read_chunk(state, chunk)
        for piece, blob in zip(chunk, blobs, strict=True):
            try:
                yield from decode_into(
                    state, key, piece, blob, partial(_search_batches, wanted, key, piece, found), ("key",)
                )
            except StorageUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  continue with the other slices
                failed.append(error)
            found.checked.add(piece.object)
    return failed


def _search_batches(wanted: Erasing, key: TopicKey, piece: Slice, found: _Round, batches: Iterable[Decoded]) -> None:
    count = sum(int(wanted.matches(key, piece, batch).sum()) for batch in batches)
    if count:
        found.records[key, piece.start] += count
        found.objects.add(piece.object)


# --------------------------------------------------------------------------------------------------------- dead slices


class _DeadRun(NamedTuple):
    """Batches of the topic in an object, which no live slice has."""

    partition: int
    refs: list[BatchRef]


def _search_dead(state: State, wanted: Erasing, skipped: frozenset[str], found: _Round) -> Steps[None]:
    """Objects with live or trimmed slices whose dead slices have such keys.

    The offsets of dead slices are not known, so the keys of all their records are compared.
    """
    partly = [
        name
        for name in _partly_dead(state, found.live, found.trimmed)
        if name not in skipped and wanted.is_searched(name)
    ]
    for first in range(0, len(partly), READ_OPS):
        names = partly[first : first + READ_OPS]
        live = yield from _live_places(state, wanted, found.live, frozenset(names))
        reads: list[Op] = [
            Get(
                name,
                state.objects[name].index_position,
                state.objects[name].size,
                ANY_ROOT,
                partial(parse_index, name=name, object_size=state.objects[name].size),
            )
            for name in names
        ]
        for name, blob in zip(names, (yield reads), strict=True):
            yield from _search_dead_in(state, wanted, name, blob, live[name], found)


def _partly_dead(state: State, live: LiveSlices, trimmed: Iterable[str] = ()) -> list[str]:
    """Objects with live or trimmed slices and other bytes, in the order of their names."""
    return [name for name in sorted({*live.bytes, *trimmed}) if live.bytes[name] < state.objects[name].index_position]


def _live_places(
    state: State, wanted: Erasing, live: LiveSlices, names: frozenset[str]
) -> Steps[dict[str, set[tuple[int, int]]]]:
    """The bytes [start, end) of the live slices of objects."""
    slices = yield from _live_slices(state, live.holders(names), wanted.failures)
    places: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for pieces in slices.values():
        for piece in pieces:
            if piece.object in names:
                places[piece.object].add((piece.position, piece.position + piece.length))
    return places


def _search_dead_in(
    state: State, wanted: Erasing, name: str, blob: bytes | None, live: set[tuple[int, int]], found: _Round
) -> Steps[None]:
    try:
        if blob is None:
            raise ObjectNotFound(f"{name}, which may have dead records of topic {wanted.topic}, is missing", key=name)
        index = parse_index(blob, name=name, object_size=state.objects[name].size)
        for run in _dead_runs(index, wanted.topic_id, live):
            place = Place(name, wanted.topic, wanted.topic_id, run.partition)
            start = run.refs[0].position
            data = yield Get(name, start, run.refs[-1].position + run.refs[-1].length, ANY_ROOT)
            view = memoryview(data or b"")
            for ref in run.refs:
                at = ref.position - start
                batch = decode_batch(view[at : at + ref.length], ref, index, ("key",), place=place)
                if wanted.keys.matches(batch.records.column("key")).any():
                    found.objects.add(name)
                    return
    except StorageUnavailable:
        raise
    except Exception as error:  # noqa: BLE001  continue with the other objects
        newest: State = yield Refresh()
        if name in newest.objects:
            wanted.failures(f"searching dead slices of {wanted.topic} in {name}", error)
    found.checked.add(name)


def _dead_runs(index: Index, topic_id: str, live: set[tuple[int, int]]) -> Iterator[_DeadRun]:
    """In parts that are read together."""
    starts, ends = np.array(sorted(live), np.int64).reshape(-1, 2).T
    run: _DeadRun | None = None
    for partition, ref in batches_of_topic(index, topic_id):
        at = int(np.searchsorted(starts, ref.position, "right")) - 1
        if at >= 0 and ref.position < ends[at]:
            continue
        if run and (partition != run.partition or ref.position + ref.length - run.refs[0].position > WHOLE_BYTES_MAX):
            yield run
            run = None
        if run is None:
            run = _DeadRun(partition, [])
        run.refs.append(ref)
    if run:
        yield run


# ----------------------------------------------------------------------------------------------------------- rewriting


def _stretches(state: State, wanted: Erasing, found: _Round) -> Steps[list[Stretch]]:
    """The live slices of all topics in the objects that were found.  Adjacent ones become one segment."""
    slices = yield from _live_slices(state, found.live.holders(frozenset(found.objects)), wanted.failures)
    return [
        Stretch(key, stretch) for key, pieces in sorted(slices.items()) for stretch in _moved(state, key, pieces, found)
    ]


def _moved(state: State, key: TopicKey, pieces: Sequence[Slice], found: _Round) -> Iterator[list[Slice]]:
    """Slices that expire at about the same time, with one kind of timestamps, and fit into a segment.

    So each one is written by one swap, after those before it: if a swap is the last one, because the process is killed,
    no older record of an erased key is left as its latest.
    """
    window_us = 1000 * window_ms(state.topics[key[0]].configs)
    limit = min(SEGMENT_BYTES, segment_limit(state, key))

    def kind(piece: Slice) -> tuple[bool, bool, int]:
        return piece.object in found.objects, piece.time_kind == CREATE_TIME, piece.max_us // window_us

    for (moves, _, _), some in groupby(pieces, kind):
        if moves:
            yield from size_groups(some, lambda piece: piece.length, limit)
