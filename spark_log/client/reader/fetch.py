"""Reading slices from storage, batch by batch.

A slice of one batch, or a small slice, takes one ranged read, verified by the slice's checksum.  Other slices are read
through the object's index: the overlapping batches, adjacent ones in one request.  From remote storage, the next
requests are sent while the current batches are decoded, a whole slice of up to 8 MiB takes one request, and small
slices that are near each other in one object share a request.  `touched` predicts the size of a read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.request_ahead import (
    ALONE,
    GROUP_BYTES_MAX,
    Coming,
    RequestAhead,
    SentRequest,
    is_group,
    is_small,
    wants_all,
)
from spark_log.conditions import Window
from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.journal.storage.missing_indexes import damaged_object, missing_object
from spark_log.model import APPEND_TIME
from spark_log.roots.broker_roots import ReplicatedStore, raise_if_away, sources_of
from spark_log.roots.read_failover import BoundedStore, from_sources, read_on
from spark_log.segment.offsets import Offsets, as_array, shifted
from spark_log.segment.reader import (
    BatchRef,
    Decoded,
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
from spark_log.segment.value_read import ValueRead, no_records
from spark_log.store.base import ObjectStore


class Fetched(NamedTuple):
    """Records of one partition, and the offset of each.  There are none if all offsets up to `end` are holes."""

    read: SliceRead
    offsets: Offsets
    records: pa.RecordBatch
    end: int
    """The offset to continue at: after the last record, and after holes behind it."""

    def head(self, rows: int) -> Fetched:
        """The first `rows` records, at least one and fewer than there are."""
        offsets = self.offsets[:rows]
        return Fetched(self.read, offsets, self.records.slice(0, rows), int(offsets[-1]) + 1)

    def tail(self, rows: int) -> Fetched:
        """The records after the first `rows`."""
        return Fetched(self.read, self.offsets[rows:], self.records.slice(rows), self.end)

    def offset_array(self) -> npt.NDArray[np.int64]:
        """int64, one a record."""
        return as_array(self.offsets)


def fetch(
    store: ObjectStore,
    read: SliceRead,
    columns: Sequence[str] | None = None,
    window: Window | None = None,
    coming: Coming | None = None,
    value: ValueRead | None = None,
    ahead: RequestAhead = ALONE,
) -> Iterator[Fetched]:
    """The records of one planned read, in offset order.  The last result ends where the read ends.

    columns:  any of key, value, timestamp, headers and the names of data columns; None: all that exist.
    window:   batches that it rules out are not read from larger slices, so there may be gaps between results.
    coming:   what is read first, if it was requested earlier.
    value:    how to read the values of a topic with a schema; None: as bytes.
    ahead:    how much of remote storage is requested ahead.
    Raises ObjectNotFound if the object is gone; CopiesAway if a root that may have it cannot be reached.  After either
    error, plan the read again, from the offset reached.
    Raises CorruptObject for damaged bytes.
    """
    store, asked = _one_root(store, read.slice.object), _Asked(read, columns, window, value, ahead)
    if isinstance(store, ReplicatedStore):
        yield from _fetch_from_any(store, asked, coming)
    else:
        yield from _fetch(store, asked, coming)


class _Asked(NamedTuple):
    """The arguments of `fetch`."""

    read: SliceRead
    columns: Sequence[str] | None
    window: Window | None
    value: ValueRead | None
    ahead: RequestAhead


def _fetch_from_any(store: ReplicatedStore, asked: _Asked, coming: Coming | None) -> Iterator[Fetched]:
    """`fetch` that continues from another root, at the same offset, where one fails or has damaged bytes."""
    read, first = asked.read, [coming]

    def of(source: ObjectStore, start: int) -> Iterator[tuple[int, Fetched]]:
        rest = asked if start == read.start else asked._replace(read=structs.replace(read, start=start))
        for part in _fetch(source, rest, first.pop() if first else None):
            yield part.end, part._replace(read=read)

    sources = store.sources(read.slice.object)
    # Bytes that were requested before may be from any of the roots: if it is damaged, all of them are asked again.
    tried = sources if coming is None else [sources[0], *sources]
    with _named(store, read), _intact(store, read, read.slice.start, read.slice.end):
        yield from read_on(read.slice.object, tried, of, read.start)


def _fetch(store: ObjectStore, asked: _Asked, coming: Coming | None) -> Iterator[Fetched]:
    read = asked.read
    in_one_go = coming.whole if coming is not None else _in_one_go(store, read, asked.window, asked.ahead)
    batches = (_whole if in_one_go else _by_index)(store, asked, coming)
    at = read.start
    with _named(store, read):
        for found in batches:
            part = _cut(read, found)
            if part is not None:
                yield part
                at = part.end
    if at < read.end:
        none = _no_records(tuple(asked.columns or ()), asked.value)
        yield Fetched(read, range(read.end, read.end), none, read.end)


_no_records = lru_cache(maxsize=256)(no_records)


@contextmanager
def _named(store: ObjectStore, read: SliceRead) -> Iterator[None]:
    """Add the affected records to the error for a missing object; CopiesAway if its root is not mounted."""
    try:
        yield
    except ObjectNotFound as error:
        if isinstance(store, BoundedStore):
            raise  # another root is read, or else the error of all of them gets this text
        if not isinstance(store, ReplicatedStore):  # which has looked at all roots
            raise_if_away(store, error.key)
        name = _with_roots(store, error.key)
        raise missing_object(name, error.key, read.topic, read.partition, read.slice.start, read.slice.end) from None


@contextmanager
def _intact(store: ObjectStore, read: SliceRead, start: int, end: int) -> Iterator[None]:
    """Add the unreadable records [start, end) and the next step to the error for a corrupt object."""
    try:
        yield
    except CorruptObject as error:
        if isinstance(store, BoundedStore):
            raise CorruptObject(str(error), start=start, end=end) from error
        if isinstance(store, ReplicatedStore) and error.start is not None and error.end is not None:
            start, end = error.start, error.end
        name = read.slice.object if isinstance(store, ReplicatedStore) else f"{store.url}/{read.slice.object}"
        raise damaged_object(name, read.topic, read.partition, start, end, error) from error


def _one_root(store: ObjectStore, name: str) -> ObjectStore:
    """The log's own root in place of all roots, if no broker may have an object."""
    if not isinstance(store, ReplicatedStore):
        return store
    first = store.sources(name)[0]
    return store if isinstance(first, BoundedStore) else first


def _with_roots(store: ObjectStore, key: str) -> str:
    """The subject of a sentence about a missing object, with the roots that may have it."""
    if not isinstance(store, ReplicatedStore):
        return f"{store.url}/{key}"
    roots = [source.url for source in store.sources(key)]
    if len(roots) == 1:
        return f"{roots[0]}/{key}"
    return f"{key} cannot be read from any of the {len(roots)} roots that may have it ({', '.join(roots)}). It"


def _whole(store: ObjectStore, asked: _Asked, coming: Coming | None) -> Iterator[Decoded]:
    read, piece = asked.read, asked.read.slice
    data = (
        coming.wait() if coming is not None else store.get(piece.object, piece.position, piece.position + piece.length)
    )
    with _intact(store, read, piece.start, piece.end):
        try:
            batches = decode_run(data, piece, asked.columns, asked.value, place=_place(read))
        except CorruptObject:
            if piece.batches == 1 or is_small(piece):
                raise
        else:
            yield from batches
            return
    # The index has a checksum of each batch: only a damaged one cannot be read.
    yield from _by_index(store, asked._replace(window=None), None)


def _by_index(store: ObjectStore, asked: _Asked, coming: Coming | None) -> Iterator[Decoded]:
    read, columns, window, value, ahead = asked
    piece, place = read.slice, _place(read)
    with _intact(store, read, piece.start, piece.end):
        index = load_index(store, read) if coming is None else _parsed(coming.wait(), read)
        bytes_max = GROUP_BYTES_MAX["local"] if store.local else ahead.group_bytes
        groups = _groups(_wanted(index, read, window), bytes_max)
    if groups and wants_all(read, window):
        # Including its schema and end mark: `touched` knows the size of a whole run without the index.
        groups[0] = groups[0]._replace(start=piece.position)
        groups[-1] = groups[-1]._replace(end=piece.position + piece.length)
    for group, data in _loaded(store, piece.object, groups, ahead):
        for ref in group.refs:
            at = ref.position - group.start
            with _intact(store, read, piece.start + ref.first, piece.start + ref.last + 1):
                found = decode_batch(data[at : at + ref.length], ref, index, columns, value, place=place)
            yield found


def _place(read: SliceRead) -> Place:
    return Place(read.slice.object, read.topic, read.topic_id, read.partition)


def _in_one_go(store: ObjectStore, read: SliceRead, window: Window | None, ahead: RequestAhead = ALONE) -> bool:
    piece = read.slice
    return piece.batches == 1 or is_small(piece) or (not store.local and is_group(read, window, ahead))


def _wanted(index: Index, read: SliceRead, window: Window | None) -> list[BatchRef]:
    """Batches of the slice that overlap the read and that the window does not skip."""
    piece = read.slice
    if window is not None and piece.time_kind == APPEND_TIME:
        window = window.any_time
    return find_batches(index, piece, (read.start - piece.start, read.end - piece.start), window, place=_place(read))


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


def _loaded(
    store: ObjectStore, name: str, groups: Sequence[_Group], ahead: RequestAhead
) -> Iterator[tuple[_Group, memoryview]]:
    """Groups with their bytes; from remote storage, the next ones are fetched ahead."""
    if store.local or len(groups) < 2:
        for group in groups:
            yield group, memoryview(store.get(name, group.start, group.end))
        return
    asked = deque[SentRequest]()
    try:
        for number, group in enumerate(groups):
            for later in groups[number + len(asked) : number + ahead.groups]:
                asked.append(SentRequest(store, name, later.start, later.end))
            yield group, memoryview(asked.popleft().wait())
    finally:
        for one in asked:
            one.cancel()


def load_index(store: ObjectStore, read: SliceRead) -> Index:
    """The index of a read's object."""
    name = read.slice.object
    return from_sources(
        name, sources_of(store, name), lambda one: _parsed(one.get(name, read.index_position, read.object_size), read)
    )


def _parsed(data: bytes, read: SliceRead) -> Index:
    return parse_index(data, name=read.slice.object, object_size=read.object_size)


def _cut(read: SliceRead, found: Decoded) -> Fetched | None:
    """The requested part of a batch, with the log append time if the slice has one; None if it has none."""
    offsets, records = shifted(found.offsets, read.slice.start), found.records
    low, high = bisect_left(offsets, read.start), bisect_left(offsets, read.end)
    if low == high:
        return None
    if (low, high) != (0, records.num_rows):
        offsets, records = offsets[low:high], records.slice(low, high - low)
    if read.slice.time_kind == APPEND_TIME and "timestamp" in records.schema.names:
        at = records.schema.get_field_index("timestamp")
        stamp = pa.repeat(pa.scalar(read.slice.min_us, TIMESTAMP), records.num_rows)
        records = records.set_column(at, records.schema.field(at), stamp)
    return Fetched(read, offsets, records, int(offsets[-1]) + 1)


def first_offset_at(store: ObjectStore, read: SliceRead, time_us: int) -> int | None:
    """Offset of the first record of a slice, from the read's start on, with a timestamp at or after `time_us`."""
    store, name = _one_root(store, read.slice.object), read.slice.object
    if isinstance(store, ReplicatedStore):
        with _named(store, read), _intact(store, read, read.slice.start, read.slice.end):
            return from_sources(name, store.sources(name), lambda source: first_offset_at(source, read, time_us))
    piece = read.slice
    if piece.time_kind == APPEND_TIME:
        return read.start if piece.min_us >= time_us else None
    if read.start == piece.start and piece.batches > 1:
        place = _place(read)
        with _named(store, read), _intact(store, read, piece.start, piece.end):
            index = load_index(store, read)
            ref = first_batch_at_or_after(index, piece, time_us, place=place)
            if ref is None:
                return None
            data = store.get(piece.object, ref.position, ref.position + ref.length)
            offset = first_at_or_after([decode_batch(data, ref, index, ["timestamp"], place=place)], time_us)
        return None if offset is None else piece.start + offset
    parts = fetch(store, read, ["timestamp"])
    return first_at_or_after((Decoded(part.offsets, part.records) for part in parts), time_us)


class Touched(NamedTuple):
    """The extent of a read."""

    records: int
    """The number of requested records in the batches; of slices with holes, at most that."""
    batches: int
    bytes: int
    """Size of the batches, and of the indexes that are needed to find them."""


def touched(store: ObjectStore, read: SliceRead, window: Window | None = None) -> Touched:
    """The exact extent of `fetch` with the same arguments.  Reads an index only for a part of a larger slice."""
    piece, records = read.slice, read.end - read.start
    if _in_one_go(store, read, window):
        return Touched(records, piece.batches, piece.length)
    of_index = read.object_size - read.index_position
    if wants_all(read, window):
        return Touched(records, piece.batches, of_index + piece.length)
    refs = _wanted(load_index(store, read), read, window)
    low, high = read.start - piece.start, read.end - piece.start
    records = sum(min(ref.rows, min(ref.last + 1, high) - max(ref.first, low)) for ref in refs)
    return Touched(records, len(refs), of_index + sum(ref.length for ref in refs))
