"""The content of simulated objects: rows as they are, or rows encoded as real segments.

Plain rows make a run cheap.  A share of the runs encodes them, so that the codec is tested under the same protocol.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from spark_log.metadata.state import TopicKey
from spark_log.model import Run, Slice
from spark_log.segment.reader import Place, decode_run
from spark_log.segment.schema import RECORD_SCHEMA
from spark_log.segment.writer import SegmentWriter


class Row(NamedTuple):
    """A record.  Every record is unique."""

    payload: str
    """The name of the record's commit."""
    number: int
    time_ms: int = 0


Rows = tuple[Row, ...]


class Encoded(NamedTuple):
    """An object to put."""

    chunks: Sequence[Any]
    size: int
    index_position: int
    runs: tuple[Run, ...]


class Codec(Protocol):
    def encode(self, runs: Sequence[tuple[TopicKey, Rows]]) -> Encoded: ...

    def decode(self, content: Any, piece: Slice, key: TopicKey) -> Rows:
        """The rows of a slice; `content` is the slice's byte range."""


class PlainCodec:
    """An object is a tuple of runs, a run is a tuple of rows: run number n is "byte" n."""

    def encode(self, runs: Sequence[tuple[TopicKey, Rows]]) -> Encoded:
        made = tuple(Run(*key, number, 1, 0, len(rows), 1, *_span_us(rows)) for number, (key, rows) in enumerate(runs))
        return Encoded((tuple(rows for _, rows in runs),), len(runs), len(runs), made)

    def decode(self, content: Any, piece: Slice, key: TopicKey) -> Rows:
        rows: Rows = content[0]
        return rows


class SegmentCodec:
    """Real segment objects."""

    def encode(self, runs: Sequence[tuple[TopicKey, Rows]]) -> Encoded:
        writer = SegmentWriter(batch_rows=2)
        for key, rows in runs:
            values = [json.dumps(row).encode() for row in rows]
            times = pa.array([1000 * row.time_ms for row in rows], pa.int64()).cast(
                RECORD_SCHEMA.field("timestamp").type
            )
            columns = [pa.nulls(len(rows), pa.binary()), pa.array(values, pa.binary()), times]
            writer.append(*key, pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA))
        written = writer.finish()
        # The writer may order runs differently; the slices of a commit follow the writer's order.
        return Encoded(list(written.chunks()), written.size, written.index_position, written.runs)

    def decode(self, content: Any, piece: Slice, key: TopicKey) -> Rows:
        batches = decode_run(content, piece, ["value"], place=Place(piece.object, key[0], *key))
        values = [value for batch in batches for value in batch.column("value").to_pylist()]
        return tuple(Row(*json.loads(value)) for value in values)


def _span_us(rows: Rows) -> tuple[int, int]:
    times = [1000 * row.time_ms for row in rows]
    return min(times), max(times)
