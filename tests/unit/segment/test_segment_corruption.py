"""Nothing that was changed, cut off or foreign is read as if it were whole."""

from __future__ import annotations

import io
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from spark_log.errors import CorruptObject, SparkLogError, UnsupportedVersion
from spark_log.model import Run
from spark_log.segment.batch_index import TAIL, TAIL_BYTES
from spark_log.segment.compression import Compression
from spark_log.segment.reader import decode_batch, decode_run, find_batches, parse_index
from spark_log.segment.writer import WrittenSegment
from tests.unit.segment.builders import OBJECT, numbered, place, write


def small() -> tuple[bytes, WrittenSegment]:
    return write([("t", 0, numbered(4)), ("t", 1, numbered(3))], batch_rows=2)


def read_runs(data: bytes, written: WrittenSegment) -> None:
    """As a reader of whole slices does."""
    for run in written.runs:
        list(decode_run(data[run.position : run.position + run.length], run, place=place(run.partition)))


def read_by_index(data: bytes, written: WrittenSegment) -> None:
    """As a reader of parts of slices does."""
    index = parse_index(data[written.index_position :], name=OBJECT, object_size=written.size)
    for run in written.runs:
        for ref in find_batches(index, run, place=place(run.partition)):
            batch = data[ref.position : ref.position + ref.length]
            decode_batch(batch, ref, index, ["value"], place=place(run.partition))


# Promise: format/segment.md#what-a-reader-refuses
def test_every_flipped_bit_is_noticed() -> None:
    """Each bit of the object in turn: runs by their checksum, index and tail by theirs."""
    data, written = small()
    for position in range(len(data)):
        read_it = read_runs if position < written.index_position else read_by_index
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises((CorruptObject, UnsupportedVersion)) as caught:
                read_it(bytes(changed), written)
            assert OBJECT in str(caught.value)


def test_every_flipped_bit_of_a_batch_is_noticed_through_the_index() -> None:
    """Batches read on their own are checked on their own; the error names object, byte, topic and partition."""
    data, written = small()
    index = parse_index(data, name=OBJECT)
    for run in written.runs:
        for ref in find_batches(index, run, place=place(run.partition)):
            for offset in range(ref.length):
                changed = bytearray(data[ref.position : ref.position + ref.length])
                changed[offset] ^= 0x10
                with pytest.raises(CorruptObject) as caught:
                    decode_batch(changed, ref, index, ["timestamp"], place=place(run.partition))
                assert f"{OBJECT}, byte {ref.position} (topic 'orders', id t, partition {run.partition})" in str(
                    caught.value
                )


# Promise: format/segment.md#what-a-reader-refuses
def test_every_length_of_a_cut_off_object_is_noticed() -> None:
    """Cut anywhere, the end is missed with an error that says so, and so is the end of a run or batch."""
    data, written = small()
    run = written.runs[-1]
    for length in range(len(data)):
        with pytest.raises(CorruptObject, match="cut off"):
            parse_index(data[:length], name=OBJECT)
        with pytest.raises(CorruptObject, match="cut off"):
            parse_index(data[written.index_position : length], name=OBJECT, object_size=written.size)
    for length in range(run.length):
        with pytest.raises(CorruptObject, match=r"cut off: \d+ bytes of \d+ .*|cut off"):
            decode_run(data[run.position : run.position + length], run, place=place(1))


def test_a_run_that_was_replaced_by_another_is_noticed_before_its_first_batch() -> None:
    """Good bytes in the wrong place are not the bytes that the slice names."""
    data, written = write([("t", 0, numbered(4)), ("t", 1, numbered(4, first=4))], compression=Compression("none"))
    first, second = written.runs

    with pytest.raises(CorruptObject, match="changed since it was written"):
        decode_run(data[second.position : second.position + second.length], first, place=place())


# Promise: format/segment.md#what-a-reader-refuses
@pytest.mark.parametrize(("old", "new"), [((0, 20), (0, 2**31 - 1)), ((0, 20), (20, 0)), ((20, 40), (-8, 40))])
def test_values_outside_of_their_buffer_are_refused(old: tuple[int, int], new: tuple[int, int]) -> None:
    """The right checksum says nothing about who wrote them, and Arrow would read whatever is in memory there."""
    data, written = write([("t", 0, numbered(4))], compression=Compression("none"))
    (run,) = written.runs
    changed = data[: run.length].replace(struct.pack("<2i", *old), struct.pack("<2i", *new))
    assert changed != data[: run.length]

    with pytest.raises(CorruptObject, match=f"{OBJECT}.*right checksum but cannot be decoded"):
        list(decode_run(changed, run._replace(crc=crc32c(changed)), place=place()))


# Promise: format/segment.md#what-a-reader-refuses
def test_an_index_whose_texts_are_outside_of_their_buffer_is_refused() -> None:
    data, written = write([("t", 0, numbered(4))], compression=Compression("none"))
    index = data[written.index_position : -TAIL_BYTES]
    changed = index.replace(struct.pack("<2i", 0, 1), struct.pack("<2i", 0, 2**31 - 1))
    assert changed != index

    with pytest.raises(CorruptObject, match=f"{OBJECT}.*not an Arrow stream"):
        parse_index(changed + TAIL.pack(len(changed), crc32c(changed), 1, b"PYLOGSEG"), name=OBJECT)


def test_a_newer_version_is_named() -> None:
    """A reader refuses a version that it does not know, whatever the rest looks like."""
    data, _ = small()
    length, crc, version, magic = TAIL.unpack(data[-TAIL_BYTES:])
    newer = data[:-TAIL_BYTES] + TAIL.pack(length, crc, version + 1, magic)

    with pytest.raises(UnsupportedVersion, match=f"{OBJECT}.*version 2.*reads version 1.*upgrade"):
        parse_index(newer, name=OBJECT)


def test_files_of_another_kind_are_told_apart_from_damaged_ones() -> None:
    """Parquet, text and zeros are not pylog segments."""
    parquet = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2, 3]}), parquet)
    for other in (parquet.getvalue(), b"orderId,amount\n1,2\n" * 20, b"hello", bytes(1000)):
        with pytest.raises(UnsupportedVersion, match="another kind of file"):
            parse_index(other, name=OBJECT)


def test_an_index_that_points_outside_is_refused() -> None:
    """Also with right checksums, positions have to lie in the object."""
    data, written = small()
    end = data[written.index_position :]

    with pytest.raises(CorruptObject, match="overlap or lie outside"):
        parse_index(end, name=OBJECT, object_size=len(end) + 8)


def test_a_run_with_another_row_count_is_refused_by_the_index() -> None:
    """The index belongs to the object: a batch with other rows than it says is not decoded."""
    data, written = small()
    index = parse_index(data, name=OBJECT)
    run: Run = written.runs[0]
    ref = find_batches(index, run, place=place())[0]

    with pytest.raises(SparkLogError, match="2 rows, but the index says 3"):
        decode_batch(data[ref.position : ref.position + ref.length], ref._replace(rows=3), index, place=place())
