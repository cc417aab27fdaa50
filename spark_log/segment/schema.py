"""The columns of a run.

A run of bytes always has the columns `key`, `value` and `timestamp`.  It has `headers` if any of the records that were
encoded together with its own has headers, and `offset` if some offsets have no record.

A typed run has, instead of `value`, the column `tombstone` (the record has no value) and a column `value.NAME` for each
column of the data.  Its schema metadata names the version of the schema under `pylog.schema.id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from spark_log.schema.arrow_types import all_nullable
from spark_log.schema.names import PREFIX, stored_name
from spark_log.schema.topic_schema import TopicSchema

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", TIMESTAMP)])
RECORD_SCHEMA_HEADERS = RECORD_SCHEMA.append(pa.field("headers", HEADERS))
OFFSET = pa.field("offset", pa.int64())
"""Offset of each record, relative to the run's base."""
SCHEMA_ID = b"pylog.schema.id"
"""The key in a run's schema metadata for the version of the schema of its data columns."""
TOMBSTONE = pa.field("tombstone", pa.bool_())
_KEY, _TIME = RECORD_SCHEMA.field("key"), RECORD_SCHEMA.field("timestamp")


@lru_cache(maxsize=256)
def typed_base(schema: TopicSchema) -> pa.Schema:
    """The columns of a typed run without headers and holes."""
    columns = [pa.field(stored_name(field.name), all_nullable(field.type)) for field in schema.columns]
    return pa.schema([_KEY, TOMBSTONE, *columns, _TIME], metadata={SCHEMA_ID: b"%d" % schema.version})


def run_schema(*, headers: bool, holes: bool, base: pa.Schema = RECORD_SCHEMA) -> pa.Schema:
    """The schema of a run with headers, or with offsets that have no record."""
    # Schemas are equal whatever their version is.
    return _run_schema(base, schema_version(base), headers, holes) if headers or holes else base


@lru_cache(maxsize=256)
def _run_schema(base: pa.Schema, version: int, headers: bool, holes: bool) -> pa.Schema:
    schema = base.append(RECORD_SCHEMA_HEADERS.field("headers")) if headers else base
    return schema.append(OFFSET) if holes else schema


def base_of(schema: pa.Schema) -> pa.Schema:
    """The columns of a run without headers and offsets."""
    if schema.names[-1] == _TIME.name:
        return schema
    fields = [field for field in schema if field.name not in ("headers", OFFSET.name)]
    return pa.schema(fields, metadata=schema.metadata)


def schema_version(schema: pa.Schema) -> int:
    """The version of the schema of a run's data columns; 0 for bytes."""
    return int((schema.metadata or {}).get(SCHEMA_ID, b"0"))


def data_names(names: Sequence[str]) -> list[str]:
    """Those names of stored columns that are of data."""
    return [name for name in names if name.startswith(PREFIX)]


def is_same_base(one: pa.Schema, other: pa.Schema) -> bool:
    """Whether two runs have the same columns of data, by the same version, whatever else they have."""
    if one is other or one.equals(other, check_metadata=True):
        return True
    return bool(base_of(one).equals(base_of(other), check_metadata=True))
