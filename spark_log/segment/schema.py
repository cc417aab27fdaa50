"""The columns of a record, and the supported compressions of their buffers.

A run holds `key`, `value` and `timestamp`, and also `headers` if any record that was written with it has some.
"""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", TIMESTAMP)])
RECORD_SCHEMA_HEADERS = RECORD_SCHEMA.append(pa.field("headers", HEADERS))
COMPRESSIONS = ("zstd", "lz4", "none")
DEFAULT_COMPRESSION = COMPRESSIONS[0]
"""Half the bytes of lz4 for a twentieth more CPU (docs/decisions/0019-zstd.md)."""
