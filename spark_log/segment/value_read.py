"""Reading the values of runs, typed or not, in the form that a reader wants.

Columns are asked for by their stored names: `value.NAME` is one data column, in the type of the reader's schema, and
`value` is the whole value: a struct of the reader's schema, or bytes.  The bytes of a typed value are JSON, by the
schema of its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from spark_log.errors import InvalidRecord, InvalidRequest, UnsupportedVersion
from spark_log.schema.arrow_types import storable
from spark_log.schema.names import PREFIX
from spark_log.schema.topic_schema import TopicSchema
from spark_log.segment.arrays.dictionaries import is_dictionary, plain_type
from spark_log.segment.convert_types import converted
from spark_log.segment.json_values import as_json, from_json
from spark_log.segment.schema import (
    HEADERS,
    RECORD_SCHEMA_HEADERS,
    SCHEMA_ID,
    TIMESTAMP,
    TOMBSTONE,
    data_names,
    schema_version,
    typed_base,
)

VALUE = "value"


class ValueRead(NamedTuple):
    """How the values of a typed topic are read."""

    schema: TopicSchema
    """The version that data columns are read by."""
    as_struct: bool = False
    """`value` is a struct; otherwise it is bytes."""
    parse_json: bool = False
    """Bytes from before the topic had a schema are parsed as JSON; otherwise they are refused."""


def wants_data(columns: Sequence[str], value: ValueRead | None) -> bool:
    """Whether a reader asks for data columns, or the struct of them."""
    return bool(data_names(columns)) or (VALUE in columns and value is not None and value.as_struct)


@lru_cache(maxsize=256)
def column_type(name: str, value: ValueRead | None) -> pa.DataType:
    """The type of a requested column."""
    if name == TOMBSTONE.name:
        return TOMBSTONE.type
    if value is not None and name.startswith(PREFIX):
        return typed_base(value.schema).field(name).type
    if value is not None and value.as_struct and name == VALUE:
        return _struct_of(typed_base(value.schema))
    return RECORD_SCHEMA_HEADERS.field(name).type


def _struct_of(base: pa.Schema) -> pa.DataType:
    return pa.struct([pa.field(name[len(PREFIX) :], base.field(name).type) for name in data_names(base.names)])


def no_records(columns: Sequence[str], value: ValueRead | None) -> pa.RecordBatch:
    """No records, with these columns."""
    fields = [pa.field(name, column_type(name, value)) for name in columns]
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in fields], schema=pa.schema(fields))


def stored_columns(schema: pa.Schema, columns: Sequence[str], value: ValueRead | None) -> list[str]:
    """The columns of a run that are needed for the requested ones."""
    typed = schema_version(schema) > 0
    needed: dict[str, None] = {}
    for name in columns:
        if typed and name == VALUE:
            needed.update(dict.fromkeys([TOMBSTONE.name, *data_names(schema.names)]))
        elif not typed and (name.startswith(PREFIX) or name == TOMBSTONE.name):
            needed[VALUE] = None
        else:
            needed[name] = None
    return [name for name in needed if name in schema.names]


def with_values(
    batch: pa.RecordBatch, columns: Sequence[str], version: int, value: ValueRead | None, where: str
) -> pa.RecordBatch:
    """The requested columns, of a batch with the stored ones.

    version:  of the schema of the run; 0 for bytes.
    where:    the place of the batch, for messages.
    Raises InvalidRequest for bytes where data columns are asked for, InvalidRecord for JSON that does not fit.
    """
    if not columns:  # from_arrays would forget the number of rows
        return batch.select([])
    parsed = None
    if not version and wants_data(columns, value):
        parsed = _parsed(batch, value, where)
    arrays = [_column(batch, name, version, value, parsed, where) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _column(
    batch: pa.RecordBatch, name: str, version: int, value: ValueRead | None, parsed: pa.Array | None, where: str
) -> pa.Array:
    if name == "headers" and name not in batch.schema.names:
        return pa.nulls(batch.num_rows, HEADERS)
    if name == VALUE and (version or wants_data([VALUE], value)):
        return _whole(batch, value, parsed, where)
    if name == TOMBSTONE.name and not version:
        return batch.column(VALUE).is_null()
    if not name.startswith(PREFIX):
        return batch.column(name)
    kind = column_type(name, value)
    if parsed is not None:
        number = parsed.type.get_field_index(name[len(PREFIX) :])
        return parsed.flatten()[number]
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, kind)
    return _as(batch.column(name), kind, name, where)


def _as(array: pa.Array, kind: pa.DataType, name: str, where: str) -> pa.Array:
    try:
        return converted(array, kind)
    except pa.ArrowException as error:
        raise InvalidRecord(
            f"column {name[len(PREFIX) :]!r} in {where} was written by a newer version of the schema, and has a value "
            f"that does not fit the older one, which this reader began with: restart it ({error})"
        ) from error


def _whole(batch: pa.RecordBatch, value: ValueRead | None, parsed: pa.Array | None, where: str) -> pa.Array:
    if parsed is not None:
        return parsed
    names = data_names(batch.schema.names)
    mask = batch.column(TOMBSTONE.name)
    if value is None or not value.as_struct:
        fields = [pa.field(name[len(PREFIX) :], batch.schema.field(name).type) for name in names]
        return as_json(pa.StructArray.from_arrays([batch.column(name) for name in names], fields=fields, mask=mask))
    kind = column_type(VALUE, value)
    there = [f"{PREFIX}{field.name}" for field in kind]
    arrays = [_column(batch, name, 1, value, None, where) for name in there]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)


def _parsed(batch: pa.RecordBatch, value: ValueRead | None, where: str) -> pa.Array:
    assert value is not None, "data columns are read by a schema"
    if not value.parse_json:
        raise InvalidRequest(
            f"the records in {where} are bytes from before the topic had a schema: read them as JSON with "
            "value.parse=json (value_parse='json' in Python), as bytes with value.format=json, or start after them"
        )
    texts = batch.column(VALUE)
    return from_json(texts, _struct_of(typed_base(value.schema)), lambda row: f"the value of row {row} of {where}")


def check_typed_schema(schema: pa.Schema, where: str) -> None:
    """Raises UnsupportedVersion unless a run with a schema id is one that this pylog reads."""
    text = (schema.metadata or {}).get(SCHEMA_ID, b"")
    if not text.isdigit() or int(text) < 1:
        raise UnsupportedVersion(f"the data in {where} has the unsupported schema {text.decode()!r}: upgrade pylog")
    if not _are_known(schema.serialize().to_pybytes()):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise UnsupportedVersion(f"the data in {where} has unsupported columns ({columns}): upgrade pylog")


@lru_cache(maxsize=256)
def _are_known(message: bytes) -> bool:
    """Whether this pylog reads all columns of a typed run."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    expected = {
        "key": pa.binary(),
        TOMBSTONE.name: pa.bool_(),
        "timestamp": TIMESTAMP,
        "headers": HEADERS,
        "offset": pa.int64(),
    }
    names = [name for name in schema.names if not name.startswith(PREFIX)]
    if names != ["key", TOMBSTONE.name, "timestamp", *[name for name in ("headers", "offset") if name in names]]:
        return False
    data = [field for field in schema if field.name not in names]
    plain = [plain_type(field) for field in data]
    try:
        found = storable(pa.schema([(field.name, kind) for field, kind in zip(data, plain, strict=True)])).types
    except ValueError:
        return False
    marked = all(field.metadata is None or is_dictionary(field) for field in data)
    return marked and found == plain and all(schema.field(name).type == expected[name] for name in names)
