"""Finds and decodes the batches of a run.

A run that is read whole is checked against the checksum in its slice and needs no index (`decode_run`).  A part of a
run is found through the object's index, and each of its batches is read and checked separately (`find_batches`,
`decode_batch`).  The caller fetches the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from spark_log.conditions import Window
from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.model import Run, Slice
from spark_log.segment.arrays import ipc
from spark_log.segment.arrays.dictionaries import plain
from spark_log.segment.arrays.ipc_sizes import check_each
from spark_log.segment.arrays.numpy_arrays import micros_of
from spark_log.segment.batch_index import STATS, TAIL_BYTES, Index, parse_index
from spark_log.segment.offsets import Offsets, from_column
from spark_log.segment.schema import OFFSET, RECORD_SCHEMA, SCHEMA_ID, run_schema, schema_version
from spark_log.segment.value_read import ValueRead, check_typed_schema, stored_columns, wants_data, with_values
from spark_log.text import counted

__all__ = [
    "TAIL_BYTES",
    "BatchRef",
    "Decoded",
    "Index",
    "Place",
    "batches_of_topic",
    "decode_batch",
    "decode_run",
    "find_batches",
    "first_at_or_after",
    "first_batch_at_or_after",
    "parse_index",
]


class Place(NamedTuple):
    """The location that an error message names, apart from the position."""

    object: str
    topic: str
    """The topic's name."""
    topic_id: str
    partition: int

    def at(self, position: int) -> str:
        return (
            f"object {self.object}, byte {position} (topic {self.topic!r}, id {self.topic_id}, "
            f"partition {self.partition})"
        )


class BatchRef(NamedTuple):
    """One record batch of a run."""

    first: int
    """Offset of its first record, relative to the run's base."""
    last: int
    """Offset of its last record, inclusive."""
    rows: int
    position: int
    """Position of its bytes in the object."""
    length: int
    crc: int
    min_us: int
    max_us: int
    schema: int
    """Number of the schema message in the index."""


class Decoded(NamedTuple):
    """Records of a run, and the offset of each, relative to the run's base."""

    offsets: Offsets
    records: pa.RecordBatch


def find_batches(
    index: Index,
    run: Run | Slice,
    wanted: tuple[int, int] | None = None,
    window: Window | None = None,
    *,
    place: Place,
) -> list[BatchRef]:
    """Batches of `run` that overlap `wanted` and that `window` does not skip, in the order of their records.

    wanted: [start, end) in offsets relative to the run's base; None for all of them.
    window: None skips nothing.  A batch may also contain records outside of it.
    Raises CorruptObject if the index does not list the run, UnsupportedVersion if the run has a reserved format.
    """
    numbers = index.numbers
    low, high = _rows_of_run(index, run, place)
    if wanted is not None:
        start, end = wanted
        if start >= end:
            return []
        begin = low
        low = begin + int(np.searchsorted(numbers["last"][begin:high], start))
        high = begin + int(np.searchsorted(numbers["first"][begin:high], end))
    rows = np.arange(low, high)
    if window is not None:
        rows = rows[(numbers["max_us"][low:high] >= window.start) & (numbers["min_us"][low:high] <= window.end - 1)]
    if window is not None and window.rows is not None and STATS.name in index.table.column_names:
        stats = index.table[STATS.name]
        keep = [window.rows.may_match(stats[int(row)].as_py()) for row in rows]
        rows = rows[np.array(keep, np.bool_)]
    return [_ref(index, int(row)) for row in rows]


def batches_of_topic(index: Index, topic_id: str) -> list[tuple[int, BatchRef]]:
    """(partition, batch) of all batches of a topic in an object, by position.  Their runs may not be live any more."""
    rows = np.flatnonzero(np.asarray(pc.equal(index.table["topic_id"], topic_id)))
    return [(int(index.numbers["partition"][row]), _ref(index, row)) for row in rows.tolist()]


def first_batch_at_or_after(index: Index, run: Run | Slice, time_us: int, *, place: Place) -> BatchRef | None:
    """The batch with the run's first record whose timestamp is `time_us` or later.

    Timestamps are not ordered, so the search uses their prefix maxima, which are.  Raises as `find_batches`.
    """
    low, high = _rows_of_run(index, run, place)
    maxima = np.maximum.accumulate(index.numbers["max_us"][low:high])
    found = low + int(np.searchsorted(maxima, time_us))
    return _ref(index, found) if found < high else None


def first_at_or_after(batches: Iterable[Decoded], time_us: int) -> int | None:
    """Offset of the first record whose timestamp is `time_us` or later."""
    for offsets, records in batches:
        late = micros_of(records.column("timestamp")) >= time_us
        if late.any():
            return int(offsets[late.argmax()])
    return None


def decode_batch(
    data: ipc.Bytes,
    ref: BatchRef,
    index: Index,
    columns: Sequence[str] | None = None,
    value: ValueRead | None = None,
    *,
    place: Place,
) -> Decoded:
    """Verify the checksum of `data` and decode it as the batch.

    columns: names out of `RECORD_SCHEMA_HEADERS`, and of data columns, in the order of the result; only these are
             decoded, and headers that the run does not have are null.  None: the columns that the run has.
    value:   how values of a typed topic are read; None: as bytes.
    Raises CorruptObject if the bytes differ from those written; as `with_values`.
    """
    where = place.at(ref.position)
    _check_bytes(data, ref.length, ref.crc, f"the batch in {where}")
    message = index.schemas.get(ref.schema)
    if message is None:
        raise CorruptObject(f"the index has no schema {ref.schema} for the batch in {where}")
    schema = _parse_schema(message, where)
    fields = _fields_to_read(schema, columns, value, where)
    with _decoding(where):
        batch = ipc.decode_batch(message, data, fields)
        batch.validate(full=True)
        batch = plain(batch, ref.length) if schema_version(schema) else batch
    if batch.num_rows != ref.rows:
        raise CorruptObject(
            f"the batch in {where} has {counted(batch.num_rows, 'row')}, but the index says {ref.rows:,}"
        )
    found = _decoded(batch, ref.first if not _has_offsets(schema) else None, columns, value, schema, where)
    if (found.offsets[0], found.offsets[-1]) != (ref.first, ref.last):
        raise CorruptObject(
            f"the batch in {where} has offsets {found.offsets[0]} to {found.offsets[-1]} of its run, but the index says "
            f"{ref.first} to {ref.last}"
        )
    return found


def decode_run(
    data: ipc.Bytes,
    run: Run | Slice,
    columns: Sequence[str] | None = None,
    value: ValueRead | None = None,
    *,
    place: Place,
) -> Iterator[Decoded]:
    """Verify the checksum of `data` and decode it as the batches of a run.

    columns, value: as in `decode_batch`.
    Raises CorruptObject before the first batch if the bytes differ from those written, or would become too many;
    UnsupportedVersion if the run has a reserved format.
    """
    where = place.at(run.position)
    _check_bytes(data, run.length, run.crc, f"the data in {where}")
    with _decoding(where):
        check_each(memoryview(data))
        stream = ipc.open_stream(data)
        schema = stream.schema
        fields = _fields_to_read(schema, columns, value, where)
        if fields:
            stream = ipc.open_stream(data, fields)
    return _batches(stream, run, columns, value, schema, where)


def _batches(
    stream: pa.RecordBatchReader,
    run: Run | Slice,
    columns: Sequence[str] | None,
    value: ValueRead | None,
    schema: pa.Schema,
    where: str,
) -> Iterator[Decoded]:
    end, has_holes = 0, _has_offsets(schema)
    with _decoding(where):
        for stored in stream:
            stored.validate(full=True)
            if stored.num_rows > _span(run) - end:
                raise CorruptObject(f"the data in {where} has more records than offsets: the log says {_span(run):,}")
            batch = plain(stored, run.length) if schema_version(schema) else stored
            found = _decoded(batch, None if has_holes else end, columns, value, schema, where)
            if found.offsets[0] < end:
                raise CorruptObject(f"the data in {where} has offset {found.offsets[0]} after offset {end - 1}")
            end = int(found.offsets[-1]) + 1
            yield found
    if end > _span(run) or (end < _span(run) and not has_holes):
        raise CorruptObject(f"the data in {where} has {counted(end, 'offset')}, but the log says {_span(run):,}")


def _rows_of_run(index: Index, run: Run | Slice, place: Place) -> tuple[int, int]:
    """[low, high) of the index's rows."""
    numbers = index.numbers
    low, high = (int(row) for row in np.searchsorted(numbers["position"], (run.position, run.position + run.length)))
    if high - low != run.batches:
        raise CorruptObject(
            f"the index of {place.at(run.position)} has {counted(high - low, 'batch', 'batches')}, but the data has {run.batches:,}"
        )
    first, last, rows = (numbers[name][low:high] for name in ("first", "last", "rows"))
    before = np.concatenate(([-1], last))[:-1]
    wrong = np.flatnonzero((first <= before) | (rows < 1) | (rows > last - first + 1) | (last >= _span(run)))
    if len(wrong):
        position = int(numbers["position"][low + wrong[0]])
        raise CorruptObject(f"the index lists other offsets than the log for the batch in {place.at(position)}")
    if low < high and int(rows.sum()) < _span(run) and not _stores_offsets(index, low, place):
        raise CorruptObject(
            f"the index of {place.at(run.position)} lists {counted(int(rows.sum()), 'record')}, but the log says {_span(run):,}"
        )
    return low, high


def _stores_offsets(index: Index, row: int, place: Place) -> bool:
    """Whether the run of a row of the index has offsets without a record."""
    message = index.schemas.get(int(index.numbers["schema"][row]), b"")
    return _has_offsets(_parse_schema(message, place.at(int(index.numbers["position"][row]))))


def _has_offsets(schema: pa.Schema) -> bool:
    return bool(schema.get_field_index(OFFSET.name) >= 0)


def _span(run: Run | Slice) -> int:
    """How many offsets a run covers; a `Run` has a record for each."""
    return run.end - run.start if isinstance(run, Slice) else run.rows


def _ref(index: Index, row: int) -> BatchRef:
    numbers = index.numbers
    return BatchRef(
        first=int(numbers["first"][row]),
        last=int(numbers["last"][row]),
        rows=int(numbers["rows"][row]),
        position=int(numbers["position"][row]),
        length=int(numbers["length"][row]),
        crc=int(numbers["crc32c"][row]),
        min_us=int(numbers["min_us"][row]),
        max_us=int(numbers["max_us"][row]),
        schema=int(numbers["schema"][row]),
    )


def _check_bytes(data: ipc.Bytes, length: int, crc: int, what: str) -> None:
    size = memoryview(data).nbytes
    if size != length:
        raise CorruptObject(f"{what} is cut off: it has {size} of {length} bytes")
    found = crc32c(data)
    if found != crc:
        raise CorruptObject(
            f"{what} has changed since it was written: the checksum of its {length} bytes is {found:#010x}, "
            f"expected {crc:#010x}"
        )


@contextmanager
def _decoding(where: str) -> Iterator[None]:
    """Says where bytes are that cannot be decoded.  Too little memory is not damage."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"too little memory to decode the bytes in {where}: {error}") from error
    except (pa.ArrowException, OSError, StopIteration, UnicodeDecodeError) as error:
        raise CorruptObject(f"the bytes in {where} have the right checksum but cannot be decoded: {error}") from error


@lru_cache(maxsize=256)
def _read_schema(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))


def _parse_schema(message: bytes, where: str) -> pa.Schema:
    with _decoding(where):
        return _read_schema(message)


def _fields_to_read(schema: pa.Schema, columns: Sequence[str] | None, value: ValueRead | None, where: str) -> list[int]:
    """Numbers of the columns to decode, with that of offsets; empty means all of them, as in Arrow."""
    _check_schema(schema, where)
    if columns is None:
        return []
    needed = (*stored_columns(schema, columns, value), OFFSET.name)
    fields = [number for name in needed if (number := schema.get_field_index(name)) >= 0]
    # Without any column the number of rows is still needed: the timestamps are cheapest.
    return fields or [schema.get_field_index("timestamp")]


def _check_schema(schema: pa.Schema, where: str) -> None:
    if schema.equals(RECORD_SCHEMA, check_metadata=True):
        return  # most runs: small slices are read by the thousand
    if SCHEMA_ID in (schema.metadata or {}):
        check_typed_schema(schema, where)
        return
    if not schema.equals(run_schema(headers=schema.get_field_index("headers") >= 0, holes=_has_offsets(schema))):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise UnsupportedVersion(f"the data in {where} has unsupported columns ({columns}): upgrade pylog")


def _decoded(
    batch: pa.RecordBatch,
    first: int | None,
    columns: Sequence[str] | None,
    value: ValueRead | None,
    schema: pa.Schema,
    where: str,
) -> Decoded:
    """The requested columns of a batch, and its offsets: those from `first` on, or those that it stores for None."""
    if not batch.num_rows:
        raise CorruptObject(f"a batch in {where} has no records")
    if first is not None:
        return Decoded(range(first, first + batch.num_rows), _project(batch, columns, value, schema, where))
    column = batch.column(OFFSET.name)
    offsets = from_column(column)
    if column.null_count or (np.diff(offsets) < 1).any():
        raise CorruptObject(f"the offsets of a batch in {where} are not in order")
    if columns is None:
        names = [name for name in batch.schema.names if name != OFFSET.name]
        return Decoded(_without_holes(offsets), batch.select(names))
    return Decoded(_without_holes(offsets), _project(batch, columns, value, schema, where))


def _without_holes(offsets: npt.NDArray[np.int64]) -> Offsets:
    """Offsets as a range, if there are no holes between the first and the last one."""
    first, last = int(offsets[0]), int(offsets[-1])
    return range(first, last + 1) if last - first + 1 == len(offsets) else offsets


def _project(
    batch: pa.RecordBatch, columns: Sequence[str] | None, value: ValueRead | None, schema: pa.Schema, where: str
) -> pa.RecordBatch:
    """The requested columns in the requested order; missing headers are null."""
    version = schema_version(schema)
    if columns is None or (columns == batch.schema.names and not version and not wants_data(columns, value)):
        return batch
    if not version and value is None and set(columns) <= set(batch.schema.names):
        return batch.select(list(columns))
    return with_values(batch, columns, version, value, where)
