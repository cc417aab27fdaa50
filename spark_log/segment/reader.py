"""Finds and decodes the batches of a run.

A run that is read whole is checked against the checksum in its slice and needs no index (`decode_run`).  A part of a
run is found through the object's index, and each of its batches is read and checked separately (`find_batches`,
`decode_batch`).  The caller fetches the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.model import Run, Slice
from spark_log.segment import ipc
from spark_log.segment.batch_index import TAIL_BYTES, Index, parse_index
from spark_log.segment.schema import RECORD_SCHEMA, RECORD_SCHEMA_HEADERS
from spark_log.text import counted

__all__ = [
    "TAIL_BYTES",
    "BatchRef",
    "Index",
    "Place",
    "decode_batch",
    "decode_run",
    "find_batches",
    "first_at_or_after",
    "first_batch_at_or_after",
    "parse_index",
]

SCHEMA_ID = b"pylog.schema.id"
"""Reserved: the key in a run's schema metadata for the id of a schema of typed value columns."""


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
    """Row of its first record in the run."""
    rows: int
    position: int
    """Position of its bytes in the object."""
    length: int
    crc: int
    min_us: int
    max_us: int
    schema: int
    """Number of the schema message in the index."""


def find_batches(
    index: Index,
    run: Run | Slice,
    wanted: tuple[int, int] | None = None,
    window: tuple[int, int] | None = None,
    *,
    place: Place,
) -> list[BatchRef]:
    """Batches of `run` that overlap both `wanted` and `window`, in the order of their records.

    wanted: [start, end) in rows of the run; None for all of them.
    window: [start, end) in microseconds; None for all times.  A batch may also contain records outside of it.
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
        rows = rows[(numbers["max_us"][low:high] >= window[0]) & (numbers["min_us"][low:high] <= window[1] - 1)]
    return [_ref(index, int(row)) for row in rows]


def first_batch_at_or_after(index: Index, run: Run | Slice, time_us: int, *, place: Place) -> BatchRef | None:
    """The batch with the run's first record whose timestamp is `time_us` or later.

    Timestamps are not ordered, so the search uses their prefix maxima, which are.  Raises as `find_batches`.
    """
    low, high = _rows_of_run(index, run, place)
    maxima = np.maximum.accumulate(index.numbers["max_us"][low:high])
    found = low + int(np.searchsorted(maxima, time_us))
    return _ref(index, found) if found < high else None


def first_at_or_after(batches: Iterable[pa.RecordBatch], time_us: int) -> int | None:
    """Row, counted over all of `batches`, of the first record whose timestamp is `time_us` or later."""
    before = 0
    for batch in batches:
        times = batch.column("timestamp").view(pa.int64()).to_numpy()
        late = times >= time_us
        if late.any():
            return before + int(late.argmax())
        before += batch.num_rows
    return None


def decode_batch(
    data: ipc.Bytes, ref: BatchRef, index: Index, columns: Sequence[str] | None = None, *, place: Place
) -> pa.RecordBatch:
    """Verify the checksum of `data` and decode it as the batch.

    columns: names out of `RECORD_SCHEMA_HEADERS`, in the order of the result; only these are decoded, and headers that
             the run does not have are null.  None: the columns that the run has.
    Raises CorruptObject if the bytes differ from those written.
    """
    where = place.at(ref.position)
    _check_bytes(data, ref.length, ref.crc, f"the batch in {where}")
    message = index.schemas.get(ref.schema)
    if message is None:
        raise CorruptObject(f"the index has no schema {ref.schema} for the batch in {where}")
    fields = _fields_to_read(_parse_schema(message, where), columns, where)
    try:
        batch = ipc.decode_batch(message, data, fields)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise _undecodable(error, where) from error
    if batch.num_rows != ref.rows:
        raise CorruptObject(
            f"the batch in {where} has {counted(batch.num_rows, 'row')}, but the index says {ref.rows:,}"
        )
    return _project(batch, columns)


def decode_run(
    data: ipc.Bytes, run: Run | Slice, columns: Sequence[str] | None = None, *, place: Place
) -> Iterator[pa.RecordBatch]:
    """Verify the checksum of `data` and decode it as the batches of a run.

    columns: as in `decode_batch`.
    Raises CorruptObject before the first batch if the bytes differ from those written, UnsupportedVersion if the run
    has a reserved format.
    """
    where = place.at(run.position)
    _check_bytes(data, run.length, run.crc, f"the data in {where}")
    try:
        stream = ipc.open_stream(data)
        fields = _fields_to_read(stream.schema, columns, where)
        if fields:
            stream = ipc.open_stream(data, fields)
    except (pa.ArrowException, OSError) as error:
        raise _undecodable(error, where) from error
    return _batches(stream, run, columns, where)


def _batches(
    stream: pa.RecordBatchReader, run: Run | Slice, columns: Sequence[str] | None, where: str
) -> Iterator[pa.RecordBatch]:
    rows = 0
    try:
        for batch in stream:
            rows += batch.num_rows
            yield _project(batch, columns)
    except (pa.ArrowException, OSError) as error:
        raise _undecodable(error, where) from error
    expected = run.end - run.start if isinstance(run, Slice) else run.rows
    if rows != expected:
        raise UnsupportedVersion(
            f"the data in {where} has {counted(rows, 'row')} for {counted(expected, 'offset')}: a newer pylog has compacted it; upgrade pylog"
        )


def _rows_of_run(index: Index, run: Run | Slice, place: Place) -> tuple[int, int]:
    """[low, high) of the index's rows."""
    numbers = index.numbers
    low, high = (int(row) for row in np.searchsorted(numbers["position"], (run.position, run.position + run.length)))
    if high - low != run.batches:
        raise CorruptObject(
            f"the index of {place.at(run.position)} has {counted(high - low, 'batch', 'batches')}, but the data has {run.batches:,}"
        )
    first, last, rows = (numbers[name][low:high] for name in ("first", "last", "rows"))
    thinned = np.flatnonzero((rows != last - first + 1) | (first != np.cumsum(rows) - rows))
    if len(thinned):
        position = int(numbers["position"][low + thinned[0]])
        raise UnsupportedVersion(
            f"the batch in {place.at(position)} has fewer rows than "
            "offsets: a newer pylog has compacted it; upgrade pylog"
        )
    return low, high


def _ref(index: Index, row: int) -> BatchRef:
    numbers = index.numbers
    return BatchRef(
        first=int(numbers["first"][row]),
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


def _undecodable(error: Exception, where: str) -> CorruptObject:
    return CorruptObject(f"the bytes in {where} have the right checksum but cannot be decoded: {error}")


def _parse_schema(message: bytes, where: str) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError) as error:
        raise _undecodable(error, where) from error


def _fields_to_read(schema: pa.Schema, columns: Sequence[str] | None, where: str) -> list[int]:
    """Numbers of the columns to decode; empty means all of them, as in Arrow."""
    _check_schema(schema, where)
    if columns is None:
        return []
    fields = [schema.get_field_index(name) for name in columns if name in schema.names]
    # Without any column the number of rows is still needed: the timestamps are cheapest.
    return fields or [schema.get_field_index("timestamp")]


def _check_schema(schema: pa.Schema, where: str) -> None:
    schema_id = (schema.metadata or {}).get(SCHEMA_ID)
    if schema_id is not None:
        raise UnsupportedVersion(
            f"the data in {where} has the unsupported schema {schema_id.decode()!r}: upgrade pylog"
        )
    if not (schema.equals(RECORD_SCHEMA) or schema.equals(RECORD_SCHEMA_HEADERS)):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise UnsupportedVersion(f"the data in {where} has unsupported columns ({columns}): upgrade pylog")


def _project(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    """The requested columns in the requested order; missing headers are null."""
    if columns is None or columns == batch.schema.names:
        return batch
    if "headers" in columns and "headers" not in batch.schema.names:
        field = RECORD_SCHEMA_HEADERS.field("headers")
        batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    return batch.select(list(columns))
