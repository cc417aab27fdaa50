"""Which records a pass of compaction over one partition removes: those that its map of newest offsets supersedes.

The map and the comparison with it read the keys alone, and those of the dirty part once.  A step of a pass has all of
its slices in a state.  The next step may have another state, because the records before the end of a pass never change,
except that others remove some, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.journal.failure_isolation import index_error
from spark_log.journal.index_reads import read_known
from spark_log.journal.set_aside import NEVER, SetAside, Unreadable, is_of_slice
from spark_log.journal.store_operations import Steps
from spark_log.metadata.maintenance.swaps import resolve
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.rewriting.slice_reads import chunks, decode_into, read_chunk
from spark_log.segment.keys.newest_offsets import NewestOffsets
from spark_log.segment.offsets import as_array, shifted
from spark_log.segment.reader import Decoded
from spark_log.segment.schema import TOMBSTONE

_Mask = npt.NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class Pass:
    """A pass that has begun."""

    key: TopicKey
    dirty: tuple[int, int]
    """The dirty part, as far as it may be cleaned: [start, end)."""
    tombstones_from: int
    """Tombstones before this offset go."""
    history: str
    """The history of the log when the pass began: its map has the offsets of that history."""
    newest: NewestOffsets
    """The newest offset of each key, of the dirty records before `at`; once the map is complete, before `end`."""
    at: int
    """The dirty records before this offset are in the map; once it is complete, all records before it are clean."""
    end: int | None = None
    """The end of the pass; None: the map is not complete."""
    survivors: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Once the map is complete: the dirty records before `end` that stay, ascending."""
    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many records the dirty slices have, by start and end."""
    tries: int = 0
    """Steps without progress, because others changed the partition."""
    aside: SetAside = field(default_factory=SetAside)
    """Slices that the pass leaves out, because they cannot be read."""
    unread: list[Unreadable] = field(default_factory=list)
    """Slices that the last step has left out."""
    partial_from: int = NEVER
    """The start of the first slice that was left out."""

    @property
    def is_done(self) -> bool:
        """All records before its end are clean."""
        return self.end is not None and self.at >= self.end

    @property
    def is_partial(self) -> bool:
        """Whether slices before its end were left out.  Then the cleaner point may not move, because tombstones before
        it go: every record there must have been compared with all that are newer."""
        return self.end is not None and self.partial_from < self.end

    def begin_again(self, newest: NewestOffsets) -> None:
        """With an empty map."""
        self.newest, self.at, self.end, self.partial_from = newest, self.dirty[0], None, NEVER
        self.rows.clear()

    def add(self, piece: Slice, batches: Iterable[Decoded]) -> None:
        """Add the keys of a slice to the map, until the map is full.

        Batches before the dirty part are left out: otherwise they could fill the map before it has a dirty record.
        """
        for offsets, records in batches:
            if self.newest.is_full:
                return
            end = piece.start + int(offsets[-1]) + 1
            if end <= self.dirty[0]:
                continue
            self.newest.add(records.column("key"), shifted(offsets, piece.start))
            self.at = end
            self.rows[piece.start, piece.end] += len(offsets)

    def leave_out(self, piece: Slice, error: Exception) -> None:
        """Continue without a slice that cannot be read.  Raises Unreadable if the map has some of its records: it must
        not have records that other ones of their slice may supersede.  Raises other errors as they are."""
        if not is_of_slice(error):
            raise error
        unreadable = Unreadable(piece, error)
        if self.end is None and self.rows.pop((piece.start, piece.end)):
            raise unreadable from error
        self.unread.append(unreadable)

    def leave_out_index(self, piece: Slice, error: Exception) -> None:
        """Does what `leave_out` does, with all slices of an index.  piece: the slice that stands for them."""
        unreadable = Unreadable(piece, error, is_index=True)
        if self.end is None and self.at > max(piece.start, self.dirty[0]):
            raise unreadable from error
        self.unread.append(unreadable)

    def end_map(self, start: int, end: int) -> None:
        """The map is complete: the pass continues at the start of the partition."""
        self.at, self.end, self.survivors = start, end, self.newest.offsets()

    def is_dirty(self, piece: Slice) -> bool:
        """Whether all records of a slice are in the map.  Then their offsets say which stay, without their keys."""
        assert self.end is not None, "the map is complete"
        return self.dirty[0] <= piece.start and piece.end <= self.end and (piece.start, piece.end) in self.rows

    def may_lose(self, piece: Slice) -> bool:
        """Whether a dirty slice has more records than stay."""
        low, high = np.searchsorted(self.survivors, (piece.start, piece.end))
        return bool(high - low < self.rows[piece.start, piece.end])

    def survive(self, piece: Slice, batch: Decoded) -> _Mask:
        """Which records of a batch of a dirty slice stay."""
        offsets = as_array(shifted(batch.offsets, piece.start))
        low, high = np.searchsorted(self.survivors, (offsets[0], offsets[-1] + 1))
        return np.isin(offsets, self.survivors[low:high], assume_unique=True)

    def stays(self, piece: Slice, batch: Decoded) -> _Mask:
        """Which records of a batch of any slice stay."""
        offsets = shifted(batch.offsets, piece.start)
        return self.newest.keep(batch.records.column("key"), _values(batch.records), offsets, self.tombstones_from)


def _values(records: pa.RecordBatch) -> pa.Array | None:
    """A column that is null where a record has no value; None if that was not read."""
    if TOMBSTONE.name in records.schema.names:
        return pc.if_else(records.column(TOMBSTONE.name), pa.scalar(None, pa.bool_()), True)
    return records.column("value") if "value" in records.schema.names else None


def map_keys(state: State, one: Pass, bytes_max: int) -> Steps[int]:
    """Read keys of the dirty part into the map, and find the end of the pass if that completes it.

    Returns the bytes of the slices that were read, about `bytes_max`.  Raises Unreadable if the map has to be made
    again without a slice or a slice index.
    """
    read = 0
    for chunk in chunks((yield from _slices(state, one, one.at, one.dirty[1]))):
        if read >= bytes_max:
            return read
        for piece, blob in zip(chunk, (yield from read_chunk(state, chunk)), strict=True):
            one.rows[piece.start, piece.end] = 0
            try:
                yield from decode_into(state, one.key, piece, blob, partial(one.add, piece), ("key",))
            except Exception as error:  # noqa: BLE001  raised again unless it is about the slice
                one.leave_out(piece, error)
            read += piece.length
            if one.newest.is_full:
                one.end_map(state.partitions[one.key].start, one.at)
                return read
            one.at = piece.end
    one.end_map(state.partitions[one.key].start, one.dirty[1])
    return read


@dataclass(slots=True)
class Compared:
    """Adjacent slices of a pass, and what they lose."""

    of: Pass
    slices: Sequence[Slice]
    until: int
    """The end of the pass."""
    losing: set[int] = field(default_factory=set)
    """The starts of the slices that lose records."""
    _masks: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)
    """Which records stay, a bit each, by the first offset of a batch; without batches of which all stay, and without
    those of dirty slices."""
    _gone: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many records were removed, by the start of the slice and the first offset of the batch."""

    @property
    def end(self) -> int:
        """Records before this offset have been compared."""
        return self.slices[-1].end if self.slices else self.until

    @property
    def bytes(self) -> int:
        """Size of the slices."""
        return sum(piece.length for piece in self.slices)

    def compare(self, piece: Slice, batches: Iterable[Decoded]) -> None:
        """Find the records of a slice that compaction removes."""
        for batch in batches:
            stays = self.of.stays(piece, batch)
            if not stays.all():
                self.losing.add(piece.start)
                self._masks[_first(piece, batch)] = np.packbits(stays)

    def keep(self, piece: Slice, batch: Decoded) -> _Mask | None:
        """Which records of a batch stay; None: all."""
        first = _first(piece, batch)
        if self.of.is_dirty(piece):
            stays = self.of.survive(piece, batch)
        elif (bits := self._masks.get(first)) is not None:
            stays = np.unpackbits(bits, count=batch.records.num_rows).astype(bool)
        else:
            return None
        self._gone[piece.start, first] = len(stays) - int(np.count_nonzero(stays))
        return stays

    def removed(self, slices: Iterable[Slice]) -> int:
        """How many records of slices were removed, which have been rewritten."""
        starts = {piece.start for piece in slices}
        return sum(gone for (start, _), gone in self._gone.items() if start in starts)


def _first(piece: Slice, batch: Decoded) -> int:
    return piece.start + int(batch.offsets[0])


def compare_keys(state: State, one: Pass, bytes_max: int) -> Steps[Compared]:
    """Find the records that the next slices of a pass lose.  Dirty slices are not read again.

    bytes_max:  the maximum size of these slices together.  A single larger slice is compared alone.
    """
    assert one.end is not None, "the map is complete"
    slices = yield from _slices(state, one, one.at, one.end)
    found = Compared(one, list(_first_of(slices, bytes_max)), one.end)
    dirty = [piece for piece in found.slices if one.is_dirty(piece)]
    found.losing.update(piece.start for piece in dirty if one.may_lose(piece))
    for chunk in chunks([piece for piece in found.slices if not one.is_dirty(piece)]):
        for piece, blob in zip(chunk, (yield from read_chunk(state, chunk)), strict=True):
            # Values are decoded only to tell tombstones that may go.
            columns = ("key", TOMBSTONE.name) if piece.start < one.tombstones_from else ("key",)
            try:
                yield from decode_into(state, one.key, piece, blob, partial(found.compare, piece), columns)
            except Exception as error:  # noqa: BLE001  raised again unless it is about the slice
                one.leave_out(piece, error)
                found.losing.discard(piece.start)
    return found


def _first_of(slices: Sequence[Slice], bytes_max: int) -> Iterator[Slice]:
    size = 0
    for number, piece in enumerate(slices):
        size += piece.length
        if number and size > bytes_max:
            return
        yield piece


def _slices(state: State, one: Pass, start: int, end: int) -> Steps[list[Slice]]:
    """The live slices of a partition that overlap [start, end), without those that cannot be read.

    Raises Unreadable if the map has records of a slice index that cannot be read.
    """
    key = one.key
    part = state.partitions[key]
    start = max(start, part.start)
    entries = [entry for entry in part.entries if entry.end > start and entry.start < end]
    resolved, unread = yield from read_known(entries)
    found = [piece for piece in resolve(entries, resolved) if piece.end > start and piece.start < end]
    aside = one.aside.starts(key, found)
    one.partial_from = min([one.partial_from, *aside])
    for piece, why in unread.items():
        if piece.start not in aside:
            one.leave_out_index(resolved[piece][0], index_error(state, key, piece, why))
    left_out = aside | {piece.start for piece in unread}
    return [piece for piece in found if piece.start not in left_out]
