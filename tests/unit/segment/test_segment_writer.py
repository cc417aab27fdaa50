"""The rows of a segment are read back unchanged, within the writer's memory."""

from __future__ import annotations

import io
from collections import defaultdict
from typing import Any, BinaryIO

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings

from spark_log.errors import InvalidRecord, StorageError
from spark_log.segment.arrays import ipc
from spark_log.segment.compression import Compression
from spark_log.segment.reader import parse_index
from spark_log.segment.record_columns import micros
from spark_log.segment.row_batches import has_headers
from spark_log.segment.schema import RECORD_SCHEMA, RECORD_SCHEMA_HEADERS
from spark_log.segment.writer import CHUNK_BYTES, PLAIN, EncodedRows, SegmentWriter
from tests.unit.segment.builders import START_US, numbered, read, records, shuffled, write

_BYTES = st.none() | st.binary(max_size=40)
_HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=3), _BYTES), max_size=3)
_RECORD = st.tuples(_BYTES, _BYTES, st.integers(0, 2**52), _HEADERS)
_COMPRESSIONS = [Compression("none"), Compression("lz4", 1), Compression("zstd", 1), Compression("zstd", 9)]
_APPEND = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1), st.booleans(), st.lists(_RECORD, max_size=12))


class Spools:
    """Opens spool files in memory and counts them."""

    def __init__(self) -> None:
        self.files: list[BinaryIO] = []

    def open(self) -> BinaryIO:
        self.files.append(io.BytesIO())
        return self.files[-1]


@settings(max_examples=60, deadline=None)
@given(
    appends=st.lists(_APPEND, max_size=12),
    compression=st.sampled_from(_COMPRESSIONS),
    batch_rows=st.integers(1, 15),
    batch_bytes=st.integers(1, 600),
    buffer_bytes=st.sampled_from([0, 500, 1 << 20]),
)
def test_every_record_comes_back_once_and_in_its_order(
    appends: list[tuple[str, int, bool, list[tuple[Any, ...]]]],
    compression: Compression,
    batch_rows: int,
    batch_bytes: int,
    buffer_bytes: int,
) -> None:
    """Whatever was appended, in whatever pieces and limits, with and without headers, is read back as it was."""
    expected: dict[tuple[str, int], list[tuple[Any, ...]]] = defaultdict(list)
    parts = []
    for topic_id, partition, headers, rows in appends:
        rows = rows if headers else [(*row[:3], None) for row in rows]
        expected[topic_id, partition] += rows
        parts.append((topic_id, partition, records(rows if headers else [row[:3] for row in rows], headers=headers)))

    data, written = write(
        parts,
        compression=compression,
        batch_rows=batch_rows,
        batch_bytes=batch_bytes,
        buffer_bytes=buffer_bytes,
        open_spool=Spools().open,
    )

    found = {key: table_rows(table) for key, table in read(data, written).items()}
    assert found == {key: rows for key, rows in expected.items() if rows}
    assert [(run.topic_id, run.partition) for run in written.runs] == sorted(found)


def table_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    columns = [table["key"].to_pylist(), table["value"].to_pylist(), times]
    headers: list[Any] = [None] * len(table)
    if "headers" in table.column_names:
        for row, entries in enumerate(table["headers"].to_pylist()):
            headers[row] = None if entries is None else [(entry["key"], entry["value"]) for entry in entries]
    return list(zip(*columns, headers, strict=True))


# Promise: format/segment.md#segment-objects-format-version-1
def test_a_run_is_an_arrow_stream_that_any_reader_opens() -> None:
    """`pa.ipc.open_stream` reads a run from its position, and the first run from the object's start."""
    data, written = write([("t", 1, numbered(30)), ("t", 0, numbered(5))], batch_rows=10)

    runs = [pa.ipc.open_stream(pa.py_buffer(data)[run.position :]).read_all() for run in written.runs]

    assert [run.num_rows for run in runs] == [5, 30]
    assert pa.ipc.open_stream(data).read_all().num_rows == 5


def test_a_run_reports_its_rows_batches_and_times() -> None:
    """`Run` has the counts and the least and greatest timestamp of its records, which need not be in order."""
    rows = shuffled(95, seed=1)
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()

    _, written = write([("t", 0, rows)], batch_rows=10)

    (run,) = written.runs
    assert (run.rows, run.batches, run.min_us, run.max_us) == (95, 10, min(times), max(times))


def test_a_partition_has_one_run_however_its_rows_come() -> None:
    """Rows of many partitions that come by turns still make one run for each, and full batches."""
    parts = [("t", number % 7, numbered(10, first=10 * number)) for number in range(140)]

    data, written = write(parts, batch_rows=50)

    assert [(run.partition, run.rows, run.batches) for run in written.runs] == [(p, 200, 4) for p in range(7)]
    assert sum(table.num_rows for table in read(data, written).values()) == 1400


# Promise: format/segment.md#runs
def test_batches_are_filled_to_their_rows_across_appends() -> None:
    """Appends of 30 rows become batches of exactly 100."""
    data, written = write([("t", 0, numbered(30, first=30 * i)) for i in range(10)], batch_rows=100)

    index = parse_index(data[written.index_position :], name="x", object_size=written.size)

    assert index.numbers["rows"].tolist() == [100, 100, 100]


# Promise: format/segment.md#runs
def test_a_batch_holds_no_more_than_its_bytes() -> None:
    """With rows of uneven size a batch ends before `batch_bytes`, unless a single row is larger."""
    rng = np.random.default_rng(3)
    sizes = [int(size) for size in rng.integers(0, 3000, 300)]
    sizes[100] = 50_000
    rows = records([(None, bytes(size), START_US) for size in sizes])

    data, written = write([("t", 0, rows.slice(0, 150)), ("t", 0, rows.slice(150))], batch_bytes=10_000)

    index = parse_index(data, name="x")
    ends = np.cumsum(np.asarray(sizes) + 16)
    lasts = index.numbers["last"]
    raw = np.diff(np.concatenate(([0], ends[lasts])))
    single = index.numbers["rows"] == 1
    assert (raw[~single] <= 10_000).all()
    assert raw[single].max() == 50_016
    assert raw.mean() > 7_000
    assert written.runs[0].rows == 300


def test_header_bytes_count_towards_the_batch() -> None:
    """Rows whose weight is in their headers do not make batches without bounds."""
    rows = records([(None, b"", START_US, [("h", bytes(1000))])] * 100, headers=True)

    _, written = write([("t", 0, rows)], batch_bytes=10_000)

    assert written.runs[0].batches == 12


def test_headers_that_come_late_lose_nothing() -> None:
    """A run has one schema: batches encoded before the first header get null headers, kept or spooled."""
    plain, with_headers = numbered(25), records([(b"k", b"v", START_US, [("a", b"1")])], headers=True)
    for buffer_bytes in (0, 1 << 20):
        parts = [("t", 0, plain), ("t", 1, plain), ("t", 0, with_headers), ("t", 0, plain)]
        data, written = write(parts, batch_rows=10, buffer_bytes=buffer_bytes, open_spool=Spools().open)

        tables = read(data, written)

        assert tables["t", 0].schema == RECORD_SCHEMA_HEADERS
        assert tables["t", 0]["headers"].to_pylist() == [None] * 25 + [[{"key": "a", "value": b"1"}]] + [None] * 25
        assert tables["t", 0].slice(26).select(["key", "value"]).equals(pa.table(plain).select(["key", "value"]))
        assert "headers" not in tables["t", 1].column_names


def test_headers_may_come_late_in_encoded_rows() -> None:
    """Batches of another process, and rows that follow them, become one run."""
    plain, with_headers = numbered(25), records([(b"k", b"v", START_US, [("a", b"1")])], headers=True)
    writer = SegmentWriter()
    for rows in (plain, with_headers):
        data, times = ipc.encode_batch(rows, PLAIN), micros(rows)
        one = EncodedRows(
            data, crc32c(data), rows.num_rows, int(times.min()), int(times.max()), has_headers(rows), False
        )
        writer.append_encoded("t", 0, one)
    writer.append("t", 0, plain)

    written = writer.finish()

    table = read(b"".join(written.chunks()), written)["t", 0]
    assert table["headers"].to_pylist() == [None] * 25 + [[{"key": "a", "value": b"1"}]] + [None] * 25
    assert table.slice(26).select(["key", "value"]).equals(pa.table(plain).select(["key", "value"]))


def test_batches_that_were_encoded_again_are_not_kept_twice() -> None:
    """Late headers replace what was in memory: it is not more than the object."""
    writer = SegmentWriter(batch_rows=10)
    writer.append("t", 0, numbered(1000))
    writer.append("t", 0, records([(b"k", b"v", START_US, [("a", b"1")])] * 10, headers=True))

    assert writer.buffered_bytes < writer.finish().index_position


def test_sliced_input_is_written_as_the_slice() -> None:
    """Rows outside of a slice are not written, and offsets inside of it are right."""
    rows = numbered(1000)

    data, written = write([("t", 0, rows.slice(900, 7)), ("t", 0, pa.table(rows).slice(3, 2))])

    keys = read(data, written)["t", 0]["key"].to_pylist()
    assert keys == [b"k%d" % i for i in [*range(900, 907), 3, 4]]


def test_a_writer_without_rows_gives_no_runs() -> None:
    """Appending nothing, or empty batches, leaves an object with an index and no run."""
    data, written = write([("t", 0, numbered(0))])

    assert written.runs == ()
    assert written.index_position == 0
    assert parse_index(data, name="x").table.num_rows == 0


def test_above_the_buffer_batches_go_to_the_spool() -> None:
    """Memory stays below `buffer_bytes` and two batches, and the object is the same as without a spool."""
    spools = Spools()
    writer = SegmentWriter(
        buffer_bytes=50_000, batch_bytes=10_000, compression=Compression("none"), open_spool=spools.open
    )
    whole = SegmentWriter(batch_bytes=10_000, compression=Compression("none"))
    for first in range(0, 20_000, 100):
        rows = numbered(100, first=first)
        writer.append("t", first // 100 % 2, rows)
        whole.append("t", first // 100 % 2, rows)
        assert writer.buffered_bytes <= 50_000 + 20_000

    written = writer.finish()

    assert len(spools.files) == 1
    assert written.size > 500_000
    assert b"".join(written.chunks()) == b"".join(whole.finish().chunks())
    writer.close()
    assert spools.files[0].closed


def test_below_the_buffer_no_spool_is_opened() -> None:
    """A small write touches no local disk."""
    spools = Spools()

    write([("t", 0, numbered(1000))], open_spool=spools.open)

    assert spools.files == []


# Promise: measurements-alone.md#pylog-alone
def test_rows_that_wait_in_many_partitions_do_not_fill_the_memory() -> None:
    """With a thousand partitions, rows become batches early rather than exceed the buffer."""
    spools = Spools()
    writer = SegmentWriter(buffer_bytes=40_000, batch_bytes=5_000, open_spool=spools.open)

    for number in range(5_000):
        writer.append("t", number % 1000, numbered(1, first=number, value_bytes=200))
        assert writer.buffered_bytes <= 40_000 + 10_000

    assert len(writer.finish().runs) == 1000


def test_a_small_waiting_slice_does_not_keep_a_large_batch_alive() -> None:
    """Waiting rows are copied out of the batch they were cut from, so that it can be freed."""
    before = pa.total_allocated_bytes()
    writer = SegmentWriter()

    for _ in range(50):
        writer.append("t", 0, records([(None, bytes(100_000), START_US)] * 10 + [(None, b"x", START_US)]).slice(10))

    assert pa.total_allocated_bytes() - before < 2_000_000


def test_a_closed_batch_has_only_the_rows_so_far() -> None:
    """Rows appended after it begin the next batch; long ones are cut as usual."""
    writer = SegmentWriter(batch_rows=10)
    for rows in (3, 24, 5):
        writer.append("t", 0, numbered(rows), close_batch=True)

    written = writer.finish()

    index = parse_index(b"".join(written.chunks()), name="x")
    assert index.table["rows"].to_pylist() == [3, 10, 10, 4, 5]


def test_reserved_memory_is_not_used_for_batches() -> None:
    """Encoded batches go to the spool earlier while the caller needs a part of the buffer."""
    spools = Spools()
    writer = SegmentWriter(
        buffer_bytes=100_000, batch_rows=100, compression=Compression("none"), open_spool=spools.open
    )
    for first in range(0, 1000, 100):
        writer.append("t", 0, numbered(100, first=first))
    assert spools.files == []

    writer.reserve(90_000)

    assert len(spools.files) == 1
    assert writer.buffered_bytes == 0


def test_an_object_of_many_short_runs_has_few_chunks() -> None:
    """A store's write for each of a thousand runs would cost more than the bytes."""
    _, written = write([("t", partition, numbered(1)) for partition in range(1000)])

    assert written.size > 300_000
    assert len(list(written.chunks())) <= written.size // CHUNK_BYTES + 1


def test_chunks_can_be_read_again() -> None:
    """A put that failed is made again from the same writer, also when it was spooled."""
    spools = Spools()
    writer = SegmentWriter(buffer_bytes=0, batch_rows=10, open_spool=spools.open)
    writer.append("t", 0, numbered(100))

    written = writer.finish()

    assert b"".join(written.chunks()) == b"".join(written.chunks())


def test_a_spool_that_gives_back_other_bytes_is_noticed() -> None:
    """A local disk that lies does not get its bytes into the log."""
    spools = Spools()
    writer = SegmentWriter(buffer_bytes=0, batch_rows=10, open_spool=spools.open)
    writer.append("t", 0, numbered(100))
    written = writer.finish()
    spools.files[0].seek(50)
    spools.files[0].write(b"\0\1\2")

    with pytest.raises(StorageError, match="spool"):
        list(written.chunks())


def test_a_full_local_disk_is_reported_as_storage() -> None:
    """The error says that it is the spool, in the system's words."""
    with open("/dev/full", "r+b", buffering=0) as full:
        writer = SegmentWriter(buffer_bytes=0, batch_rows=10, open_spool=lambda: full)

        with pytest.raises(StorageError, match="spool file.*No space left"):
            writer.append("t", 0, numbered(20))


def test_a_value_larger_than_a_batch_is_kept_whole() -> None:
    """A record of 5 MB among small ones."""
    big = bytes(5_000_000)
    data, written = write([("t", 0, records([(b"a", b"1", 1), (b"b", big, 2), (b"c", b"3", 3)]))])

    assert read(data, written)["t", 0]["value"].to_pylist() == [b"1", big, b"3"]
    assert written.runs[0].batches == 3


def test_rows_that_are_not_those_of_their_run_are_refused_with_a_sentence() -> None:
    """Also under `python -O`: a bare assert would have let them into the object."""
    writer = SegmentWriter()
    writer.append("t", 0, numbered(3))
    without_time = numbered(2).set_column(
        RECORD_SCHEMA.get_field_index("timestamp"),
        RECORD_SCHEMA.field("timestamp"),
        pa.nulls(2, pa.timestamp("us", "UTC")),
    )
    with pytest.raises(InvalidRecord, match="2 of 2 records have no timestamp"):
        writer.append("t", 0, without_time)
    with pytest.raises(
        InvalidRecord, match="a run has either bytes or data columns: rows of .* more int64 follow rows of key binary"
    ):
        writer.append("t", 0, numbered(2).append_column("more", pa.array([1, 2])))
    with pytest.raises(InvalidRecord, match="offset 1 follows offset 2: offsets of a run ascend"):
        writer.append("t", 0, numbered(2), offsets=np.array([1, 5]))
    with pytest.raises(InvalidRecord, match="has rows up to offset 3: its run cannot end at 2"):
        writer.extend("t", 0, 2)
    written = writer.finish()
    assert [run.rows for run in written.runs] == [3]
