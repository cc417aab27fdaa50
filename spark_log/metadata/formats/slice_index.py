"""Slice indexes: entries moved from the state into an object, one Arrow stream per piece.

An index object is the concatenation of Arrow IPC streams, one per partition; a `Piece` in the state (or in a commit of
very many slices) names the byte range, its checksum and what it covers.  One row per slice:

    start, end      int64, relative to the piece's start
    object          dictionary<int32, string>
    position, length, crc, batches, min_us, max_us   int64
    time_kind       int8
    stats           binary, if a slice has statistics of data columns (segment/statistics.py)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from spark_log.errors import CorruptObject
from spark_log.metadata.object_tags import tag_in
from spark_log.metadata.records import Piece
from spark_log.model import APPEND_TIME, Slice, kind_and_stats
from spark_log.segment.arrays.ipc_sizes import check_whole

SCHEMA = pa.schema(
    [
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("object", pa.dictionary(pa.int32(), pa.string())),
        *((name, pa.int64()) for name in ("position", "length", "crc", "batches", "min_us", "max_us")),
        ("time_kind", pa.int8()),
    ]
)
STATS = pa.field("stats", pa.binary())
_WRITING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)
"""A piece is small: passing its columns to other threads takes longer than decoding them."""


class IndexPart(NamedTuple):
    """The slices of one partition to be written to an index object."""

    topic_id: str
    partition: int
    slices: Sequence[Slice]


def encode_index(name: str, parts: Sequence[IndexPart]) -> tuple[bytes, list[Piece]]:
    """The bytes of index object `name`, and the piece of each part; slices must be in order and without gaps."""
    sink, pieces = pa.BufferOutputStream(), []
    for part in parts:
        start = sink.tell()
        _write_stream(sink, part.slices)
        pieces.append((part.slices, start, sink.tell()))
    data = sink.getvalue()
    return data.to_pybytes(), [_piece(name, slices, low, data[low:high]) for slices, low, high in pieces]


def _write_stream(sink: pa.BufferOutputStream, slices: Sequence[Slice]) -> None:
    base = slices[0].start
    schema = SCHEMA.append(STATS) if any(piece.stats for piece in slices) else SCHEMA
    table = {field.name: [getattr(piece, field.name) for piece in slices] for field in schema}
    table["start"] = [start - base for start in table["start"]]
    table["end"] = [end - base for end in table["end"]]
    arrays = [
        pa.array(table[field.name], pa.string()).dictionary_encode()
        if field.name == "object"
        else pa.array(table[field.name], field.type)
        for field in schema
    ]
    with pa.ipc.new_stream(sink, schema, options=_WRITING) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))


def _piece(name: str, slices: Sequence[Slice], position: int, data: pa.Buffer) -> Piece:
    return Piece(
        start=slices[0].start,
        end=slices[-1].end,
        object=name,
        position=position,
        length=data.size,
        crc=crc32c(data),
        slices=len(slices),
        bytes=sum(piece.length for piece in slices),
        min_us=min(piece.min_us for piece in slices),
        max_us=max(piece.max_us for piece in slices),
    )


def decode_piece(piece: Piece, data: bytes | memoryview) -> pa.Table:
    """The rows of a piece; `data` is its byte range, start and end are offsets of the partition.

    Raises CorruptObject if the bytes differ from those written, or would become too many.
    """
    if len(data) != piece.length or crc32c(data) != piece.crc:
        raise CorruptObject(
            f"{piece.object} is damaged: its slice index at byte {piece.position} has {len(data)} of "
            f"{piece.length} bytes or another checksum (offsets {piece.start} to {piece.end})"
        )
    table = _read(memoryview(data), 0, f"{piece.object} is damaged: its slice index at byte {piece.position}")[0]
    if table.num_rows != piece.slices:
        raise CorruptObject(
            f"{piece.object} is damaged: its slice index at byte {piece.position} has {table.num_rows} slices, and the log "
            f"says {piece.slices}"
        )
    _check_tag(piece, table)
    table = table.set_column(0, "start", _shifted(table["start"], piece.start))
    table = table.set_column(1, "end", _shifted(table["end"], piece.start))
    if piece.time_kind == APPEND_TIME:
        for name, value in (("min_us", piece.min_us), ("max_us", piece.max_us), ("time_kind", APPEND_TIME)):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, pa.array([value] * table.num_rows, SCHEMA.field(name).type))
    return table


def _check_tag(piece: Piece, table: pa.Table) -> None:
    """Raises CorruptObject for an index of a client that names objects of others.

    Their entries are not counted: with the last entry here, maintenance would drop an object that others have records
    in.
    """
    tag = tag_in(piece.object)
    chunks = table["object"].chunks if tag else []
    other = next((name for one in chunks for name in one.dictionary.to_pylist() if tag_in(name) != tag), None)
    if other is not None:
        raise CorruptObject(
            f"{piece.object} is damaged: its slice index at byte {piece.position} names {other!r}, which another client "
            "has uploaded"
        )


def pieces_in(name: str, data: bytes) -> Iterator[tuple[int, int, pa.Table]]:
    """Position, length and rows of each piece of an index object; start and end are relative to the piece's start.

    Raises CorruptObject for other bytes.
    """
    view, end = memoryview(data), 0
    while (start := end) < len(data):
        table, end = _read(view, start, f"{name} is not a slice index, or damaged, at byte {start}")
        if table.schema not in (SCHEMA, SCHEMA.append(STATS)):
            raise CorruptObject(f"{name} is not a slice index: the table at byte {start} has {table.schema.names}")
        yield start, end - start, table


def _read(data: memoryview, start: int, what: str) -> tuple[pa.Table, int]:
    """The rows of the stream at a position, and its end.  Raises CorruptObject."""
    source = pa.BufferReader(data[start:])
    try:
        check_whole(data, start)
        table = pa.ipc.open_stream(source, options=_READING).read_all()
        table.validate(full=True)
    except MemoryError as error:
        raise MemoryError(f"too little memory to read a slice index: {what}: {error}") from error
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject(f"{what}: {error}") from error
    return table, start + source.tell()


def _shifted(column: pa.ChunkedArray, by: int) -> pa.Array:
    """An int64 column without nulls plus a number.

    Works on the buffer: pa.scalar and pa.array import pandas if it is installed, which delays a first record by 0.1 s.
    """
    values = numbers(column)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values + by)])


def numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column of integers without nulls."""
    array = column.combine_chunks()
    kind = np.dtype(f"i{array.type.bit_width // 8}")
    return np.frombuffer(array.buffers()[1], kind, len(array), kind.itemsize * array.offset)


def slices_of(table: pa.Table) -> list[Slice]:
    """Rows of `decode_piece` as slices.

    0.2 µs each; Arrow's lists, which make a scalar of every number, would take 3.
    """
    columns = [
        _names(column.combine_chunks()) if pa.types.is_dictionary(column.type) else numbers(column).tolist()
        for column in table.columns[: len(SCHEMA)]
    ]
    if STATS.name in table.column_names:
        columns[-1] = list(map(kind_and_stats, columns[-1], table[STATS.name].to_pylist()))
    return list(map(Slice, *columns))


def _names(array: pa.DictionaryArray) -> list[str]:
    """The values of all rows; rows with the same one share it, so that no bytes become many."""
    values = array.dictionary.to_pylist()
    return [values[number] for number in array.indices.to_pylist()]
