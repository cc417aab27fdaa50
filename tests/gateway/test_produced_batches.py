"""Record batches that clients send: what they contain, and bytes that are not what they claim to be."""

from __future__ import annotations

import resource
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from spark_log.gateway.error_codes import INVALID_RECORD, MESSAGE_TOO_LARGE
from spark_log.gateway.produced_batches import (
    HEADERS_MAX,
    HEADERS_TOGETHER_MAX,
    RECORDS_MAX,
    RefusedBatch,
    TooManyHeaders,
    parse_batch,
    records_of,
    uncompressed,
)
from spark_log.gateway.record_batch import HEADER_BYTES

Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
DATA = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.tuples(st.integers(0, 1 << 50), DATA, DATA, st.lists(st.tuples(st.text(max_size=9), DATA), max_size=4)),
    min_size=1,
    max_size=40,
)


def made(records: list[Record], codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    for number, (at, key, value, headers) in enumerate(records):
        builder.append(number, at, key, value, headers)
    return bytes(builder.build())


def sealed(head: bytes, body: bytes) -> bytes:
    """A batch whose length and checksum are right."""
    whole = head[:8] + struct.pack(">i", HEADER_BYTES - 12 + len(body)) + head[12:HEADER_BYTES] + body
    return whole[:17] + struct.pack(">I", crc32c(whole[21:])) + whole[21:]


def read(*batches: bytes) -> list[dict[str, Any]]:
    parsed = [parse_batch(one) for one in batches]
    rows = records_of(parsed, [uncompressed(one) for one in parsed], 5).records
    rows.validate(full=True)
    rows = rows.set_column(2, "timestamp", rows["timestamp"].view(pa.int64()))
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def test_a_time_that_has_no_opposite_is_refused() -> None:
    """The absolute value of the least number is itself."""
    one = made([(5, None, b"x", [])])
    wrong = one[:27] + struct.pack(">q", -(1 << 63)) + one[35:]
    with pytest.raises(RefusedBatch, match="a time that is out of range"):
        read(sealed(wrong, wrong[HEADER_BYTES:]))


# Promise: gateway.md#limits
def test_a_batch_of_too_many_records_is_refused_before_they_are_read() -> None:
    """Clients divide it.  Compressed, a million records fit into some kilobytes."""
    one, many = made([(5, None, b"x", [])]), RECORDS_MAX + 1
    wrong = one[:23] + struct.pack(">i", many - 1) + one[27:57] + struct.pack(">i", many)
    with pytest.raises(RefusedBatch, match="a batch of 1000001 records"):
        uncompressed(parse_batch(sealed(wrong, bytes(7 * many))))


@given(st.lists(RECORDS, min_size=1, max_size=3), st.sampled_from([0, 1]))
def test_records_are_those_of_the_client(batches: list[list[Record]], codec: int) -> None:
    """The records of several batches, in order."""
    found = read(*[made(records, codec) for records in batches])
    for row, (at, key, value, headers) in zip(found, [one for records in batches for one in records], strict=True):
        assert (row["key"], row["value"]) == (key, value)
        assert row["timestamp"] == 1000 * at
        assert [(one["key"], one["value"]) for one in row.get("headers") or ()] == headers


# Promise: gateway.md#limits
@given(st.data())
def test_any_bytes_are_records_or_refused(data: st.DataObject) -> None:
    """Bodies of real batches with flipped, cut and added bytes, under a right checksum; and any bytes at all."""
    batch = made(data.draw(RECORDS), data.draw(st.sampled_from([0, 1])))
    body = bytearray(batch[HEADER_BYTES:])
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[at] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
    body += data.draw(st.binary(max_size=9))
    head = bytearray(batch[:HEADER_BYTES])
    if data.draw(st.booleans()):
        head[data.draw(st.integers(21, HEADER_BYTES - 1))] = data.draw(st.integers(0, 255))
    for one in (sealed(bytes(head), bytes(body)), bytes(head + body), data.draw(st.binary(max_size=100))):
        try:
            read(one)
        except RefusedBatch:
            continue


def address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@given(body=st.binary(max_size=60))
def test_any_bytes_are_decompressed_or_refused(codec: int, body: bytes) -> None:
    head = bytearray(made([(1, None, b"x", [])])[:HEADER_BYTES])
    head[22] = codec
    for sent in (body, b"\x82SNAPPY\0" + body, b"\x04\x22\x4d\x18" + body, b"\x28\xb5\x2f\xfd" + body):
        try:
            read(sealed(bytes(head), sent))
        except RefusedBatch:
            continue


@pytest.mark.parametrize("codec", [3, 4])
def test_bodies_that_cannot_be_decompressed_keep_no_memory(codec: int) -> None:
    """pyarrow's `read` kept 64 MiB for each."""
    head = bytearray(made([(1, None, b"x", [])])[:HEADER_BYTES])
    head[22] = codec
    before = address_space_bytes()
    for _ in range(50):
        with pytest.raises(RefusedBatch, match="cannot be decompressed"):
            read(sealed(bytes(head), b"neither"))
    assert address_space_bytes() - before < 1 << 30


# Promise: gateway.md#limits
def test_counts_that_lie_are_refused() -> None:
    """Before memory is taken, or time: of records, and of headers."""
    batch = made([(1, None, b"x", [])])
    many = batch[:23] + struct.pack(">i", (1 << 30) - 1) + batch[27:57] + struct.pack(">i", 1 << 30)
    packed = many[:22] + b"\1" + many[23:]
    bomb = zlib.compressobj(9, wbits=31)
    headers = b"\0\0\0\1\1" + varint(HEADERS_MAX + 1) + b"\0\1" * (HEADERS_MAX + 1)
    for head, body in (
        (many, batch[HEADER_BYTES:]),
        (packed, bomb.compress(bytes(1 << 20)) + bomb.flush()),
        (batch, varint(len(headers)) + headers),
    ):
        with pytest.raises(RefusedBatch) as refused:
            read(sealed(head, body))
        assert refused.value.code == INVALID_RECORD


def varint(value: int) -> bytes:
    """Zigzag."""
    value, out = value << 1, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


# Promise: gateway.md#limits
def test_a_batch_of_too_many_headers_is_refused_before_they_are_read() -> None:
    """One has two bytes at least, and takes much more memory when it is read."""
    headers: list[tuple[str, bytes | None]] = [("", None)] * HEADERS_MAX
    one = made([(5, None, b"x", headers)])
    most = HEADERS_TOGETHER_MAX // HEADERS_MAX
    assert len(read(*[one] * 2)) == 2
    records: list[Record] = [(5, None, b"x", headers)] * (most + 1)
    with pytest.raises(TooManyHeaders, match="1010000 headers") as found:
        read(made(records))
    assert found.value.code == MESSAGE_TOO_LARGE
    tracemalloc.start()
    parsed = parse_batch(made(records))
    body = uncompressed(parsed)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with pytest.raises(TooManyHeaders):
        records_of([parsed], [body], 5)
    assert tracemalloc.get_traced_memory()[1] - before < 4 * len(body)
    tracemalloc.stop()
