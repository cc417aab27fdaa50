"""Single messages of an Arrow IPC stream as bytes, so that each batch can be written and read alone.

A stream is a schema message, record batch messages and an end marker; each message is a multiple of 8 bytes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_log.bounds import decoded_bytes_max
from spark_log.segment.arrays.ipc_sizes import check_each

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
"""Anything with the buffer protocol."""

CONTINUATION = b"\xff\xff\xff\xff"
"""The first bytes of every message."""
END = CONTINUATION + bytes(4)
"""The end marker of a stream."""
SMALL_BUFFER = 64
"""Bytes of a buffer on average, with its place in the message, that are not worth compressing."""
_ROOM_OF_BUFFER = 64
"""Maximum growth of a buffer by compression, with padding."""
_ROOM_EXTRA = 4096
"""Maximum growth of a batch beside that of its buffers, and the end marker."""


def schema_message(schema: pa.Schema) -> bytes:
    message: bytes = schema.serialize().to_pybytes()
    return message


def write_options(codec: pa.Codec | None) -> pa.ipc.IpcWriteOptions:
    """codec: None for no compression."""
    # One thread: the tasks of a Spark executor already use every core.
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


def raw_size(batch: pa.RecordBatch) -> int:
    """Bytes of the record batch message without compression."""
    return int(pa.ipc.get_record_batch_size(batch))


def is_too_small(batch: pa.RecordBatch) -> bool:
    """Whether a batch has too few bytes to be compressed: that takes time and about 25 bytes for each buffer."""
    return raw_size(batch) <= SMALL_BUFFER * _count_buffers(batch)


def _count_buffers(batch: pa.RecordBatch) -> int:
    return sum(len(column.buffers()) for column in batch.columns)


def encode_batch(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> bytes:
    """The record batch message alone, with the values of this batch only.

    It is not compressed if a reader would refuse it, because so few bytes may not become so many.
    """
    batch = _with_own_values(batch)
    message = _encoded(batch, options)
    if raw_size(batch) > decoded_bytes_max(len(message)):
        return _encoded(batch, write_options(None))
    return message


def _encoded(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> bytes:
    start = int(batch.schema.serialize().size)
    # A growing stream would need twice the memory.
    room = pa.allocate_buffer(start + raw_size(batch) + _count_buffers(batch) * _ROOM_OF_BUFFER + _ROOM_EXTRA)
    sink = pa.FixedSizeBufferWriter(room)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    message: bytes = room.slice(start, sink.tell() - start - len(END)).to_pybytes()
    return message


def _with_own_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch without values behind its last one.

    Arrow pads what it writes of a buffer to 64 bytes with the values that follow: those of other records, which an
    erasure would not find.  Nothing is copied.
    """
    return pa.RecordBatch.from_arrays([_shortened(column) for column in batch.columns], schema=batch.schema)


def _shortened(array: pa.Array) -> pa.Array:
    kind, end = array.type, array.offset + len(array)
    if pa.types.is_struct(kind):
        if not kind.num_fields:  # it has no values
            return array
        children = [_shortened(array.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(
            children, fields=list(kind), mask=array.is_null() if array.null_count else None
        )
    if not len(array):
        return array
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        validity, numbers = array.buffers()
        buffers = [validity, numbers.slice(0, (end * kind.bit_width + 7) // 8)]
        return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset)
    validity, offsets = array.buffers()[:2]
    last = int(np.frombuffer(offsets, np.int32, 1, 4 * end)[0])
    if pa.types.is_list(kind):
        child = _shortened(array.values.slice(0, last))
        return pa.Array.from_buffers(kind, len(array), [validity, offsets], array.null_count, array.offset, [child])
    if pa.types.is_map(kind):
        return _shortened_map(array, validity, offsets, last)
    values = array.buffers()[2]
    if values is None or values.size <= last:
        return array
    buffers = [validity, offsets, values.slice(0, last)]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset)


def _shortened_map(array: pa.Array, validity: pa.Buffer | None, offsets: pa.Buffer, last: int) -> pa.Array:
    children = [_shortened(child.slice(0, last)) for child in (array.keys, array.items)]
    entries = pa.StructArray.from_arrays(children, fields=[array.type.key_field, array.type.item_field])
    buffers = [validity, offsets]
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset, [entries])


def decode_batch(message: bytes, data: Bytes, fields: Sequence[int]) -> pa.RecordBatch:
    """The batch in `data`, whose schema message is `message`; only the columns `fields` (empty: all of them).

    Raises DecodedTooLarge.
    """
    # `read_record_batch` would avoid a copy, but has no option to use one thread: 30 % more time.
    check_each(memoryview(data))
    stream = pa.py_buffer(b"".join((message, data)))
    batch: pa.RecordBatch = open_stream(stream, fields).read_next_batch()
    return batch


def open_stream(data: Bytes, fields: Sequence[int] = ()) -> pa.RecordBatchReader:
    """A reader of bytes in memory, without a copy.  Raises pa.ArrowInvalid if they start with no schema message."""
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(fields))
    return pa.ipc.open_stream(pa.py_buffer(data), options=options)
