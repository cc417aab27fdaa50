"""Columns of text that a typed run stores as dictionaries: a number for each row, and the values that differ.

A column `value.NAME` is then a struct: `number`, and `values`, a list that has all values of the batch in its first row
and is empty in the others.  The metadata of its field has `pylog.dictionary`.  Arrow's own dictionaries are messages,
and to read one column, a reader decodes all of them.  The first batch of a run decides for the run.  Readers get plain
columns.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.segment.arrays.ipc_sizes import check_decoded
from spark_log.segment.arrays.numpy_arrays import array_of
from spark_log.segment.schema import data_names

NUMBER = pa.int16()
ROWS_MAX = 1 << 15
"""A batch with more rows might have more values than there are numbers."""
ROWS_MIN = 100
"""With fewer values, the two columns may take more than they save."""
VALUES_MAX = 0.5
"""Values that differ, as a share of those that are not null."""
MARK = {b"pylog.dictionary": b"1"}


def worthwhile(batch: pa.RecordBatch) -> frozenset[str]:
    """The columns of a run's first batch whose values repeat so often that a dictionary is smaller."""
    if batch.num_rows > ROWS_MAX:
        return frozenset()
    return frozenset(name for name in data_names(batch.schema.names) if _repeats(batch.column(name)))


def _repeats(array: pa.Array) -> bool:
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        return False
    there = len(array) - array.null_count
    return there >= ROWS_MIN and bool(pc.count_distinct(array).as_py() <= VALUES_MAX * there)


def dictionary_schema(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """The schema of a run with dictionaries for these columns."""
    for name in names:
        number = schema.get_field_index(name)
        schema = schema.set(number, pa.field(name, _dictionary(schema.field(number).type), metadata=MARK))
    return schema


def _dictionary(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("number", NUMBER), ("values", pa.list_(kind))])


def with_dictionaries(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """The batch with dictionaries for these columns, which have no other values than those of its rows."""
    if not names:
        return batch
    pairs = zip(batch.schema.names, batch.columns, strict=True)
    columns = [_numbered(array) if name in names else array for name, array in pairs]
    return pa.RecordBatch.from_arrays(columns, schema=dictionary_schema(batch.schema, names))


def _numbered(array: pa.Array) -> pa.StructArray:
    found = array.dictionary_encode()
    ends = np.full(len(array) + 1, len(found.dictionary), np.int32)
    ends[0] = 0
    values = pa.ListArray.from_arrays(array_of(ends, pa.int32()), found.dictionary)
    return pa.StructArray.from_arrays([found.indices.cast(NUMBER), values], fields=list(_dictionary(array.type)))


def plain(batch: pa.RecordBatch, length: int) -> pa.RecordBatch:
    """The batch without dictionaries.

    length:  the stored bytes, which may not become too many.
    Raises DecodedTooLarge, and pa.ArrowException for a number without a value.
    """
    size = 0
    for number, field in enumerate(batch.schema):
        if is_dictionary(field):
            array = batch.column(number)
            values, numbers = array.field(1).flatten(), array.field(0)
            size += _bytes_of(values, numbers)
            check_decoded(size, length, f"column {field.name!r} with those before it")
            found = pc.take(values, numbers)
            batch = batch.set_column(number, pa.field(field.name, found.type), found)
    return batch


def _bytes_of(values: pa.Array, numbers: pa.Array) -> int:
    """The bytes that the values take in all rows."""
    return pc.sum(pc.take(pc.binary_length(values), numbers).cast(pa.int64())).as_py() or 0


def is_dictionary(field: pa.Field) -> bool:
    """Whether a stored column is one."""
    return field.metadata == MARK and field.type in (_dictionary(pa.string()), _dictionary(pa.binary()))


def plain_type(field: pa.Field) -> pa.DataType:
    """The type that readers get for a stored column."""
    return field.type.field(1).type.value_type if is_dictionary(field) else field.type
