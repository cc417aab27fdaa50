"""The end of a segment object: the index, one row per record batch, and the tail.

    index    an Arrow IPC stream of INDEX_SCHEMA, in the order of the batches in the object
    tail     24 bytes, little endian
             0   u64  length of the index
             8   u32  crc32c of the index
             12  u32  format version
             16  8 bytes  "PYLOGSEG"

The schema messages of the runs are in the index's schema metadata, base64, under `pylog.schema.<number>`, so that a
batch in the middle of a run is decoded without its start.  Version and magic keep their place in all future versions.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.segment.arrays import ipc
from spark_log.segment.arrays.few_values import array_from
from spark_log.segment.arrays.ipc_sizes import check_whole
from spark_log.segment.arrays.numpy_arrays import numbers_of

VERSION = 1
MAGIC = b"PYLOGSEG"
TAIL = struct.Struct("<QII8s")
TAIL_BYTES = TAIL.size

INDEX_SCHEMA = pa.schema(
    [
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("rows", pa.int64()),
        ("position", pa.int64()),
        ("length", pa.int64()),
        ("min_us", pa.int64()),
        ("max_us", pa.int64()),
        ("crc32c", pa.uint32()),
        ("schema", pa.int32()),
    ]
)
STATS = pa.field("stats", pa.binary())
"""Statistics of data columns (statistics.py); the column is there if a batch has any."""
_NUMBERS = INDEX_SCHEMA.names[1:]
_SCHEMA_KEY = "pylog.schema."


class BatchEntry(NamedTuple):
    """One row of the index, in the order of its columns."""

    topic_id: str
    partition: int
    first: int
    """Offset of the first record, relative to the run's base."""
    last: int
    """Offset of the last record, relative to the run's base; `first + rows - 1`, unless compaction removed records."""
    rows: int
    position: int
    """Position of the batch's message in the object."""
    length: int
    min_us: int
    max_us: int
    crc32c: int
    """Checksum of the batch's message."""
    schema: int
    """Number of the run's schema message."""
    stats: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Index:
    """The batches of an object, as its end lists them."""

    name: str
    """Name of the object."""
    size: int
    """Bytes of the object."""
    index_position: int
    """Position where the runs end and the index starts."""
    table: pa.Table
    """`INDEX_SCHEMA`, one row per record batch, positions ascending; and `STATS` if there are any."""
    numbers: Mapping[str, npt.NDArray[np.int64]]
    """The integer columns of `table`, for searching."""
    schemas: Mapping[int, bytes]
    """The runs' schema messages by number."""


def encode_index(entries: Sequence[BatchEntry], schemas: Sequence[bytes], options: pa.ipc.IpcWriteOptions) -> bytes:
    """The bytes of index and tail."""
    metadata = {f"{_SCHEMA_KEY}{number}": base64.b64encode(message) for number, message in enumerate(schemas)}
    schema = INDEX_SCHEMA.append(STATS) if any(entry.stats for entry in entries) else INDEX_SCHEMA
    columns = list(zip(*entries, strict=True))[: len(schema)] or [()] * len(schema)
    arrays = [array_from(column, field.type) for column, field in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.with_metadata(metadata))
    message = ipc.encode_batch(batch, options)
    index = ipc.schema_message(batch.schema) + message + ipc.END
    return index + TAIL.pack(len(index), crc32c(index), VERSION, MAGIC)


def parse_index(data: ipc.Bytes, *, name: str, object_size: int | None = None) -> Index:
    """Parse the index of the object `name`.

    data:         the object's bytes from its index's position, or any earlier one, to its end.
    object_size:  bytes of the whole object; None if `data` is all of it.
    Raises UnsupportedVersion for another kind of file or a newer version, CorruptObject if it is truncated or changed.
    """
    view = memoryview(data)
    size = len(view) if object_size is None else object_size
    length, crc = _parse_tail(view, name, size)
    position = size - TAIL_BYTES - length
    index = view[len(view) - TAIL_BYTES - length : len(view) - TAIL_BYTES]
    found = crc32c(index)
    if found != crc:
        raise CorruptObject(
            f"object {name}: the index at byte {position} has changed since it was written: its checksum is "
            f"{found:#010x}, the tail at byte {size - TAIL_BYTES} says {crc:#010x}"
        )
    table = _read_table(index, name, position)
    numbers = {column: numbers_of(table[column]).astype(np.int64, copy=False) for column in _NUMBERS}
    _check_positions(numbers, name, position)
    return Index(
        name=name,
        size=size,
        index_position=position,
        table=table.select([*INDEX_SCHEMA.names, *([STATS.name] if _has_stats(table) else [])]),
        numbers=numbers,
        schemas=_schemas(table.schema.metadata or {}),
    )


def _parse_tail(view: memoryview, name: str, size: int) -> tuple[int, int]:
    """Length and checksum of the index."""
    if len(view) < TAIL_BYTES or view[-len(MAGIC) :] != MAGIC:
        raise _not_a_tail(view, name, size)
    length, crc, version, _ = TAIL.unpack(view[-TAIL_BYTES:])
    if version != VERSION:
        raise UnsupportedVersion(
            f"object {name}: its tail at byte {size - TAIL_BYTES} has format version {version}, and this pylog reads "
            f"version {VERSION}: upgrade pylog"
        )
    if length > len(view) - TAIL_BYTES:
        raise CorruptObject(
            f"object {name}: its tail at byte {size - TAIL_BYTES} says that the index has {length} bytes, but it has "
            f"{len(view) - TAIL_BYTES}: it is cut off or has changed since it was written"
        )
    return length, crc


def _not_a_tail(view: memoryview, name: str, size: int) -> CorruptObject | UnsupportedVersion:
    """A pylog object starts, and its index starts, with the mark of an Arrow message."""
    if bytes(view[:4]) == ipc.CONTINUATION[: len(view)]:
        return CorruptObject(
            f"object {name}: it does not end with pylog's tail at byte {max(size - TAIL_BYTES, 0)}: it is cut off, or "
            "its end has changed since it was written"
        )
    return UnsupportedVersion(
        f"object {name}: it is not a pylog segment but another kind of file: it neither ends with {MAGIC!r} at byte "
        f"{max(size - len(MAGIC), 0)} nor starts as one"
    )


def _read_table(index: memoryview, name: str, position: int) -> pa.Table:
    try:
        check_whole(index)
        table = ipc.open_stream(index).read_all()
        table.validate(full=True)
        table = table.combine_chunks()
    except MemoryError as error:
        raise MemoryError(f"too little memory for object {name}: its index at byte {position}: {error}") from error
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject(f"object {name}: the index at byte {position} is not an Arrow stream: {error}") from error
    for field in INDEX_SCHEMA:
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            raise UnsupportedVersion(
                f"object {name}: the index at byte {position} has no column {field.name!r} of type {field.type}"
            )
    return table


def _has_stats(table: pa.Table) -> bool:
    number = table.schema.get_field_index(STATS.name)
    return number >= 0 and bool(table.schema.field(number).type == STATS.type)


def _check_positions(numbers: Mapping[str, npt.NDArray[np.int64]], name: str, index_position: int) -> None:
    """Checks that batches follow one another, before the index."""
    starts, lengths = numbers["position"], numbers["length"]
    ends = starts + lengths
    in_place = bool((starts >= 0).all() and (lengths > 0).all() and (ends <= index_position).all())
    if not in_place or bool((starts[1:] < ends[:-1]).any()):
        raise CorruptObject(
            f"object {name}: the index at byte {index_position} has batches that overlap or lie outside"
        )


def _schemas(metadata: Mapping[bytes, bytes]) -> dict[int, bytes]:
    prefix = _SCHEMA_KEY.encode()
    return {
        int(key.removeprefix(prefix)): base64.b64decode(value)
        for key, value in metadata.items()
        if key.startswith(prefix)
    }
