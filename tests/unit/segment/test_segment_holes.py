"""Runs with holes: offsets that have no record."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings

from spark_log.errors import CorruptObject
from spark_log.model import Run, Slice
from spark_log.segment.arrays import ipc
from spark_log.segment.batch_index import BatchEntry, Index, encode_index, parse_index
from spark_log.segment.reader import (
    Decoded,
    decode_batch,
    decode_run,
    find_batches,
    first_at_or_after,
    first_batch_at_or_after,
)
from spark_log.segment.row_batches import with_headers, with_offsets
from spark_log.segment.schema import RECORD_SCHEMA, run_schema
from spark_log.segment.writer import SegmentWriter, WrittenSegment
from tests.unit.segment.builders import OBJECT, START_US, numbered, place, write

ORDERS = "t"


def slice_of(run: Run, span: int, *, start: int = 1000) -> Slice:
    """The slice of a run that covers `span` offsets."""
    return Slice(start, start + span, OBJECT, run.position, run.length, run.crc, run.batches, run.min_us, run.max_us)


def finished(writer: SegmentWriter) -> tuple[bytes, WrittenSegment, Index]:
    written = writer.finish()
    data = b"".join(written.chunks())
    writer.close()
    return data, written, parse_index(data, name=OBJECT)


def thinned(offsets: Sequence[int], span: int, *, batch_rows: int = 4, pieces: int = 1) -> SegmentWriter:
    """A writer with the record `numbered` of each offset, appended in pieces."""
    writer = SegmentWriter(batch_rows=batch_rows, buffer_bytes=1 << 10, open_spool=tempfile.TemporaryFile)
    rows = numbered(span)
    for part in np.array_split(np.array(offsets, np.int64), pieces):
        writer.append(ORDERS, 0, rows.take(pa.array(part)), offsets=part)
    writer.extend(ORDERS, 0, span)
    return writer


def flat(parts: Sequence[Decoded]) -> dict[int, bytes]:
    """Values by offset."""
    offsets = [int(offset) for part in parts for offset in part.offsets]
    assert offsets == sorted(set(offsets))
    return dict(zip(offsets, [v for part in parts for v in part.records.column("value").to_pylist()], strict=True))


# Promise: format/segment.md#runs
@settings(max_examples=80, deadline=None)
@given(data=st.data(), span=st.integers(1, 40), batch_rows=st.integers(1, 7), pieces=st.integers(1, 5))
def test_every_record_is_found_at_its_offset(data: st.DataObject, span: int, batch_rows: int, pieces: int) -> None:
    """Read whole, by any range of offsets through the index, and by time, against a dictionary."""
    offsets = sorted(data.draw(st.sets(st.integers(0, span - 1))))
    model = {offset: numbered(span).column("value")[offset].as_py() for offset in offsets}
    data_, written, index = finished(thinned(offsets, span, batch_rows=batch_rows, pieces=pieces))
    piece = slice_of(written.runs[0], span)
    low, high = data.draw(st.integers(0, span)), data.draw(st.integers(0, span))
    time = START_US + 1000 * data.draw(st.integers(0, span))

    whole = list(decode_run(data_[: piece.length], piece, ["value"], place=place()))
    refs = find_batches(index, piece, (low, high), place=place())
    parts = [
        decode_batch(data_[ref.position : ref.position + ref.length], ref, index, ["value"], place=place())
        for ref in refs
    ]

    assert flat(whole) == model
    assert {at: value for at, value in flat(parts).items() if low <= at < high} == {
        at: value for at, value in model.items() if low <= at < high
    }
    assert sum(ref.rows for ref in find_batches(index, piece, place=place())) == len(model) == written.runs[0].rows
    assert first_offset(data_, index, piece, time) == min(
        (at for at in model if START_US + 1000 * at >= time), default=None
    )


def first_offset(data: bytes, index: Index, piece: Slice, time_us: int) -> int | None:
    ref = first_batch_at_or_after(index, piece, time_us, place=place())
    if ref is None:
        return None
    batch = decode_batch(data[ref.position : ref.position + ref.length], ref, index, ["timestamp"], place=place())
    return first_at_or_after([batch], time_us)


# Promise: format/segment.md#runs
def test_a_run_without_holes_stores_no_offsets() -> None:
    """Offsets that follow one another give the same bytes as none."""
    plain, _ = write([(ORDERS, 0, numbered(10)), (ORDERS, 0, numbered(20, first=10))], batch_rows=10)
    writer = SegmentWriter(batch_rows=10)
    writer.append(ORDERS, 0, numbered(10), offsets=range(10))
    writer.append(ORDERS, 0, numbered(20, first=10), offsets=range(10, 30))
    writer.extend(ORDERS, 0, 30)
    assert finished(writer)[0] == plain


@pytest.mark.parametrize("open_spool", [None, tempfile.TemporaryFile])
def test_a_hole_that_comes_late_moves_nothing(open_spool: None) -> None:
    """Batches that were encoded without offsets, rows that wait, and headers that come later keep their offsets."""
    writer = SegmentWriter(batch_rows=4, buffer_bytes=1, open_spool=open_spool)
    writer.append(ORDERS, 0, numbered(10))
    writer.append(ORDERS, 0, numbered(3, first=20), offsets=range(20, 23))
    writer.append(ORDERS, 0, with_headers(numbered(2, first=30)), offsets=np.array([30, 31]))
    writer.append(ORDERS, 0, numbered(1, first=32))
    data, written, _ = finished(writer)
    run = written.runs[0]
    parts = list(decode_run(data[: run.length], slice_of(run, 33), place=place()))
    assert [value for _, value in sorted(flat(parts).items())] == [
        value
        for first, count in ((0, 10), (20, 3), (30, 3))
        for value in numbered(count, first=first).column("value").to_pylist()
    ]
    assert sorted(flat(parts)) == [*range(10), *range(20, 23), *range(30, 33)]
    assert {name for part in parts for name in part.records.schema.names} == {"key", "value", "timestamp", "headers"}


# Promise: format/segment.md#runs
def test_a_run_without_records_covers_its_offsets() -> None:
    """It has no batch, and a reader finds nothing in it."""
    writer = SegmentWriter()
    writer.extend(ORDERS, 0, 7)
    data, written, index = finished(writer)
    piece = slice_of(written.runs[0], 7)
    assert (piece.batches, written.runs[0].rows) == (0, 0)
    assert list(decode_run(data[: piece.length], piece, place=place())) == []
    assert find_batches(index, piece, place=place()) == []
    assert first_batch_at_or_after(index, piece, 0, place=place()) is None


def test_a_batch_between_holes_has_a_range_of_offsets() -> None:
    """So it costs a reader what a batch of a run without holes costs."""
    data, written, _ = finished(thinned([3, 4, 5, 6], 10))
    (part,) = decode_run(data[: written.runs[0].length], slice_of(written.runs[0], 10), place=place())
    assert part.offsets == range(3, 7)


# Promise: format/segment.md#what-a-reader-refuses
def test_records_that_a_run_without_offsets_lacks_are_reported() -> None:
    """A slice that is longer than its run is corruption, read whole and through the index."""
    data, written = write([(ORDERS, 0, numbered(30))], batch_rows=10)
    longer = slice_of(written.runs[0], 31)
    with pytest.raises(CorruptObject, match="30 offsets, but the log says 31"):
        list(decode_run(data[: longer.length], longer, place=place()))
    with pytest.raises(CorruptObject, match="30 records, but the log says 31"):
        find_batches(parse_index(data, name=OBJECT), longer, (0, 1), place=place())


def test_records_beyond_their_slice_are_reported() -> None:
    """A slice that is shorter than its run is corruption, read whole and through the index."""
    data, written, index = finished(thinned([0, 2, 9], 10))
    shorter = slice_of(written.runs[0], 9)
    with pytest.raises(CorruptObject, match="10 offsets, but the log says 9"):
        list(decode_run(data[: shorter.length], shorter, place=place()))
    with pytest.raises(CorruptObject, match="other offsets than the log"):
        find_batches(index, shorter, place=place())


# Promise: format/segment.md#what-a-reader-refuses
@pytest.mark.parametrize("change", [{"first": 1}, {"last": 8}, {"rows": 2}])
def test_an_index_that_lists_other_offsets_is_reported(change: dict[str, int]) -> None:
    """The first and last offset and the number of records of a batch are compared with the batch."""
    data, written, index = finished(thinned([0, 2, 9], 10))
    (entry,) = [BatchEntry(*row.values()) for row in index.table.to_pylist()]
    forged = encode_index([entry._replace(**change)], list(index.schemas.values()), ipc.write_options(None))
    changed = parse_index(data[: written.index_position] + forged, name=OBJECT)
    (ref,) = find_batches(changed, slice_of(written.runs[0], 10), place=place())
    with pytest.raises(CorruptObject, match="but the index says"):
        decode_batch(data[ref.position : ref.position + ref.length], ref, changed, place=place())


@pytest.mark.parametrize("offsets", [[0, 2, 2], [5, 4, 6]])
def test_offsets_out_of_order_are_reported(offsets: list[int]) -> None:
    """No writer makes such a run; a reader would return records twice."""
    schema = run_schema(headers=False, holes=True)
    batch = with_offsets(numbered(3), np.array(offsets))
    data = ipc.schema_message(schema) + ipc.encode_batch(batch, ipc.write_options(None)) + ipc.END
    run = Run(ORDERS, 0, 0, len(data), crc32c(data), 3, 1, 0, 0)
    with pytest.raises(CorruptObject, match="not in order"):
        list(decode_run(data, slice_of(run, 10), place=place()))


def test_a_gap_between_batches_of_a_run_without_offsets_is_reported() -> None:
    """Only a run that stores offsets may have holes, whatever its index says."""
    data, written = write([(ORDERS, 0, numbered(30))], batch_rows=10)
    index = parse_index(data, name=OBJECT)
    entries = [BatchEntry(*row.values()) for row in index.table.to_pylist()]
    entries[2] = entries[2]._replace(first=25, last=34)
    gap = parse_index(encode_index(entries, [ipc.schema_message(RECORD_SCHEMA)], ipc.write_options(None)), name=OBJECT,
                      object_size=written.size)  # fmt: skip
    with pytest.raises(CorruptObject, match="30 records, but the log says 35"):
        find_batches(gap, slice_of(written.runs[0], 35), place=place())
