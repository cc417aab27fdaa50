"""Reading slices from storage, batch by batch.

A slice of one batch, or a small slice, takes one ranged read, verified by the slice's checksum.  Other slices are read
through the object's index: the overlapping batches, adjacent ones in one request.  From remote storage, the next
requests are sent while the current batches are decoded, a whole slice of up to 8 MiB takes one request, and small
slices that are near each other in one object share a request.  `touched` predicts the size of a read.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from spark_log.client.reading.plan import SliceRead
from spark_log.conditions import Window
from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.journal.broker_roots import ReplicatedStore, sources_of
from spark_log.journal.missing_indexes import damaged_object, missing_object
from spark_log.journal.read_failover import BoundedStore, from_sources, read_on
from spark_log.model import APPEND_TIME, Slice
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

WHOLE_BYTES_MAX = 1 << 20
"""A run up to this size is read in one request."""
REQUESTS_AHEAD = 8
"""Requests for small slices, and for indexes of objects, that are in flight."""
BLOCK_BYTES_MAX = 4 << 20
"""Small slices that are requested together, in one request if they are near each other.  A reader holds twice as much:
the block that it decodes, and the next one."""
GAP_BYTES_MAX = 256 << 10
"""Bytes between two slices that are read and discarded: at 50 MB/s they take 5 ms, less than another request."""
INDEXES_MAX = 16
"""Indexes that a reader keeps: an object with slices of several partitions is read again and again."""
GROUP_BYTES_MAX = {"local": 1 << 20, "remote": 8 << 20}
"""Adjacent batches are read together up to this size."""
GROUPS_AHEAD = 4
"""Groups of batches that are requested concurrently, of one slice or of several: a task holds four times 8 MiB."""


class Coming(NamedTuple):
    """Bytes that were requested in the background."""

    wait: Callable[[], bytes]
    whole: bool
    """They are the slice; False: the index of its object."""


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
) -> Iterator[Fetched]:
    """The records of one planned read, in offset order.  The last result ends where the read ends.

    columns:  any of key, value, timestamp, headers and the names of data columns; None: all that exist.
    window:   batches that it rules out are not read from larger slices, so there may be gaps between results.
    coming:   what is read first, if it was requested earlier.
    value:    how to read the values of a topic with a schema; None: as bytes.
    Raises ObjectNotFound if the object is gone; CopiesAway if a root that may have it is away.  After either error,
    plan the read again, from the offset reached.
    Raises CorruptObject for damaged bytes.
    """
    if not isinstance(store, ReplicatedStore):
        yield from _fetch(store, read, columns, window, coming, value)
    elif only := _only_root(store, read.slice.object):
        yield from _fetch(only, read, columns, window, coming, value)
    else:
        yield from _fetch_from_any(store, read, columns, window, coming, value)


def _fetch_from_any(
    store: ReplicatedStore,
    read: SliceRead,
    columns: Sequence[str] | None,
    window: Window | None,
    coming: Coming | None,
    value: ValueRead | None,
) -> Iterator[Fetched]:
    """`fetch` that continues from another root, at the same offset, where one fails or has damaged bytes."""
    name, asked = read.slice.object, [coming]

    def of(source: ObjectStore, start: int) -> Iterator[tuple[int, Fetched]]:
        rest = read if start == read.start else structs.replace(read, start=start)
        for part in _fetch(source, rest, columns, window, asked.pop() if asked else None, value):
            yield part.end, part._replace(read=read)

    sources = store.sources(name)
    # Bytes that were requested before may be from any of the roots: if it is damaged, all of them are asked again.
    tried = sources if coming is None else [sources[0], *sources]
    with _named(store, read), _intact(store, read, read.slice.start, read.slice.end):
        yield from read_on(name, tried, of, read.start)


def _fetch(
    store: ObjectStore,
    read: SliceRead,
    columns: Sequence[str] | None,
    window: Window | None,
    coming: Coming | None,
    value: ValueRead | None,
) -> Iterator[Fetched]:
    piece = read.slice
    place = Place(piece.object, read.topic, read.topic_id, read.partition)
    if coming.whole if coming is not None else _in_one_go(store, read, window):
        batches = _whole(store, read, columns, coming, value, place)
    else:
        batches = _by_index(store, read, columns, window, coming, value, place)
    at = read.start
    with _named(store, read):
        for found in batches:
            part = _cut(read, found)
            if part is not None:
                yield part
                at = part.end
    if at < read.end:
        yield Fetched(read, range(read.end, read.end), _no_records(tuple(columns or ()), value), read.end)


_no_records = lru_cache(maxsize=256)(no_records)


@contextmanager
def _named(store: ObjectStore, read: SliceRead) -> Iterator[None]:
    """Add the affected records to the error for a missing object."""
    try:
        yield
    except ObjectNotFound as error:
        if isinstance(store, BoundedStore):
            raise  # another root is read, or else the error of all of them gets this text
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


def _only_root(store: ReplicatedStore, name: str) -> ObjectStore | None:
    """The log's own root, if no broker may have an object."""
    sources = store.sources(name)
    return None if isinstance(sources[0], BoundedStore) else sources[0]


def _with_roots(store: ObjectStore, key: str) -> str:
    """The subject of a sentence about a missing object, with the roots that may have it."""
    if not isinstance(store, ReplicatedStore):
        return f"{store.url}/{key}"
    roots = [source.url for source in store.sources(key)]
    if len(roots) == 1:
        return f"{roots[0]}/{key}"
    return f"{key} cannot be read from any of the {len(roots)} roots that may have it ({', '.join(roots)}). It"


def _whole(
    store: ObjectStore,
    read: SliceRead,
    columns: Sequence[str] | None,
    coming: Coming | None,
    value: ValueRead | None,
    place: Place,
) -> Iterator[Decoded]:
    piece = read.slice
    end = piece.position + piece.length
    data = coming.wait() if coming is not None else store.get(piece.object, piece.position, end)
    with _intact(store, read, piece.start, piece.end):
        try:
            batches = decode_run(data, piece, columns, value, place=place)
        except CorruptObject:
            if piece.batches == 1 or _is_small(piece):
                raise
        else:
            yield from batches
            return
    # The index has a checksum of each batch: only a damaged one cannot be read.
    yield from _by_index(store, read, columns, None, None, value, place)


Begun: TypeAlias = Mapping[tuple[str, int], Coming]
"""Requests that were sent, by the object and position of their slice."""


def begin(store: ObjectStore, reads: Sequence[SliceRead], window: Window | None = None) -> Begun:
    """Request the first block of `reads` from remote storage, for `asked_ahead`.

    It is called before the caller knows which of these reads it needs.
    """
    block = [] if store.local else next(_blocks(reads, window), [])
    found = _Requests(store, window).of(block)
    return {_place(read): coming for read, coming in zip(block, found, strict=True) if coming is not None}


def asked_ahead(
    store: ObjectStore,
    reads: Sequence[SliceRead],
    window: Window | None = None,
    begun: Begun = MappingProxyType({}),
) -> Iterator[tuple[SliceRead, Coming | None]]:
    """Yield planned reads, each with bytes that were requested ahead; None if none were.

    They are the slice, if it fits into one request and all of it is read.  Otherwise they are its object's index, which
    is fetched once.

    Remote storage is read in blocks: the next block is requested in the background.  So a range of many slices does not
    wait for each of them in turn.

    window:  that of `fetch`.
    begun:   requests for these reads that were sent earlier.
    """
    if store.local or (len(reads) < 2 and not begun):
        yield from ((read, None) for read in reads)
        return
    requests, asked = _Requests(store, window, begun), deque[tuple[list[SliceRead], list[Coming | None]]]()
    for block in _blocks(reads, window):
        asked.append((block, requests.of(block)))
        if len(asked) > 1:
            yield from zip(*asked.popleft(), strict=True)
    for pair in asked:
        yield from zip(*pair, strict=True)


def asked_together(store: ObjectStore, reads: Sequence[SliceRead]) -> list[tuple[SliceRead, Coming | None]]:
    """The first block of the reads, requested now, for readers that do not take them in this order."""
    block = next(_blocks(reads, None), [])
    return list(zip(block, _Requests(store, None).of(block), strict=True))


def _blocks(reads: Sequence[SliceRead], window: Window | None) -> Iterator[list[SliceRead]]:
    """The reads in order: so many that small slices have `BLOCK_BYTES_MAX`, or else half of `GROUPS_AHEAD` whole slices
    or `REQUESTS_AHEAD` indexes.
    """
    block, size = list[SliceRead](), 0
    for read in reads:
        if _is_small(read.slice):
            cost = read.slice.length
        else:
            cost = BLOCK_BYTES_MAX // (GROUPS_AHEAD // 2 if _is_group(read, window) else REQUESTS_AHEAD)
        if block and size + cost > BLOCK_BYTES_MAX:
            yield block
            block, size = [], 0
        block.append(read)
        size += cost
    if block:
        yield block


class _Requests:
    """Requests in the background for one reader."""

    def __init__(self, store: ObjectStore, window: Window | None, begun: Begun = MappingProxyType({})) -> None:
        self._store, self._window, self._begun = store, window, dict(begun)
        self._pool = _pool(os.getpid())
        self._indexes: OrderedDict[str, Future[bytes]] = OrderedDict()

    def of(self, reads: Sequence[SliceRead]) -> list[Coming | None]:
        """For each read, the bytes that `fetch` needs first; None if it is to request them itself."""
        found = [self._begun.pop(_place(read), None) for read in reads]
        left = [number for number, coming in enumerate(found) if coming is None]
        for span in _spans(reads, [number for number in left if _is_small(reads[number].slice)]):
            data = self._pool.submit(self._store.get, span.object, span.start, span.end)
            for number in span.reads:
                found[number] = Coming(partial(_part, data, reads[number].slice, span.start), whole=True)
        for number in left:
            if found[number] is None:
                found[number] = self._of_larger(reads[number])
        return found

    def _of_larger(self, read: SliceRead) -> Coming | None:
        piece = read.slice
        if _is_group(read, self._window):
            data = self._pool.submit(self._store.get, piece.object, piece.position, piece.position + piece.length)
            return Coming(data.result, whole=True)
        return None if piece.batches == 1 else Coming(self._index(read).result, whole=False)

    def _index(self, read: SliceRead) -> Future[bytes]:
        name = read.slice.object
        if name not in self._indexes:
            self._indexes[name] = self._pool.submit(_get_index, self._store, read)
        self._indexes.move_to_end(name)
        if len(self._indexes) > INDEXES_MAX:
            self._indexes.popitem(last=False)
        return self._indexes[name]


def _place(read: SliceRead) -> tuple[str, int]:
    return read.slice.object, read.slice.position


def _is_small(piece: Slice) -> bool:
    return piece.length <= WHOLE_BYTES_MAX


def _is_group(read: SliceRead, window: Window | None) -> bool:
    """Whether a larger slice is read whole, and fits into one request."""
    return read.slice.length <= GROUP_BYTES_MAX["remote"] and _wants_all(read, window)


class _Span(NamedTuple):
    """A byte range of an object, and the numbers of the reads in it."""

    object: str
    start: int
    end: int
    reads: list[int]


def _spans(reads: Sequence[SliceRead], numbers: Sequence[int]) -> list[_Span]:
    """One request for slices that are near each other in an object; in the order of the first read of each."""
    spans: list[_Span] = []
    for number in sorted(numbers, key=lambda number: _place(reads[number])):
        name, start = _place(reads[number])
        end, last = start + reads[number].slice.length, spans[-1] if spans else None
        if last and last.object == name and start - last.end <= GAP_BYTES_MAX and end - last.start <= BLOCK_BYTES_MAX:
            last.reads.append(number)
            spans[-1] = last._replace(end=max(last.end, end))
        else:
            spans.append(_Span(name, start, end, [number]))
    return sorted(spans, key=lambda span: min(span.reads))


def _part(data: Future[bytes], piece: Slice, start: int) -> bytes:
    """A slice of a span: a copy, so that records of it do not keep the rest in memory."""
    at = piece.position - start
    return data.result()[at : at + piece.length]


def _by_index(
    store: ObjectStore,
    read: SliceRead,
    columns: Sequence[str] | None,
    window: Window | None,
    coming: Coming | None,
    value: ValueRead | None,
    place: Place,
) -> Iterator[Decoded]:
    piece = read.slice
    with _intact(store, read, piece.start, piece.end):
        index = load_index(store, read) if coming is None else _parsed(coming.wait(), read)
        groups = _groups(_wanted(index, read, window, place), GROUP_BYTES_MAX["local" if store.local else "remote"])
    if groups and _wants_all(read, window):
        # Including its schema and end mark: `touched` knows the size of a whole run without the index.
        groups[0] = groups[0]._replace(start=piece.position)
        groups[-1] = groups[-1]._replace(end=piece.position + piece.length)
    for group, data in _loaded(store, piece.object, groups):
        for ref in group.refs:
            at = ref.position - group.start
            with _intact(store, read, piece.start + ref.first, piece.start + ref.last + 1):
                found = decode_batch(data[at : at + ref.length], ref, index, columns, value, place=place)
            yield found


def _in_one_go(store: ObjectStore, read: SliceRead, window: Window | None) -> bool:
    piece = read.slice
    return piece.batches == 1 or _is_small(piece) or (not store.local and _is_group(read, window))


def _wants_all(read: SliceRead, window: Window | None) -> bool:
    """Whether every batch of the slice is read."""
    piece = read.slice
    within = window is None or (window.rows is None and window.start <= piece.min_us and piece.max_us < window.end)
    return within and (read.start, read.end) == (piece.start, piece.end)


def _wanted(index: Index, read: SliceRead, window: Window | None, place: Place) -> list[BatchRef]:
    """Batches of the slice that overlap the read and that the window does not skip."""
    piece = read.slice
    if window is not None and piece.time_kind == APPEND_TIME:
        window = window.any_time
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
    return ThreadPoolExecutor(REQUESTS_AHEAD, thread_name_prefix=f"pylog-fetch-{pid}")


def load_index(store: ObjectStore, read: SliceRead) -> Index:
    """The index of a read's object."""
    name = read.slice.object
    return from_sources(name, sources_of(store, name), lambda source: _parsed(_get_index(source, read), read))


def _get_index(store: ObjectStore, read: SliceRead) -> bytes:
    return store.get(read.slice.object, read.index_position, read.object_size)


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
    if isinstance(store, ReplicatedStore):
        name = read.slice.object
        if only := _only_root(store, name):
            return first_offset_at(only, read, time_us)
        with _named(store, read), _intact(store, read, read.slice.start, read.slice.end):
            return from_sources(name, store.sources(name), lambda source: first_offset_at(source, read, time_us))
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
    if _wants_all(read, window):
        return Touched(records, piece.batches, of_index + piece.length)
    place = Place(piece.object, read.topic, read.topic_id, read.partition)
    refs = _wanted(load_index(store, read), read, window, place)
    low, high = read.start - piece.start, read.end - piece.start
    records = sum(min(ref.rows, min(ref.last + 1, high) - max(ref.first, low)) for ref in refs)
    return Touched(records, len(refs), of_index + sum(ref.length for ref in refs))
