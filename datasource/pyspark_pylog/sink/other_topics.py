"""Rows of bytes for other topics beside the typed rows of a frame, in the same commit.

A mirror writes a topic with a schema together with its map of offsets and its dead letters.  With the internal option
`pylog.beside`, a row with a topic in the column `pylog.topic` goes there, with the bytes in the column `pylog.value`.
The others are typed rows of the topic in the option `topic`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

TOPIC, VALUE = "pylog.topic", "pylog.value"
_SHARED = ("partition", "key", "timestamp", "headers")


def typed_part(frame: StructType) -> StructType:
    """The columns of the typed rows."""
    return StructType([field for field in frame.fields if field.name not in (TOPIC, VALUE)])


def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The typed rows, and the rows of bytes, which name their topics."""
    named = batch.column(TOPIC).is_valid()
    typed, others = batch.filter(pc.invert(named)).drop_columns([TOPIC, VALUE]), batch.filter(named)
    columns = {name: others.column(name) for name in _SHARED if name in others.schema.names}
    return typed, pa.record_batch({"topic": others.column(TOPIC), "value": others.column(VALUE), **columns})
