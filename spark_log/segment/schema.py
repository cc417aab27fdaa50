"""The columns of a record.

A run holds `key`, `value` and `timestamp`, `headers` if any record that was written with it has some, and `offset` if
there are offsets without a record.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", TIMESTAMP)])
RECORD_SCHEMA_HEADERS = RECORD_SCHEMA.append(pa.field("headers", HEADERS))
OFFSET = pa.field("offset", pa.int64())
"""Offset of each record, relative to the run's base."""


@cache
def run_schema(*, headers: bool, holes: bool) -> pa.Schema:
    """The schema of a run with headers, or with offsets that have no record."""
    schema = RECORD_SCHEMA_HEADERS if headers else RECORD_SCHEMA
    return schema.append(OFFSET) if holes else schema
