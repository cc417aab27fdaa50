"""Kafka's record batches to Arrow, as producers send them.  Everything in them is untrusted.  Pure.

A header is checked alone: its length, its checksum, its counts.  The records of several batches are then read together,
because a pass over arrays has a fixed cost: a loop finds where each record begins, and the varints of all records are
read as arrays.  Each length is compared with the bytes of its record before it is used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from spark_log.errors import SparkLogError
from spark_log.gateway.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from spark_log.gateway.record_batch import CHECKED, HEADER_BYTES, LENGTH_AT, MAGIC, UNCHECKED, US_PER_MS, Longs
from spark_log.segment.schema import RECORD_SCHEMA, RECORD_SCHEMA_HEADERS

NO_COMPRESSION, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC, TRANSACTIONAL, CONTROL = 7, 16, 32
"""Attributes of a batch."""
RECORD_BYTES_MIN = 7
"""A record without key, value and headers."""
BODY_BYTES_MAX = 64 << 20
"""Bytes of the records of a batch, when they are not compressed any more."""
RECORDS_MAX = 1_000_000
"""Records of a batch.  Reading one takes some 200 bytes of memory, and compressed it may have a hundredth of a byte."""
HEADERS_MAX = 10_000
"""Headers of a record."""
HEADERS_TOGETHER_MAX = 1_000_000
"""Headers of records that are read together.  One has two bytes at least, and reading it takes 150 bytes of memory."""
VARINT_BYTES_MAX = 10
PADDING = bytes(2 * VARINT_BYTES_MAX)
XERIAL = b"\x82SNAPPY\0"
XERIAL_HEADER_BYTES = 16
TIME_MS_MAX = 1 << 52
NO_TIME = -1
"""The time of a record whose producer gives none."""
Bytes = npt.NDArray[np.uint8]


class RefusedBatch(SparkLogError):
    """A batch of which nothing is written, and Kafka's error code for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class TooManyHeaders(RefusedBatch):
    """Batches that cannot be read together; or a single one, which is refused."""


class Produced(NamedTuple):
    """A batch with a valid header."""

    attributes: int
    first_ms: int
    producer_id: int
    """-1: the producer is not idempotent."""
    producer_epoch: int
    sequence: int
    """The number of the first record."""
    records: int
    """How many."""
    body: memoryview
    """The records, maybe compressed."""


def parse_batch(data: bytes) -> Produced:
    """The only batch of a partition in a request.  Raises RefusedBatch."""
    if len(data) < HEADER_BYTES:
        raise RefusedBatch(CORRUPT_MESSAGE, f"a record batch of {len(data)} bytes, which is less than its header")
    _, length, _, magic, crc = UNCHECKED.unpack_from(data)
    if magic != MAGIC:
        raise RefusedBatch(INVALID_RECORD, f"records of format {magic}, expected {MAGIC}")
    if length + LENGTH_AT != len(data):
        raise RefusedBatch(
            INVALID_RECORD, f"a batch of {length + LENGTH_AT} bytes in a field of {len(data)}: one batch is expected"
        )
    view = memoryview(data)
    if crc32c(view[UNCHECKED.size :]) != crc:
        raise RefusedBatch(CORRUPT_MESSAGE, "the checksum of a record batch is wrong")
    found = CHECKED.unpack_from(data, UNCHECKED.size)
    attributes, last_offset, first_ms, _, producer, epoch, sequence, count = found
    if attributes & CONTROL or count < 1 or last_offset != count - 1:
        raise RefusedBatch(INVALID_RECORD, f"a batch of {count} records with the attributes {attributes}")
    if producer >= 0 and (epoch < 0 or sequence < 0):
        raise RefusedBatch(INVALID_RECORD, f"a batch of producer {producer} with epoch {epoch} and sequence {sequence}")
    return Produced(attributes, first_ms, producer, epoch, sequence, count, view[HEADER_BYTES:])


def uncompressed(batch: Produced) -> bytes | memoryview:
    """The records of a batch, at most `BODY_BYTES_MAX`.  Raises RefusedBatch."""
    codec = batch.attributes & CODEC
    if codec > ZSTD:
        raise RefusedBatch(UNSUPPORTED_COMPRESSION_TYPE, f"compression type {codec} is not known")
    try:
        body = batch.body if codec == NO_COMPRESSION else _decompressed(codec, batch.body)
    except (OSError, ValueError, zlib.error, struct.error, IndexError) as error:
        raise RefusedBatch(CORRUPT_MESSAGE, f"records cannot be decompressed: {error}") from error
    if len(body) > BODY_BYTES_MAX:
        raise RefusedBatch(MESSAGE_TOO_LARGE, f"the records of a batch have more than {BODY_BYTES_MAX} bytes")
    if batch.records * RECORD_BYTES_MIN > len(body):
        raise RefusedBatch(INVALID_RECORD, f"{batch.records} records in {len(body)} bytes")
    if batch.records > RECORDS_MAX:
        raise RefusedBatch(MESSAGE_TOO_LARGE, f"a batch of {batch.records} records, and it may have {RECORDS_MAX}")
    return body


def _decompressed(codec: int, body: memoryview) -> bytes | memoryview:
    """At most one byte more than is allowed."""
    if codec == GZIP:
        return zlib.decompressobj(31).decompress(body, BODY_BYTES_MAX + 1)
    if codec == SNAPPY:
        return b"".join(_snappy_blocks(bytes(body)))
    source = pa.BufferReader(pa.py_buffer(body))
    # Not `read`, which never frees its result if it raises.
    return memoryview(
        pa.CompressedInputStream(source, "lz4" if codec == LZ4 else "zstd").read_buffer(BODY_BYTES_MAX + 1)
    )


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """One raw block, or the blocks of snappy-java."""
    if not data.startswith(XERIAL):
        yield _snappy(data, BODY_BYTES_MAX)
        return
    at, left = XERIAL_HEADER_BYTES, BODY_BYTES_MAX
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        block = _snappy(data[at + 4 : at + 4 + size], left)
        yield block
        at, left = at + 4 + size, left - len(block)


def _snappy(data: bytes, limit: int) -> bytes:
    size, shift = 0, 0
    for byte in data[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > limit:
        raise RefusedBatch(MESSAGE_TOO_LARGE, f"the records of a batch have more than {BODY_BYTES_MAX} bytes")
    found: bytes = pa.Codec("snappy").decompress(data, size, asbytes=True)
    return found


class ReadRecords(NamedTuple):
    """The records of some batches, in order, in `RECORD_SCHEMA`; with headers if any record has some."""

    records: pa.RecordBatch
    have_times: bool
    """Whether all of them came with a time."""


def records_of(batches: Sequence[Produced], bodies: Sequence[bytes | memoryview], now_ms: int) -> ReadRecords:
    """
    now_ms:  the time of records that came without one.

    Raises RefusedBatch if one of the batches is wrong: the caller then reads each alone.  Raises TooManyHeaders.
    """
    try:
        return _records(batches, bodies, now_ms)
    except (IndexError, pa.ArrowInvalid) as error:
        raise RefusedBatch(INVALID_RECORD, f"records that are not as their lengths say: {error}") from error


def _records(batches: Sequence[Produced], bodies: Sequence[bytes | memoryview], now_ms: int) -> ReadRecords:
    data = b"".join((*bodies, PADDING))
    found, start, end = np.frombuffer(data, np.uint8), [], 0
    for batch, body in zip(batches, bodies, strict=True):
        start.append(_starts(data, end, end + len(body), batch.records))
        end += len(body)
    at = np.concatenate(start)
    size, at = _varints(found, at)
    ends = at + size
    delta, at = _varints(found, at + 1)
    offset, at = _varints(found, at)
    key = _Field.read(found, at, ends)
    value = _Field.read(found, key.end, ends)
    headers, at = _varints(found, value.end)
    counts = np.array([batch.records for batch in batches])
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    _check(offset == np.arange(len(at)) - firsts, "offsets do not follow each other")
    times = _times(delta, np.repeat(np.array([batch.first_ms for batch in batches]), counts))
    given = times != NO_TIME
    times, have_times = np.where(given, times, now_ms), bool(given.all())
    columns = [key.column(data), value.column(data), pa.array(times * US_PER_MS).view(RECORD_SCHEMA[2].type)]
    if not headers.any():
        _check(at == ends, "bytes are left behind a record")
        return ReadRecords(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA), have_times)
    _check((headers >= 0) & (headers <= (ends - at) // 2) & (headers <= HEADERS_MAX), "too many headers")
    if (total := int(headers.sum())) > HEADERS_TOGETHER_MAX:
        raise TooManyHeaders(
            MESSAGE_TOO_LARGE, f"records with {total} headers, and a batch may have {HEADERS_TOGETHER_MAX}"
        )
    columns.append(_headers(data, found, headers, at, ends))
    return ReadRecords(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA_HEADERS), have_times)


def _check(right: npt.NDArray[np.bool_], message: str) -> None:
    if not right.all():
        raise RefusedBatch(INVALID_RECORD, message)


def _times(delta: Longs, first_ms: Longs) -> Longs:
    """Milliseconds, checked."""
    if any((one > TIME_MS_MAX).any() or (one < -TIME_MS_MAX).any() for one in (delta, first_ms)):
        raise RefusedBatch(INVALID_TIMESTAMP, "a time that is out of range")
    times: Longs = delta + first_ms
    return times


def _starts(data: bytes, at: int, end: int, count: int) -> Longs:
    """Where each record begins.  The records fill their bytes exactly."""
    found = []
    for _ in range(count):
        found.append(at)
        size = shift = 0
        while True:
            byte = data[at]
            size |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
            if shift > 28:
                raise RefusedBatch(INVALID_RECORD, "a length of a record has more than five bytes")
        if size & 1:
            raise RefusedBatch(INVALID_RECORD, "a record of a negative length")
        at += size >> 1
        if at > end:
            raise RefusedBatch(INVALID_RECORD, "a record ends behind its batch")
    if at != end:
        raise RefusedBatch(INVALID_RECORD, f"{end - at} bytes behind the records of a batch")
    return np.array(found, np.int64)


def _varints(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """Zigzag varints at positions, and the positions behind them."""
    byte = data[at].astype(np.int64)
    value, behind = (byte & 127).astype(np.uint64), at + 1
    more, shift = np.flatnonzero(byte & 128), 7
    while len(more):
        if shift >= 7 * VARINT_BYTES_MAX:
            raise RefusedBatch(INVALID_RECORD, "a varint of more than ten bytes")
        byte = data[behind[more]].astype(np.int64)
        value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        behind[more] += 1
        more, shift = more[(byte & 128) != 0], shift + 7
    one = np.uint64(1)
    return (value >> one).view(np.int64) ^ -(value & one).view(np.int64), behind


class _Field(NamedTuple):
    """The bytes of one field of many records."""

    start: Longs
    end: Longs
    null: npt.NDArray[np.bool_]

    @classmethod
    def read(cls, data: Bytes, at: Longs, ends: Longs) -> _Field:
        """ends:  of the records: no field goes beyond."""
        length, start = _varints(data, at)
        _check((length >= -1) & (length <= ends - start), "a field that is longer than its record")
        return cls(start, start + np.maximum(length, 0), length < 0)

    def column(self, data: bytes) -> pa.Array:
        bounds = np.empty(2 * len(self.start), np.int32)
        bounds[0::2], bounds[1::2] = self.start, self.end
        pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
        return pieces.take(pa.array(np.arange(0, len(bounds), 2), mask=self.null if self.null.any() else None))


def _headers(data: bytes, found: Bytes, counts: Longs, at: Longs, ends: Longs) -> pa.Array:
    """Headers: the first ones of all records, then the second ones, and so on."""
    bounds = np.concatenate(([0], np.cumsum(counts)))
    total = int(bounds[-1])
    names, values = (
        _Field(np.empty(total, np.int64), np.empty(total, np.int64), np.zeros(total, np.bool_)) for _ in range(2)
    )
    rows, at, number = np.flatnonzero(counts), at.copy(), 0
    while len(rows):
        slot, place = bounds[rows] + number, at[rows]
        for field in (names, values):
            read = _Field.read(found, place, ends[rows])
            field.start[slot], field.end[slot], field.null[slot] = read.start, read.end, read.null
            place = read.end
        at[rows], number = place, number + 1
        rows = rows[counts[rows] > number]
    _check(at == ends, "bytes are left behind a record")
    _check(~names.null, "a header without a name")
    kind = RECORD_SCHEMA_HEADERS.field("headers").type
    name, value = names.column(data).cast(pa.string()), values.column(data)
    pairs = pa.StructArray.from_arrays([name, value], fields=list(kind.value_type))
    lists = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pairs, mask=pa.array(counts == 0))
    return lists.cast(kind)
