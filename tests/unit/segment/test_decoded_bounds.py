"""A few bytes of an object do not become GBs in the memory of a reader."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from spark_log.bounds import DECODED_FREE
from spark_log.errors import CorruptObject, SparkLogError
from spark_log.metadata.formats.slice_index import SCHEMA, decode_piece, pieces_in, slices_of
from spark_log.metadata.maps.frames import Frame, encode_columns, encode_end, read_frames
from spark_log.metadata.records import Piece
from spark_log.model import Run
from spark_log.segment.arrays import ipc
from spark_log.segment.arrays.dictionaries import dictionary_schema, plain
from spark_log.segment.arrays.ipc_sizes import DecodedTooLarge
from spark_log.segment.batch_index import INDEX_SCHEMA, TAIL, encode_index, parse_index
from spark_log.segment.reader import decode_batch, decode_run, find_batches
from spark_log.segment.schema import RECORD_SCHEMA
from tests.bombs import NOW_US, compressed, zeros
from tests.unit.segment.builders import OBJECT, place, read, write

TOO_MANY = DECODED_FREE + 1
ZSTD = ipc.write_options(pa.Codec("zstd"))


def run_of(message: bytes, rows: int = 1) -> tuple[bytes, Run]:
    data = b"".join([ipc.schema_message(RECORD_SCHEMA), message, ipc.END])
    return data, Run("t", 0, 0, len(data), crc32c(data), rows, 1, NOW_US, NOW_US)


# Promise: format/segment.md#runs
def test_a_run_is_refused_before_it_is_decoded() -> None:
    """The message names the object, the position, the declared bytes and the bound."""
    data, run = run_of(compressed(zeros(TOO_MANY)))
    before = pa.total_allocated_bytes()

    with pytest.raises(CorruptObject, match=rf"{OBJECT}, byte 0 .*declares 16,777,2\d\d .*bound is 16,777,216"):
        decode_run(data, run, place=place())
    assert pa.total_allocated_bytes() - before < DECODED_FREE


def test_a_batch_that_is_read_by_the_index_is_refused() -> None:
    """Also if only another column is asked for, whose bytes are few."""
    data, written = write([("t", 0, zeros(20))])
    index = parse_index(data, name=OBJECT)
    (ref,) = find_batches(index, written.runs[0], place=place())
    bomb = compressed(zeros(TOO_MANY))
    ref = ref._replace(length=len(bomb), crc=crc32c(bomb))

    with pytest.raises(CorruptObject, match=f"{OBJECT}.*declares"):
        decode_batch(bomb, ref, index, ["timestamp"], place=place())


# Promise: format/segment.md#runs
@pytest.mark.parametrize("size", [DECODED_FREE - 1000, TOO_MANY, 3 * DECODED_FREE])
def test_a_writer_writes_what_readers_take(size: int) -> None:
    """Zeros, which compression makes 10,000 times as short, are not compressed if they are many."""
    data, written = write([("t", 0, zeros(size))])

    (table,) = read(data, written).values()
    assert table["value"][0].as_buffer().size == size
    assert (len(data) > size) == (size > DECODED_FREE)


def test_more_rows_than_offsets_are_refused_before_they_are_returned() -> None:
    """The log says how many offsets a run has."""
    data, run = run_of(compressed(pa.concat_batches([zeros(1), zeros(1)])), rows=1)

    with pytest.raises(CorruptObject, match="more records than offsets: the log says 1"):
        next(decode_run(data, run, place=place()))


def test_an_index_is_refused() -> None:
    """Its messages count together, because all of them are held."""
    column = pa.array(["x" * (DECODED_FREE // 2 + 1)])
    rows = [column, *(pa.array([0], field.type) for field in list(INDEX_SCHEMA)[1:])]
    batch = pa.RecordBatch.from_arrays(rows, schema=INDEX_SCHEMA)
    index = ipc.schema_message(INDEX_SCHEMA) + 2 * compressed(batch) + ipc.END
    data = index + TAIL.pack(len(index), crc32c(index), 1, b"PYLOGSEG")

    with pytest.raises(CorruptObject, match=f"{OBJECT}: the index at byte 0.*declares"):
        parse_index(data, name=OBJECT)
    parse_index(encode_index([], [], ZSTD), name=OBJECT)


def test_a_dictionary_does_not_become_many_bytes() -> None:
    """One long value has a number in each of many rows."""
    kind = dictionary_schema(pa.schema([("value.a", pa.string())]), ["value.a"]).field(0)
    rows = 1000
    values = pa.ListArray.from_arrays(pa.array([0, *[1] * rows], pa.int32()), pa.array(["x" * 50_000]))
    numbers = pa.array(np.zeros(rows, np.int16))
    array = pa.StructArray.from_arrays([numbers, values], fields=list(kind.type))
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([kind]))

    with pytest.raises(DecodedTooLarge, match=r"value\.a.*declares 50,000,000"):
        plain(batch, 100)
    assert plain(batch, 500_000).column(0)[999].as_py() == "x" * 50_000


def piece_of(data: bytes, slices: int) -> Piece:
    return Piece(
        start=0,
        end=slices,
        object="data/1/a.idx",
        position=0,
        length=len(data),
        crc=crc32c(data),
        slices=slices,
        bytes=slices,
        min_us=0,
        max_us=0,
    )


def index_stream(name: str, rows: int) -> bytes:
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([name]))
    columns = [
        names if field.name == "object" else pa.array(np.zeros(rows, field.type.to_pandas_dtype())) for field in SCHEMA
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    return bytes(sink.getvalue())


def test_a_slice_index_is_refused() -> None:
    """Each reader of one."""
    data = index_stream("x" * TOO_MANY, 1)

    with pytest.raises(CorruptObject, match=r"data/1/a\.idx.*declares"):
        decode_piece(piece_of(data, 1), data)
    with pytest.raises(CorruptObject, match=r"a\.idx.*declares"):
        list(pieces_in("a.idx", data))


def test_a_slice_index_has_as_many_slices_as_the_log_says() -> None:
    """The log's number was counted when it was committed."""
    data = index_stream("data/1/a.seg", 7)

    with pytest.raises(CorruptObject, match="has 7 slices, and the log says 6"):
        decode_piece(piece_of(data, 6), data)


def test_the_name_of_many_slices_is_in_memory_once() -> None:
    """A long name in each of 10,000 slices would be 10 GB."""
    table = decode_piece(piece_of(data := index_stream("x" * 1_000_000, 10_000), 10_000), data)

    tracemalloc.start()
    slices_of(table)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def frame(kind: str, rows: int, plain_bytes: int, body: bytes) -> bytes:
    head = b"%s %d %d %d" % (kind.encode(), rows, plain_bytes, len(body))
    return b"%s %08x\n%s" % (head, crc32c(body, crc32c(head)), body) + encode_end(rows)


def only(data: bytes) -> Frame:
    (found,) = read_frames(data, 0, "meta/ckpt/1")
    return found


@pytest.mark.parametrize("declared", [TOO_MANY, 2**40, 10**30])
def test_a_frame_is_refused(declared: int) -> None:
    """Frames are in checkpoints, snapshots of quorums, lists of dropped objects and the memory of maintenance."""
    found = only(frame("topics", 1, declared, pa.compress(bytes(TOO_MANY), codec="zstd", asbytes=True)))

    with pytest.raises(CorruptObject, match=f"meta/ckpt/1.*topics.*declares {declared:,}"):
        found.lines("meta/ckpt/1")


def test_columns_of_a_frame_are_refused() -> None:
    """They may be compressed once more."""
    inner = b"".join([ipc.schema_message(RECORD_SCHEMA), compressed(zeros(TOO_MANY)), ipc.END])
    found = only(frame("x_columns", 1, len(inner), pa.compress(inner, codec="zstd", asbytes=True)))

    with pytest.raises(CorruptObject, match="meta/ckpt/1.*declares"):
        found.columns("meta/ckpt/1")


def test_a_frame_of_many_equal_rows_is_read_back() -> None:
    """Compression would make so few bytes of it that a reader would refuse them."""
    batch = pa.record_batch({"a": pa.array(np.zeros(DECODED_FREE // 4, np.int64))})

    assert only(encode_columns("x_columns", batch) + encode_end(batch.num_rows)).columns("x") == batch


def damaged(data: bytes) -> Any:
    return decode_run(data, Run("t", 0, 0, len(data), crc32c(data), 1, 1, NOW_US, NOW_US), place=place())


@pytest.mark.parametrize("at", range(0, 400, 4))
def test_a_message_with_odd_numbers_is_refused_or_read(at: int) -> None:
    """The right checksum says nothing about who wrote it."""
    whole, _ = run_of(compressed(zeros(10_000)))
    for number in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", bytes(4)):
        changed = whole[:at] + number + whole[at + 4 :]
        with suppress(SparkLogError):
            list(damaged(changed))


LITTLE_MEMORY = """
import os, resource, sys
import pyarrow as pa
from tests.bombs import compressed
from tests.unit.segment.test_decoded_bounds import run_of, place
from spark_log.segment.reader import decode_run
data, run = run_of(open(sys.argv[1], "rb").read())
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
try:
    list(decode_run(data, run, place=place()))
except MemoryError as error:
    print("no memory:", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_too_little_memory_is_no_damage(tmp_path: Any) -> None:
    """A record of 300 MB is read where there is memory for it."""
    batch = zeros(300 << 20)
    value = np.frombuffer(batch.column("value").buffers()[2], np.uint8).copy()
    value[: 8 << 20] = np.random.default_rng(1).integers(0, 256, 8 << 20, np.uint8)
    array = pa.Array.from_buffers(pa.binary(), 1, [None, batch.column("value").buffers()[1], pa.py_buffer(value)])
    message = compressed(batch.set_column(1, RECORD_SCHEMA.field(1), array))
    (tmp_path / "message").write_bytes(message)

    data, run = run_of(message)
    assert len(list(decode_run(data, run, place=place()))) == 1
    # Arrow's own allocator reserves addresses in advance, which a limit of addresses would not count again.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    script = [sys.executable, "-c", LITTLE_MEMORY, str(tmp_path / "message")]
    told = subprocess.run(script, capture_output=True, text=True, check=True, env=environment)
    assert "no memory: too little memory to decode the bytes in object data/7/a.seg" in told.stdout
