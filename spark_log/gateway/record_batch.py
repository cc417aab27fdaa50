"""Arrow to Kafka's record batches, version 2: a header of 61 bytes, and records of varints, keys, values and headers.
Pure.

No loop goes over records.  The varints of all records are computed as arrays and scattered into columns of bytes; Arrow
then joins these with the columns of keys and values, record by record, and the buffer of the result is the body.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | checksum 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | count 4 | records

The checksum, CRC-32C, covers everything behind it.  Batches are not compressed.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from spark_log.segment.offsets import Offsets, as_array

Longs: TypeAlias = npt.NDArray[np.int64]
Varints: TypeAlias = tuple[npt.NDArray[np.uint64], Longs]
"""Zigzag values, and how many bytes each takes."""

UNCHECKED = struct.Struct(">qiibI")
CHECKED = struct.Struct(">hiqqqhii")
HEADER_BYTES = UNCHECKED.size + CHECKED.size
LENGTH_AT = 12
"""The length counts the bytes from here on."""
MAGIC = 2
NO_EPOCH = -1
LOG_APPEND_TIME = 8
"""The attribute of a batch whose records have the time of its append."""
OFFSETS_MAX = (1 << 31) - 1
"""Offsets in a batch, with holes."""
US_PER_MS = 1000
NOTHING = pa.scalar(b"", pa.binary())


def record_batch(
    records: pa.RecordBatch, offsets: Offsets, end: int, *, append_time: bool = False, epoch: int = NO_EPOCH
) -> bytes:
    """A batch of records with the columns key, value, timestamp and headers.

    offsets:  ascending, one a record.  There are none if all offsets before `end` are holes.
    end:      where a client reads on: behind the last record, and behind holes after it.
    epoch:    the leader epoch.
    """
    rows = records.num_rows
    base, first_ms, last_ms, body = int(offsets[0]) if rows else end - 1, -1, -1, memoryview(b"")
    if rows:
        times = _int64(records.column("timestamp").view(pa.int64())) // US_PER_MS
        last_ms = int(times.max())
        first_ms = last_ms if append_time else int(times[0])
        body = _body(records, as_array(offsets) - base, times - first_ms)
    attributes = LOG_APPEND_TIME if append_time else 0
    return sealed(base, epoch, (attributes, end - 1 - base, first_ms, last_ms, -1, -1, -1, rows), body)


def sealed(base: int, epoch: int, checked: tuple[int, ...], body: bytes | memoryview) -> bytes:
    """A batch with its length and checksum.

    base:     the offset of the first record.
    checked:  the fields of `CHECKED`.
    """
    head = CHECKED.pack(*checked)
    crc = crc32c(body, crc32c(head))
    return b"".join((UNCHECKED.pack(base, HEADER_BYTES - LENGTH_AT + len(body), epoch, MAGIC, crc), head, body))


def _body(records: pa.RecordBatch, offsets: Longs, times: Longs) -> memoryview:
    rows = records.num_rows
    key, value = records.column("key"), records.column("value")
    key_length, key_bytes, value_length, value_bytes = _lengths(key), _sizes(key), _lengths(value), _sizes(value)
    headers = _headers(records.column("headers"))
    time, offset = _varints(times), _varints(offsets)
    size = 1 + time[1] + offset[1] + key_length[1] + key_bytes + value_length[1] + value_bytes + _sizes(headers)
    attributes = _varints(np.zeros(rows, np.int64))
    before = [_varints(size), attributes, time, offset, key_length]
    if key.null_count == rows:
        parts = [_column(*before, value_length)]
    else:
        parts = [_column(*before), _filled(key), _column(value_length)]
    return _contents(pc.binary_join_element_wise(*parts, _filled(value), headers, NOTHING))


def _headers(column: pa.ListArray) -> pa.Array:
    """The headers of each record, behind their number."""
    rows = len(column)
    if column.null_count == rows:
        return pa.array([b"\0"], pa.binary()).take(pa.array(np.zeros(rows, np.int64)))
    counts = _int64(pc.list_value_length(column).fill_null(0))
    flat = column.flatten()
    if not len(flat):
        return _column(_varints(counts))
    name, value = flat.field("key").cast(pa.binary()), flat.field("value")
    each = pc.binary_join_element_wise(
        _column(_lengths(name)), _filled(name), _column(_lengths(value)), _filled(value), NOTHING
    )
    bounds = _bounds(each)[np.concatenate(([0], np.cumsum(counts)))]
    together = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bounds), each.buffers()[2]])
    return pc.binary_join_element_wise(_column(_varints(counts)), together, NOTHING)


# ---------------------------------------------------------------------------------------------------- columns of bytes


def _filled(column: pa.Array) -> pa.Array:
    return column.fill_null(b"") if column.null_count else column


def _bounds(column: pa.Array) -> npt.NDArray[np.int32]:
    """Where each row begins in the buffer of bytes, and where the last one ends."""
    bounds = np.frombuffer(column.buffers()[1], np.int32)
    return bounds[column.offset : column.offset + len(column) + 1]


def _contents(column: pa.Array) -> memoryview:
    """The bytes of all rows."""
    bounds = _bounds(column)
    return memoryview(column.buffers()[2])[int(bounds[0]) : int(bounds[-1])]


def _int64(column: pa.Array) -> Longs:
    found: Longs = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def _sizes(column: pa.Array) -> Longs:
    """Bytes of each row; 0 for null."""
    return _int64(pc.binary_length(column).fill_null(0))


def _lengths(column: pa.Array) -> Varints:
    """Bytes of each row; -1 for null."""
    return _varints(_int64(pc.binary_length(column).fill_null(-1)))


# ------------------------------------------------------------------------------------------------------------- varints


def _varints(values: Longs) -> Varints:
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    size = np.ones(len(values), np.int64)
    most, limit = int(zigzag.max()) if len(values) else 0, 1 << 7
    while most >= limit:
        size += zigzag >= np.uint64(limit)
        limit <<= 7
    return zigzag, size


def _column(*numbers: Varints) -> pa.Array:
    """The given varints of each row, one after the other."""
    bounds = np.zeros(len(numbers[0][0]) + 1, np.int32)
    np.cumsum(sum(size for _, size in numbers), out=bounds[1:])
    out = np.empty(int(bounds[-1]), np.uint8)
    at = bounds[:-1].astype(np.int64)
    for zigzag, size in numbers:
        _scatter(out, at, zigzag, size)
        at = at + size
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(out)])


def _scatter(out: npt.NDArray[np.uint8], at: Longs, zigzag: npt.NDArray[np.uint64], size: Longs) -> None:
    """Write varints at positions: first the first bytes of all, then the second ones of those that have some."""
    rest: Any = slice(None)
    for number in range(int(size.max())):
        if number:
            rest = np.flatnonzero(size > number)
        low = ((zigzag[rest] >> np.uint64(7 * number)) & np.uint64(127)).astype(np.uint8)
        out[at[rest] + number] = low | ((size[rest] > number + 1).astype(np.uint8) << 7)
