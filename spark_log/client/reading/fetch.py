"""Reading slices from storage, batch by batch.

A slice of one batch, or a small slice, takes one ranged read, verified by the slice's checksum.  Other slices are read
through the object's index: the overlapping batches, adjacent ones in one request.  From remote storage, the next
requests are sent while the current batches are decoded.  `touched` predicts the size of a read.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.client.reading.plan import SliceRead, Window
from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.journal.missing_indexes import damaged_object, missing_object
from spark_log.model import APPEND_TIME, Slice
from spark_log.segment.reader import (
    BatchRef,
    Index,
    Place,
    decode_batch,
    decode_run,
    find_batches,
    first_at_or_after,
    first_batch_at_or_after,
    parse_index,
)
from spark_log.segment.schema import TIMESTAMP
from spark_log.store.base import ObjectStore
from spark_log.text import counted

WHOLE_BYTES_MAX = 1 << 20
"""A run up to this size is read in one request."""
SLICES_AHEAD = 8
"""Small slices, and indexes of objects, that are requested concurrently."""
INDEXES_MAX = 16
"""Indexes that a reader keeps: an object with slices of several partitions is read again and again."""
GROUP_BYTES_MAX = {"local": 1 << 20, "remote": 8 << 20}
"""Adjacent batches are read together up to this size."""
GROUPS_AHEAD = 4
"""Groups of batches that are requested concurrently: a task holds four times 8 MiB."""


Offsets: TypeAlias = "range | npt.NDArray[np.int64]"
"""Ascending; a range where there are no holes."""


class Fetched(NamedTuple):
    """Records of one partition, at least one, and the offset of each."""

    read: SliceRead
    offsets: Offsets
    records: pa.RecordBatch

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return int(self.offsets[-1]) + 1

    def head(self, rows: int) -> Fetched:
        """The first `rows` records."""
        return Fetched(self.read, self.offsets[:rows], self.records.slice(0, rows))

    def tail(self, rows: int) -> Fetched:
        """The records after the first `rows`."""
        return Fetched(self.read, self.offsets[rows:], self.records.slice(rows))

    def offset_array(self) -> npt.NDArray[np.int64]:
        """int64, one a record."""
        if isinstance(self.offsets, range):
            return np.arange(self.offsets.start, self.offsets.stop, dtype=np.int64)
        return self.offsets


def fetch(
    store: ObjectStore,
    read: SliceRead,
    columns: Sequence[str] | None = None,
    window: Window | None = None,
    coming: Future[bytes] | None = None,
) -> Iterator[Fetched]:
    """The records of one planned read, in offset order.

    columns:  of key, value, timestamp, headers; None for all that exist.
    window:   batches that cannot have such timestamps are skipped, so there may be gaps between results.
    coming:   the bytes of the slice or of its object's index, whichever is read first, if `asked_ahead` fetches them.
    Raises ObjectNotFound if the object is gone (plan again by offset), CorruptObject for damaged bytes.
    """
    piece = read.slice
    place = Place(piece.object, read.topic, read.topic_id, read.partition)
    if _in_one_go(piece):
        batches = _whole(store, read, columns, coming, place)
    else:
        batches = _by_index(store, read, columns, window, place, coming)
    with _named(store, read):
        for first, records in batches:
            yield from _cut(read, first, records)


@contextmanager
def _named(store: ObjectStore, read: SliceRead) -> Iterator[None]:
    """Add the affected records to the error for a missing object."""
    try:
        yield
    except ObjectNotFound as error:
        name = f"{store.url}/{error.key}"
        raise missing_object(name, error.key, read.topic, read.partition, read.slice.start, read.slice.end) from None


@contextmanager
def _intact(store: ObjectStore, read: SliceRead, start: int, end: int) -> Iterator[None]:
    """Add the unreadable records [start, end) and the next step to the error for a corrupt object."""
    try:
        yield
    except CorruptObject as error:
        name = f"{store.url}/{read.slice.object}"
        raise damaged_object(name, read.topic, read.partition, start, end, error) from error


def _whole(
    store: ObjectStore, read: SliceRead, columns: Sequence[str] | None, coming: Future[bytes] | None, place: Place
) -> Iterator[tuple[int, pa.RecordBatch]]:
    piece = read.slice
    data = _get_whole(store, piece) if coming is None else coming.result()
    first = piece.start
    with _intact(store, read, piece.start, piece.end):
        for records in decode_run(data, piece, columns, place=place):
            yield first, records
            first += records.num_rows
        if first != piece.end:
            raise CorruptObject(
                f"the data in {place.at(piece.position)} has {counted(first - piece.start, 'record')}, not "
                f"{piece.end - piece.start:,}"
            )


def _get_whole(store: ObjectStore, piece: Slice) -> bytes:
    return store.get(piece.object, piece.position, piece.position + piece.length)


def asked_ahead(store: ObjectStore, reads: Sequence[SliceRead]) -> Iterator[tuple[SliceRead, Future[bytes] | None]]:
    """The reads, each with the bytes of its slice if that is small, or else of its object's index, which is fetched
    once.

    Those of the next `SLICES_AHEAD` slices are fetched in the background from remote storage, so a range of many
    commits does not wait for each in turn.
    """
    if store.local or len(reads) < 2:
        yield from ((read, None) for read in reads)
        return
    pool, asked = _pool(os.getpid()), deque[Future[bytes] | None]()
    indexes: OrderedDict[str, Future[bytes]] = OrderedDict()

    def ask(later: SliceRead) -> Future[bytes] | None:
        if _in_one_go(later.slice):
            small = later.slice.length <= WHOLE_BYTES_MAX
            return pool.submit(_get_whole, store, later.slice) if small else None
        name = later.slice.object
        if name not in indexes:
            indexes[name] = pool.submit(_get_index, store, later)
        indexes.move_to_end(name)
        if len(indexes) > INDEXES_MAX:
            indexes.popitem(last=False)
        return indexes[name]

    for number, read in enumerate(reads):
        asked.extend(map(ask, reads[number + len(asked) : number + SLICES_AHEAD]))
        yield read, asked.popleft()


def _by_index(
    store: ObjectStore,
    read: SliceRead,
    columns: Sequence[str] | None,
    window: Window | None,
    place: Place,
    coming: Future[bytes] | None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    piece = read.slice
    with _intact(store, read, piece.start, piece.end):
        index = load_index(store, read) if coming is None else _parsed(coming.result(), read)
        groups = _groups(_wanted(index, read, window, place), GROUP_BYTES_MAX["local" if store.local else "remote"])
    if groups and _wants_all(read, window):
        # Including its schema and end mark: `touched` knows the size of a whole run without the index.
        groups[0] = groups[0]._replace(start=piece.position)
        groups[-1] = groups[-1]._replace(end=piece.position + piece.length)
    for group, data in _loaded(store, piece.object, groups):
        for ref in group.refs:
            at, first = ref.position - group.start, piece.start + ref.first
            with _intact(store, read, first, first + ref.rows):
                records = decode_batch(data[at : at + ref.length], ref, index, columns, place=place)
            yield first, records


def _in_one_go(piece: Slice) -> bool:
    return piece.batches == 1 or piece.length <= WHOLE_BYTES_MAX


def _wants_all(read: SliceRead, window: Window | None) -> bool:
    """Whether every batch of the slice overlaps the requested range and window."""
    piece = read.slice
    within = window is None or (window[0] <= piece.min_us and piece.max_us < window[1])
    return within and (read.start, read.end) == (piece.start, piece.end)


def _wanted(index: Index, read: SliceRead, window: Window | None, place: Place) -> list[BatchRef]:
    """Batches of the slice that overlap the read and the window."""
    piece = read.slice
    window = None if piece.time_kind == APPEND_TIME else window
    return find_batches(index, piece, (read.start - piece.start, read.end - piece.start), window, place=place)


class _Group(NamedTuple):
    """Adjacent batches and their byte range."""

    start: int
    end: int
    refs: list[BatchRef]


def _groups(refs: Sequence[BatchRef], bytes_max: int) -> list[_Group]:
    """Adjacent batches, up to `bytes_max` together."""
    groups: list[_Group] = []
    for ref in refs:
        end = ref.position + ref.length
        last = groups[-1] if groups else None
        if last and last.end == ref.position and end - last.start <= bytes_max:
            groups[-1] = _Group(last.start, end, [*last.refs, ref])
        else:
            groups.append(_Group(ref.position, end, [ref]))
    return groups


def _loaded(store: ObjectStore, name: str, groups: Sequence[_Group]) -> Iterator[tuple[_Group, memoryview]]:
    """Groups with their bytes; from remote storage, the next ones are fetched ahead."""
    if store.local or len(groups) < 2:
        for group in groups:
            yield group, memoryview(store.get(name, group.start, group.end))
        return
    pool, asked = _pool(os.getpid()), deque[Future[bytes]]()
    for number, group in enumerate(groups):
        for later in groups[number + len(asked) : number + GROUPS_AHEAD]:
            asked.append(pool.submit(store.get, name, later.start, later.end))
        yield group, memoryview(asked.popleft().result())


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """One pool per process: Spark forks its workers, and threads do not survive a fork."""
    return ThreadPoolExecutor(SLICES_AHEAD, thread_name_prefix=f"pylog-fetch-{pid}")


def load_index(store: ObjectStore, read: SliceRead) -> Index:
    """The index of a read's object."""
    return _parsed(_get_index(store, read), read)


def _get_index(store: ObjectStore, read: SliceRead) -> bytes:
    return store.get(read.slice.object, read.index_position, read.object_size)


def _parsed(data: bytes, read: SliceRead) -> Index:
    return parse_index(data, name=read.slice.object, object_size=read.object_size)


def _cut(read: SliceRead, first: int, records: pa.RecordBatch) -> Iterator[Fetched]:
    """The requested part of a batch, with the log append time if the slice has one."""
    low, high = max(read.start - first, 0), min(read.end - first, records.num_rows)
    if low >= high:
        return
    if (low, high) != (0, records.num_rows):
        records = records.slice(low, high - low)
    if read.slice.time_kind == APPEND_TIME and "timestamp" in records.schema.names:
        at = records.schema.get_field_index("timestamp")
        stamp = pa.repeat(pa.scalar(read.slice.min_us, TIMESTAMP), records.num_rows)
        records = records.set_column(at, records.schema.field(at), stamp)
    yield Fetched(read, range(first + low, first + high), records)


def first_offset_at(store: ObjectStore, read: SliceRead, time_us: int) -> int | None:
    """Offset of the first record of a slice, from the read's start on, with a timestamp at or after `time_us`."""
    piece = read.slice
    if piece.time_kind == APPEND_TIME:
        return read.start if piece.min_us >= time_us else None
    if read.start == piece.start and piece.batches > 1:
        place = Place(piece.object, read.topic, read.topic_id, read.partition)
        with _named(store, read), _intact(store, read, piece.start, piece.end):
            index = load_index(store, read)
            ref = first_batch_at_or_after(index, piece, time_us, place=place)
            if ref is None:
                return None
            data = store.get(piece.object, ref.position, ref.position + ref.length)
            row = first_at_or_after([decode_batch(data, ref, index, ["timestamp"], place=place)], time_us)
        return None if row is None else piece.start + ref.first + row
    for part in fetch(store, read, ["timestamp"]):
        row = first_at_or_after([part.records], time_us)
        if row is not None:
            return int(part.offsets[row])
    return None


class Touched(NamedTuple):
    """The extent of a read."""

    records: int
    """The number of requested records in the batches."""
    batches: int
    bytes: int
    """Size of the batches, and of the indexes that are needed to find them."""


def touched(store: ObjectStore, read: SliceRead, window: Window | None = None) -> Touched:
    """The exact extent of `fetch` with the same arguments.  Reads an index only for a part of a larger slice."""
    piece, records = read.slice, read.end - read.start
    if _in_one_go(piece):
        return Touched(records, piece.batches, piece.length)
    of_index = read.object_size - read.index_position
    if _wants_all(read, window):
        return Touched(records, piece.batches, of_index + piece.length)
    place = Place(piece.object, read.topic, read.topic_id, read.partition)
    refs = _wanted(load_index(store, read), read, window, place)
    low, high = read.start - piece.start, read.end - piece.start
    records = sum(min(ref.first + ref.rows, high) - max(ref.first, low) for ref in refs)
    return Touched(records, len(refs), of_index + sum(ref.length for ref in refs))
