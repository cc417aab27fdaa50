"""Finding batches by row and by time, and decoding no more than is asked for."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_log.conditions import Window
from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.model import Run, Slice
from spark_log.segment.arrays import ipc
from spark_log.segment.batch_index import BatchEntry, Index, encode_index
from spark_log.segment.compression import topic_compression
from spark_log.segment.reader import (
    BatchRef,
    decode_batch,
    decode_run,
    find_batches,
    first_at_or_after,
    first_batch_at_or_after,
    parse_index,
)
from spark_log.segment.schema import RECORD_SCHEMA, SCHEMA_ID, TIMESTAMP
from spark_log.segment.writer import WrittenSegment
from tests.unit.segment.builders import OBJECT, START_US, numbered, place, records, shuffled, write


def indexed(data: bytes, written: WrittenSegment) -> Index:
    """From the bytes that a ranged read of the end gives."""
    return parse_index(data[written.index_position :], name=OBJECT, object_size=written.size)


def cut(data: bytes, ref: BatchRef) -> memoryview:
    return memoryview(data)[ref.position : ref.position + ref.length]


def reference(run: Run) -> Slice:
    """The slice that a commit makes of a run."""
    return Slice(
        start=1000,
        end=1000 + run.rows,
        object=OBJECT,
        position=run.position,
        length=run.length,
        crc=run.crc,
        batches=run.batches,
        min_us=run.min_us,
        max_us=run.max_us,
    )


# Promise: format/segment.md#what-a-reader-refuses, spark-read.md#reading-less
def test_a_slice_read_whole_needs_no_index() -> None:
    """`decode_run` with what the state keeps gives the records back."""
    data, written = write([("t", 3, numbered(57))], batch_rows=10)
    part = reference(written.runs[0])

    parts = list(decode_run(data[part.position :][: part.length], part, place=place(3)))
    table = pa.Table.from_batches([found.records for found in parts])

    assert [offset for found in parts for offset in found.offsets] == list(range(57))
    assert table.equals(pa.table(numbered(57)))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10_000), rows=st.integers(1, 60), batch_rows=st.integers(1, 9))
def test_search_finds_what_a_scan_finds(data: st.DataObject, seed: int, rows: int, batch_rows: int) -> None:
    """Batches by rows and by time, and the first record at or after a time, against loops over all records."""
    records_ = shuffled(rows, seed=seed)
    times = records_.column("timestamp").cast(pa.int64()).to_pylist()
    object_, written = write([("a", 0, numbered(5)), ("b", 0, records_), ("c", 1, numbered(5))], batch_rows=batch_rows)
    index, run = indexed(object_, written), written.runs[1]
    start, end = data.draw(st.integers(0, rows + 3)), data.draw(st.integers(0, rows + 3))
    low = START_US + data.draw(st.integers(-1, rows * 10 + 1))
    high = low + data.draw(st.integers(0, rows * 5))

    found = find_batches(index, run, (start, end), Window(low, high), place=place())

    batches = [range(first, min(first + batch_rows, rows)) for first in range(0, rows, batch_rows)]
    expected = [
        batch.start
        for batch in batches
        if max(batch.start, start) < min(batch.stop, end)
        and max(times[batch.start : batch.stop]) >= low
        and min(times[batch.start : batch.stop]) < high
    ]
    assert [ref.first for ref in found] == expected
    assert first_row(object_, index, run, low) == next((row for row, time in enumerate(times) if time >= low), None)


def first_row(data: bytes, index: Index, run: Run, time_us: int) -> int | None:
    ref = first_batch_at_or_after(index, run, time_us, place=place())
    if ref is None:
        return None
    return first_at_or_after([decode_batch(cut(data, ref), ref, index, ["timestamp"], place=place())], time_us)


def test_the_first_record_at_a_time_is_found_in_a_run_read_whole() -> None:
    """Rows are counted over all batches, and None says that all are earlier."""
    times = [5, 3, 9, 4, 20, 1]
    data, written = write([("t", 0, records([(None, b"", time) for time in times]))], batch_rows=2)
    run = written.runs[0]

    def first(time: int) -> int | None:
        return first_at_or_after(decode_run(memoryview(data)[: run.length], run, ["timestamp"], place=place()), time)

    assert [first(time) for time in (0, 5, 6, 10, 20, 21)] == [0, 0, 2, 4, 4, None]


# Promise: format/segment.md#index
def test_only_the_batches_that_overlap_are_found() -> None:
    """A window of one batch in a thousand refers to that one."""
    data, written = write([("t", 0, numbered(10_000))], batch_rows=10)
    index, run = indexed(data, written), written.runs[0]

    by_row = find_batches(index, run, (5_000, 5_010), place=place())
    by_time = find_batches(index, run, None, Window(START_US + 5_000_000, START_US + 5_010_000), place=place())

    assert [ref.first for ref in by_row] == [5_000]
    assert by_time == by_row
    assert len(find_batches(index, run, place=place())) == 1000


def test_a_batch_in_the_middle_is_decoded_without_the_start_of_its_run() -> None:
    """The bytes of the batch and the index are enough, in any order of columns."""
    data, written = write([("t", 0, numbered(100))], batch_rows=10)
    index = indexed(data, written)
    (ref,) = find_batches(index, written.runs[0], (42, 43), place=place())

    offsets, batch = decode_batch(cut(data, ref), ref, index, ["timestamp", "key"], place=place())

    assert offsets == range(40, 50)
    assert batch.equals(numbered(100).slice(40, 10).select(["timestamp", "key"]))


# Promise: ../README.md#why
@pytest.mark.parametrize("codec", ["lz4", "zstd", "none"])
def test_only_the_columns_asked_for_are_decoded(codec: str) -> None:
    """The key alone takes no memory for the values, which are incompressible and large."""
    rng = np.random.default_rng(5)
    rows = records([(b"k%d" % i, rng.bytes(10_000), START_US + i) for i in range(100)])
    data, written = write([("t", 0, rows)], compression=topic_compression({}).of_writer(codec))
    index, run = indexed(data, written), written.runs[0]
    (ref,) = find_batches(index, run, place=place())
    before = pa.total_allocated_bytes()

    ((_, whole),) = decode_run(memoryview(data)[: run.length], run, ["key"], place=place())
    _, batch = decode_batch(cut(data, ref), ref, index, ["key"], place=place())

    assert batch.schema.names == whole.schema.names == ["key"]
    assert batch.column("key").to_pylist() == rows.column("key").to_pylist()
    if codec != "none":
        assert pa.total_allocated_bytes() - before < 50_000


def test_rows_can_be_counted_without_a_column() -> None:
    """No columns asked for still gives the number of rows."""
    data, written = write([("t", 0, numbered(30))])
    index, run = indexed(data, written), written.runs[0]
    (ref,) = find_batches(index, run, place=place())

    _, batch = decode_batch(cut(data, ref), ref, index, [], place=place())
    ((_, whole),) = decode_run(memoryview(data)[: run.length], run, [], place=place())

    assert (batch.num_rows, batch.num_columns) == (whole.num_rows, whole.num_columns) == (30, 0)


def test_headers_that_a_run_does_not_have_are_null() -> None:
    """A reader that asks for headers gets the column from every run, in the order asked for."""
    data, written = write([("t", 0, numbered(2))])
    run = written.runs[0]

    ((_, batch),) = decode_run(memoryview(data)[: run.length], run, ["headers", "key"], place=place())

    assert batch.to_pydict() == {"headers": [None, None], "key": [b"k0", b"k1"]}


def test_a_run_that_the_index_does_not_have_is_reported() -> None:
    """A slice that does not fit its object is corruption, with object, position, topic and partition."""
    data, written = write([("t", 0, numbered(30))], batch_rows=10)
    wrong = written.runs[0]._replace(batches=4)

    with pytest.raises(CorruptObject, match=r"data/7/a.seg, byte 0 \(topic 'orders', id t, partition 0\)"):
        find_batches(indexed(data, written), wrong, place=place())


# Promise: format/segment.md#runs
def test_a_run_with_unknown_columns_or_schema_id_is_left_to_newer_versions() -> None:
    """They are refused by name, read whole or by batch."""
    later = pa.schema(
        [("key", pa.binary()), ("tombstone", pa.bool_()), ("value.x", pa.duration("s")), ("timestamp", TIMESTAMP)],
        metadata={SCHEMA_ID: b"1"},
    )
    typed = pa.schema([("key", pa.binary()), ("timestamp", pa.timestamp("us", "UTC")), ("amount", pa.float64())])
    named = RECORD_SCHEMA.with_metadata({SCHEMA_ID: b"17"})
    other = RECORD_SCHEMA.with_metadata({SCHEMA_ID: b"x"})
    cases = ((typed, "amount: double"), (named, "value: binary"), (other, "schema 'x'"), (later, "value.x: duration"))
    for schema, words in cases:
        message = ipc.schema_message(schema)
        batch = pa.RecordBatch.from_pylist([{"key": b"k"}], schema=schema)
        body = ipc.encode_batch(batch, ipc.write_options(None))
        data = message + body + ipc.END
        run = Run("t", 0, 0, len(data), ipc_crc(data), 1, 1, 0, 0)
        entry = BatchEntry("t", 0, 0, 0, 1, len(message), len(body), 0, 0, ipc_crc(body), 0)
        index = parse_index(data + encode_index([entry], [message], ipc.write_options(None)), name=OBJECT)
        (ref,) = find_batches(index, run, place=place())

        with pytest.raises(UnsupportedVersion, match=words):
            decode_run(data, run, ["key"], place=place())
        with pytest.raises(UnsupportedVersion, match=words):
            decode_batch(body, ref, index, ["key"], place=place())


def ipc_crc(data: bytes) -> int:
    from crc32c import crc32c

    return int(crc32c(data))


# Promise: format/segment.md#reserved
def test_columns_that_a_later_index_adds_are_ignored() -> None:
    """Statistics of other columns may come into the index without a new version."""
    data, written = write([("t", 0, numbered(30))], batch_rows=10)
    index = indexed(data, written)
    more = index.table.append_column("min_amount", pa.nulls(3, pa.float64()))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, more.schema) as out:
        out.write_table(more)
    body = stream.getvalue().to_pybytes()

    found = parse_index(data[: written.index_position] + body + tail(body), name=OBJECT)

    assert found.table.column_names == index.table.column_names
    assert find_batches(found, written.runs[0], place=place()) == find_batches(index, written.runs[0], place=place())


def tail(index: bytes, **changes: Any) -> bytes:
    from spark_log.segment.batch_index import MAGIC, TAIL, VERSION

    return TAIL.pack(len(index), ipc_crc(index), VERSION, MAGIC)
