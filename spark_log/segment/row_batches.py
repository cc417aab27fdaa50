"""Whole batches of records: sizes of their rows, and copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.schema.names import PREFIX
from spark_log.segment.arrays.numpy_arrays import array_of, numbers_or
from spark_log.segment.convert_types import value_bytes
from spark_log.segment.offsets import Offsets, as_array
from spark_log.segment.record_columns import header_counts
from spark_log.segment.schema import HEADERS, OFFSET, base_of, schema_version

ROW_OVERHEAD = 16
"""Raw bytes of a row beside key, value and headers: the timestamp and two offsets."""
PINNED_MAX = 8
"""A slice that keeps a buffer of more than this many times its size alive is copied."""


def bytes_max(schema: pa.Schema, limit: int) -> int:
    """Raw bytes of a full batch: twice `limit` with data columns, each of which costs time for each batch."""
    return 2 * limit if schema_version(schema) else limit


def row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Raw size of each row."""
    sizes = np.full(batch.num_rows, ROW_OVERHEAD, dtype=np.int64)
    sizes += binary_lengths(batch.column("key"))
    for name in batch.schema.names:
        if name == "value" or name.startswith(PREFIX):
            sizes += value_bytes(batch.column(name))
    if has_headers(batch):
        sizes += _header_bytes(batch.column("headers"))
    return sizes


def _header_bytes(headers: pa.Array) -> npt.NDArray[np.int64]:
    entries = headers.flatten()
    sizes = binary_lengths(entries.field("key")) + binary_lengths(entries.field("value")) + ROW_OVERHEAD
    ends = np.concatenate(([0], np.cumsum(sizes)))
    return np.diff(ends[np.concatenate(([0], np.cumsum(header_counts(headers))))])


def binary_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each element; 0 for a null."""
    return numbers_or(0, pc.binary_length(array)).astype(np.int64)


def concat(pieces: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of all rows.  schema: with headers if any of the pieces has them; otherwise that of each piece."""
    if len(pieces) == 1 and len(pieces[0].schema) == len(schema):
        return pieces[0]
    if "headers" in schema.names:
        pieces = [with_headers(piece) for piece in pieces]
    columns = [pa.concat_arrays([piece.column(i) for piece in pieces]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def has_headers(batch: pa.RecordBatch) -> bool:
    return "headers" in batch.schema.names


def with_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a column `headers`, of nulls if it had none."""
    if has_headers(batch):
        return batch
    place = len(base_of(batch.schema))
    return batch.add_column(place, pa.field("headers", HEADERS), pa.nulls(batch.num_rows, HEADERS))


def with_offsets(batch: pa.RecordBatch, offsets: Offsets) -> pa.RecordBatch:
    """The batch with a column `offset`."""
    return batch.append_column(OFFSET, array_of(as_array(offsets), pa.int64()))


def unpinned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copies a small slice: it would keep the buffers of its whole parent alive."""
    if batch.get_total_buffer_size() <= PINNED_MAX * batch.nbytes:
        return batch
    columns = [pa.concat_arrays([column]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
