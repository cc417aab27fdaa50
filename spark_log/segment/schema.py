"""The columns of a record.

A run always has the columns `key`, `value` and `timestamp`.  It has `headers` if any of the records that were
encoded together with its own has headers, and `offset` if some offsets have no record.
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
