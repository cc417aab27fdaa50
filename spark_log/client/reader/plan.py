"""Planning a read: ranges of offsets to byte ranges of objects."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from spark_log.conditions import Window
from spark_log.errors import CorruptObject, DataLoss, UnknownTopicOrPartition
from spark_log.journal.index_reads import read_sound, read_tables
from spark_log.journal.journal import Journal
from spark_log.journal.storage.missing_indexes import damaged_object, missing_object
from spark_log.metadata.formats.slice_index import numbers, slices_of
from spark_log.metadata.records import Piece
from spark_log.metadata.state import ObjectRow, Partition, State
from spark_log.model import Slice
from spark_log.positions import At, Latest, Position
from spark_log.roots.broker_roots import raise_if_away
from spark_log.store.base import ObjectStore

REPLAN_TRIES = 3


class OffsetRange(NamedTuple):
    """Records [start, end) of a partition."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


class SliceRead(Struct, frozen=True, array_like=True, gc=False):
    """Records [start, end) in one slice.  Sent to tasks."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    slice: Slice
    index_position: int
    object_size: int

    @property
    def bytes(self) -> int:
        """Approximate size of the read."""
        piece = self.slice
        return max(1, piece.length * (self.end - self.start) // (piece.end - piece.start))


Known = Mapping[Piece, pa.Table]
"""Slice indexes that were read before: the contents of a piece never change."""


def plan_reads(
    journal: Journal,
    ranges: Sequence[OffsetRange],
    window: Window | None = None,
    known: Known | None = None,
    state: State | None = None,
) -> list[SliceRead]:
    """The reads for `ranges`, in order.

    window:  leave out slices that it rules out; None: leave out none.
    state:   the state to plan by; None: the journal's.
    Raises DataLoss for records that were removed; UnknownTopicOrPartition for a partition that does not exist;
    CorruptObject for a damaged slice index; ObjectNotFound if the newest state refers to a slice index that the storage
    does not have, CopiesAway if the storage is not mounted.
    """
    state, tables = state or journal.state, dict(known or {})
    gone: set[Piece] = set()
    for _ in range(REPLAN_TRIES):
        wanted = [(rng, _overlapping(_partition(state, rng), rng, window)) for rng in ranges if rng.start < rng.end]
        _check_indexes(journal.objects, wanted, gone)
        pieces = {
            entry for _, entries in wanted for entry in entries if isinstance(entry, Piece) and entry not in tables
        }
        tables |= _read(journal, wanted, pieces)
        gone = pieces - tables.keys()
        if not gone:
            slices = [(rng, _slices(entries, tables, rng, window)) for rng, entries in wanted]
            rows = journal.object_rows(state, (piece.object for _, several in slices for piece in several))
            if rows is not None:
                return [one for rng, several in slices for one in _reads(rows, rng, several)]
        state = journal.refresh()
    raise DataLoss("the slice indexes were replaced faster than they could be read; try again")


def _read(journal: Journal, wanted: Sequence[tuple[OffsetRange, Sequence[Slice | Piece]]], pieces: Set[Piece]) -> Known:
    """The rows of each piece.  Raises CorruptObject, with the offsets that the index has, and what to do."""
    try:
        return journal.run(read_tables(pieces))
    except CorruptObject as error:
        tables = journal.run(read_sound(pieces))
        for rng, entries in wanted:
            for piece in entries:
                if isinstance(piece, Piece) and piece in pieces and piece not in tables:
                    name = f"{journal.objects.url}/{piece.object}"
                    raise damaged_object(name, rng.topic, rng.partition, piece.start, piece.end, error) from error
        raise


def _check_indexes(
    store: ObjectStore, wanted: Iterable[tuple[OffsetRange, Sequence[Slice | Piece]]], gone: Set[Piece]
) -> None:
    """Raises ObjectNotFound if a refreshed state still refers to indexes that were missing; CopiesAway if the log's own
    root, which has them, is not mounted.
    """
    for rng, entries in wanted:
        for entry in entries:
            if entry in gone:
                raise_if_away(store, entry.object)
                name = f"{store.url}/{entry.object}"
                raise missing_object(name, entry.object, rng.topic, rng.partition, entry.start, entry.end)


def likely_pieces(
    state: State, topic: str, partitions: Sequence[int] | None, first: Position, last: Position, window: Window | None
) -> list[Piece]:
    """Pieces of slice indexes that a read will probably need, according to a state that may be outdated.

    They can be read while the state is refreshed.  A missing piece costs a round trip, a superfluous one a request.
    """
    topic_id = state.names.get(topic)
    if topic_id is None:
        return []
    found = []
    for number, part in state.topic_partitions(topic_id):
        start = (
            first.offset if isinstance(first, At) else part.readable_end if isinstance(first, Latest) else part.start
        )
        end = last.offset if isinstance(last, At) else part.readable_end
        if partitions is None or number in partitions:
            rng = OffsetRange(topic, topic_id, number, start, end)
            found += [entry for entry in _overlapping(part, rng, window) if isinstance(entry, Piece)]
    return found


def _partition(state: State, rng: OffsetRange) -> Partition:
    part = state.partitions.get((rng.topic_id, rng.partition))
    topic = state.topics.get(rng.topic_id)
    if part is None or topic is None or topic.deleted:
        raise UnknownTopicOrPartition(f"partition {rng.partition} of topic {rng.topic!r} does not exist (any more)")
    if rng.start < part.start or rng.end > part.readable_end:
        raise DataLoss(
            f"offsets {rng.start} to {rng.end} of {rng.topic}-{rng.partition} are out of range, "
            f"it has {part.start} to {part.readable_end}"
        )
    return part


def _overlapping(part: Partition, rng: OffsetRange, window: Window | None) -> list[Slice | Piece]:
    entries = part.entries
    low = bisect.bisect_right(entries, rng.start, key=lambda entry: entry.end)
    high = bisect.bisect_left(entries, rng.end, key=lambda entry: entry.start)
    return [entry for entry in entries[low:high] if within(entry, window)]


def end_of_slices(part: Partition, start: int, most: int) -> int:
    """About where so many slices of a partition end, from an offset on; its end if it has fewer.

    The slices of a piece are taken for equally long.
    """
    low = bisect.bisect_right(part.entries, start, key=lambda entry: entry.end)
    for entry in part.entries[low:]:
        first, rows = max(start, entry.start), entry.end - entry.start
        count = entry.slices if isinstance(entry, Piece) else 1
        left = -(-(entry.end - first) * count // rows)
        if left >= most:
            return min(entry.end, first + -(-rows * most // count))
        most -= left
    return part.readable_end


def within(entry: Slice | Piece, window: Window | None) -> bool:
    """Whether an entry may have records that the window does not skip."""
    if window is None:
        return True
    if entry.min_us >= window.end or entry.max_us < window.start:
        return False
    return window.rows is None or isinstance(entry, Piece) or window.rows.may_match(entry.stats)


def _slices(entries: Sequence[Slice | Piece], tables: Known, rng: OffsetRange, window: Window | None) -> list[Slice]:
    """The overlapping entries, with pieces resolved to slices."""
    found: list[Slice] = []
    for entry in entries:
        if isinstance(entry, Piece):
            found += _sealed(tables[entry], rng, window)
        else:
            found.append(entry)
    return found


def _sealed(table: pa.Table, rng: OffsetRange, window: Window | None) -> list[Slice]:
    """The slices of a piece that overlap the range and the window.  Only those are converted to objects."""
    low = int(np.searchsorted(numbers(table["end"]), rng.start, "right"))
    high = int(np.searchsorted(numbers(table["start"]), rng.end))
    rows = table.slice(low, high - low)
    if window is None:
        return slices_of(rows)
    found = np.flatnonzero((numbers(rows["min_us"]) < window.end) & (numbers(rows["max_us"]) >= window.start))
    rows = rows.slice(found[0], found[-1] - found[0] + 1) if len(found) else rows.slice(0, 0)
    return [piece for piece in slices_of(rows) if within(piece, window)]


def _reads(objects: Mapping[str, ObjectRow], rng: OffsetRange, slices: Sequence[Slice]) -> Iterator[SliceRead]:
    """The overlapping part of each slice, in order.  Works column by column, because there may be a million."""
    rows = [objects[piece.object] for piece in slices]
    starts, ends = [piece.start for piece in slices], [piece.end for piece in slices]
    starts[:1] = [max(start, rng.start) for start in starts[:1]]
    ends[-1:] = [min(end, rng.end) for end in ends[-1:]]
    return map(
        SliceRead,
        repeat(rng.topic),
        repeat(rng.topic_id),
        repeat(rng.partition),
        starts,
        ends,
        slices,
        [row.index_position for row in rows],
        [row.size for row in rows],
    )


class Chunk(NamedTuple):
    """Records [start, end), and their approximate size."""

    start: int
    end: int
    bytes: int


def chunks(part: Partition, start: int, end: int) -> Iterator[Chunk]:
    """Records [start, end) of a partition in chunks, as fine as the state alone allows; reads nothing."""
    for entry in part.entries:
        low, high = max(entry.start, start), min(entry.end, end)
        if low < high:
            size = entry.bytes if isinstance(entry, Piece) else entry.length
            yield Chunk(low, high, max(1, size * (high - low) // (entry.end - entry.start)))
