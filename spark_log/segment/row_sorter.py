"""Sorts rows by destination, which is a number for each topic-partition of a write, and by data columns.

Rows are held until every destination has a full batch on average, or until they take too much memory.  One sort then
puts them into their final order, and each batch to encode is a slice of the sorted rows.  Rows of destinations with few
rows are held until the next sort, because a short batch costs almost as much as a long one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.segment.arrays.numpy_arrays import array_of
from spark_log.segment.row_batches import bytes_max, concat, row_bytes, unpinned
from spark_log.segment.schema import is_same_base

Destinations = npt.NDArray[np.integer[Any]]
_Counts = npt.NDArray[np.int64]
"""Rows, by destination."""
HELD_BYTES = 32 << 20
"""Rows are sorted when they take this many bytes, even if their batches are short."""
_COPY_BYTES = 4 << 20
"""Sorted rows are copied in parts of about this many bytes, so that encoding finds them in the processor's cache."""


class RowSorter:
    """Holds rows in the order in which they were added, until there are enough rows or bytes to sort.

    batch_rows, batch_bytes: a batch is full when it reaches either (raw bytes; `bytes_max`).
    """

    def __init__(self, batch_rows: int, batch_bytes: int, held_bytes: int = HELD_BYTES) -> None:
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._held_bytes = held_bytes
        self.bytes = 0
        """Raw bytes of the rows that are held."""
        self._hold([], [], np.zeros(0, np.int64))

    def _hold(self, batches: list[pa.RecordBatch], destinations: list[Destinations], sizes: _Counts) -> None:
        self._batches, self._destinations, self._sizes = batches, destinations, sizes
        self.bytes = sum(batch.nbytes for batch in batches)

    def add(self, records: pa.RecordBatch, destinations: Destinations, count: int) -> None:
        """Add records.  destinations: in [0, count), one for each record; `count` never decreases."""
        self._batches.append(unpinned(records))
        self._destinations.append(destinations)
        sizes = np.bincount(destinations, minlength=count)
        sizes[: len(self._sizes)] += self._sizes
        self._sizes = sizes
        self.bytes += records.nbytes

    def fits(self, records: pa.RecordBatch) -> bool:
        """Whether the records may be added to those that are held.

        A large batch may not: joining it would copy it, and the joined array could exceed Arrow's 2 GiB.  Nor may
        records with other columns of data.
        """
        if not self._batches:
            return True
        return records.nbytes < self._held_bytes and is_same_base(records.schema, self._batches[-1].schema)

    @property
    def is_full(self) -> bool:
        """Whether the held rows take too much memory."""
        return self.bytes >= self._held_bytes

    @property
    def is_due(self) -> bool:
        """Whether rows should be taken now."""
        if self.is_full:
            return True
        return int(self._sizes.sum()) >= self._full_batch() * int(np.count_nonzero(self._sizes))

    def take_batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows that make full batches, as (destination, rows), by ascending destination; the other rows stay.

        If the held rows take too much memory, also the rows of the destinations with the most bytes, until half of the
        memory is free.
        """
        return self._take(self._ready()) if self._batches else iter(())

    def take_all(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All held rows as (destination, rows), by ascending destination."""
        return self._take(self._sizes) if self._batches else iter(())

    def _full_batch(self) -> int:
        """Rows of a full batch.  Slightly fewer than fit on average, because sizes vary."""
        limit = bytes_max(self._batches[-1].schema, self._batch_bytes)
        fitting = int(0.9 * limit * int(self._sizes.sum())) // max(self.bytes, 1)
        return max(min(self._batch_rows, fitting), 1)

    def _ready(self) -> _Counts:
        """How many rows of each destination to take: the first ones."""
        sizes, full = self._sizes, self._full_batch()
        rest = sizes % full
        ready = np.where(2 * rest >= full, sizes, sizes - rest)
        if self.is_full:
            largest = self._largest(ready)
            ready[largest] = sizes[largest]
        return ready

    def _largest(self, ready: _Counts) -> npt.NDArray[np.intp]:
        """The destinations with the most bytes besides the ready rows, until half of all bytes are ready."""
        left, wanted = np.zeros(len(ready)), -(-self.bytes // 2)
        for batch, destinations in zip(self._batches, self._destinations, strict=True):
            left += np.bincount(destinations, row_bytes(batch), len(left))
        left *= 1 - ready / np.maximum(self._sizes, 1)
        most = np.argsort(-left, kind="stable")
        missing = float(left.sum()) - wanted
        return most[: int(np.searchsorted(np.cumsum(left[most]), missing)) + 1] if missing > 0 else most[:0]

    def _take(self, taken: _Counts) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The first `taken` rows of each destination; the other rows are held again."""
        records, order = self._sort(taken)
        present = np.flatnonzero(taken)
        ends = np.cumsum(taken[present])
        together = max(_COPY_BYTES * len(records) // max(records.nbytes, 1), 1)
        first = start = 0
        while first < len(present):
            last = max(int(np.searchsorted(ends, start + together)), first + 1)
            part = _gathered(records, order, start, int(ends[last - 1]))
            for destination, end in zip(present[first:last].tolist(), ends[first:last].tolist(), strict=True):
                yield destination, part.slice(0, end - start)
                part, start = part.slice(end - start), end
            first = last

    def _sort(self, taken: _Counts) -> tuple[pa.RecordBatch, npt.NDArray[np.intp] | None]:
        """Held rows, and the indexes of those to take, by destination, each in the order in which it was added.

        No indexes: all rows, which are in that order already.
        """
        schema = max((batch.schema for batch in self._batches), key=len)
        records, destinations, sizes = concat(self._batches, schema), np.concatenate(self._destinations), self._sizes
        order = _stable_order(destinations, len(sizes))
        self._hold([], [], sizes - taken)
        if (taken == sizes).all():
            return records, order
        if np.count_nonzero(sizes) == 1:
            count = int(taken.sum())
            self._hold([unpinned(records.slice(count))], [destinations[count:]], sizes - taken)
            return records.slice(0, count), None
        order = np.arange(len(destinations)) if order is None else order
        first = _first_rows(taken, sizes)
        left = order[~first]
        self._hold([_gathered(records, left, 0, len(left))], [destinations[left]], sizes - taken)
        return records, order[first]


def _gathered(records: pa.RecordBatch, order: npt.NDArray[np.intp] | None, start: int, end: int) -> pa.RecordBatch:
    """The rows at some of the indexes; without indexes a slice, which is not a copy."""
    if order is None:
        return records.slice(start, end - start)
    return pc.take(records, array_of(order[start:end], pa.int64()), boundscheck=False)


def _stable_order(destinations: Destinations, count: int) -> npt.NDArray[np.intp] | None:
    """None if they are in order.  numpy uses a radix sort for 8 and 16 bit numbers: 3.5 ns a row, int32 takes 28."""
    small: Destinations = destinations.astype(
        np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32
    )
    return None if (small[1:] >= small[:-1]).all() else np.argsort(small, kind="stable")


def _first_rows(taken: _Counts, sizes: _Counts) -> npt.NDArray[np.bool_]:
    """Which of the sorted rows are among the first `taken` of their destination."""
    runs = np.stack((taken, sizes - taken), axis=1).ravel()
    return np.repeat(np.tile([True, False], len(sizes)), runs)


def sorted_rows(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The rows by these columns, as far as they have them, ascending, nulls last; equal rows keep their order."""
    keys = [(name, "ascending") for name in columns if name in rows.schema.names]
    if rows.num_rows < 2 or not keys:
        return rows
    order = pc.sort_indices(rows, sort_keys=keys)
    return pc.take(rows, order, boundscheck=False)
