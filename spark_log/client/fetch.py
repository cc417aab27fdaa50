"""Reading slices from storage, batch by batch.

A slice of one batch, or a small one that is wanted whole, is one ranged read, checked against the slice's checksum.
Anything else goes through the object's index and reads the batches that overlap, a few at a time; from remote storage
the next ones are fetched while the present ones are decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from spark_log.client.plan import SliceRead, Window
from spark_log.errors import CorruptObject
from spark_log.journal.journal import Journal
from spark_log.model import APPEND_TIME
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

WHOLE_BYTES_MAX = 1 << 20
"""A run up to this size is read in one go."""
GROUP_BYTES_MAX = 1 << 20
"""Neighbouring batches are read together up to this size."""


class Fetched(NamedTuple):
    """Records of one partition, without gaps."""

    read: SliceRead
    first: int
    """Offset of the first one."""
    records: pa.RecordBatch


def fetch(
    store: ObjectStore, read: SliceRead, columns: Sequence[str] | None = None, window: Window | None = None
) -> Iterator[Fetched]:
    """The records of one planned read, in offset order.

    columns:  of key, value, timestamp, headers; None for all that are there.
    window:   batches that cannot hold such timestamps are left out, so there may be gaps between what is given.
    Raises ObjectNotFound if the object is gone (plan again by offset), CorruptObject for damaged bytes.
    """
    piece = read.slice
    place = Place(piece.object, read.topic, read.topic_id, read.partition)
    if piece.batches == 1 or (piece.length <= WHOLE_BYTES_MAX and window is None):
        batches = _whole(store, read, columns, place)
    else:
        batches = _by_index(store, read, columns, window, place)
    for first, records in batches:
        yield from _cut(read, first, records)


def _whole(
    store: ObjectStore, read: SliceRead, columns: Sequence[str] | None, place: Place
) -> Iterator[tuple[int, pa.RecordBatch]]:
    piece = read.slice
    data = store.get(piece.object, piece.position, piece.position + piece.length)
    first = piece.start
    for records in decode_run(data, piece, columns, place=place):
        yield first, records
        first += records.num_rows
    if first != piece.end:
        raise CorruptObject(
            f"{place.at(piece.position)}: the run has {first - piece.start} records, not {piece.end - piece.start}"
        )


def _by_index(
    store: ObjectStore, read: SliceRead, columns: Sequence[str] | None, window: Window | None, place: Place
) -> Iterator[tuple[int, pa.RecordBatch]]:
    piece, index = read.slice, load_index(store, read)
    wanted = (read.start - piece.start, read.end - piece.start)
    window = None if piece.time_kind == APPEND_TIME else window
    groups = _groups(find_batches(index, piece, wanted, window, place=place))
    load = _Loader(store, piece.object)
    for group, data in load.all(groups):
        for ref in group:
            at = ref.position - group[0].position
            records = decode_batch(data[at : at + ref.length], ref, index, columns, place=place)
            yield piece.start + ref.first, records


def _groups(refs: Sequence[BatchRef]) -> list[list[BatchRef]]:
    """Neighbouring batches, together up to GROUP_BYTES_MAX."""
    groups: list[list[BatchRef]] = []
    for ref in refs:
        last = groups[-1] if groups else []
        follows = last and last[-1].position + last[-1].length == ref.position
        if follows and ref.position + ref.length - last[0].position <= GROUP_BYTES_MAX:
            last.append(ref)
        else:
            groups.append([ref])
    return groups


class _Loader:
    """Bytes of groups of batches; from remote storage one group ahead."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name

    def all(self, groups: Sequence[list[BatchRef]]) -> Iterator[tuple[list[BatchRef], memoryview]]:
        if self._store.local or len(groups) < 2:
            for group in groups:
                yield group, memoryview(self._load(group))
            return
        pool = _pool(os.getpid())
        ahead: Future[bytes] = pool.submit(self._load, groups[0])
        for group, following in zip(groups, [*groups[1:], None], strict=True):
            data = ahead.result()
            if following is not None:
                ahead = pool.submit(self._load, following)
            yield group, memoryview(data)

    def _load(self, group: list[BatchRef]) -> bytes:
        return self._store.get(self._name, group[0].position, group[-1].position + group[-1].length)


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """One pool a process: Spark forks its workers, and threads do not survive that."""
    return ThreadPoolExecutor(4, thread_name_prefix=f"pylog-fetch-{pid}")


def load_index(store: ObjectStore, read: SliceRead) -> Index:
    """The index of the object that a read names."""
    data = store.get(read.slice.object, read.index_position, read.object_size)
    return parse_index(data, name=read.slice.object, object_size=read.object_size)


def _cut(read: SliceRead, first: int, records: pa.RecordBatch) -> Iterator[Fetched]:
    """The part of a batch that is wanted, with the log's time where that is the slice's."""
    low, high = max(read.start - first, 0), min(read.end - first, records.num_rows)
    if low >= high:
        return
    if (low, high) != (0, records.num_rows):
        records = records.slice(low, high - low)
    if read.slice.time_kind == APPEND_TIME and "timestamp" in records.schema.names:
        at = records.schema.get_field_index("timestamp")
        stamp = pa.repeat(pa.scalar(read.slice.min_us, TIMESTAMP), records.num_rows)
        records = records.set_column(at, records.schema.field(at), stamp)
    yield Fetched(read, first + low, records)


def first_offset_at(store: ObjectStore, read: SliceRead, time_us: int) -> int | None:
    """Offset of the first record of a slice, from the read's start on, with a timestamp at or after `time_us`."""
    piece = read.slice
    if piece.time_kind == APPEND_TIME:
        return read.start if piece.min_us >= time_us else None
    if read.start == piece.start and piece.batches > 1:
        place = Place(piece.object, read.topic, read.topic_id, read.partition)
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
            return part.first + row
    return None


def batches_touched(journal: Journal, reads: Sequence[SliceRead], window: Window) -> tuple[int, int]:
    """How many batches of planned reads may hold timestamps in a window, and how many there are."""
    touched = total = 0
    for read in reads:
        piece = read.slice
        total += piece.batches
        if piece.min_us >= window[1] or piece.max_us < window[0]:
            continue
        if piece.batches == 1 or piece.time_kind == APPEND_TIME:
            touched += piece.batches
            continue
        place = Place(piece.object, read.topic, read.topic_id, read.partition)
        touched += len(find_batches(load_index(journal.store, read), piece, None, window, place=place))
    return touched, total
