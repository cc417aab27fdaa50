"""The content of simulated objects: rows as they are, or rows encoded as real segments.

Plain rows make a run cheap.  A share of the runs encodes them, so that the codec is tested under the same protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa

from spark_log.metadata.state import TopicKey
from spark_log.model import Run, Slice
from spark_log.segment.offsets import Offsets
from spark_log.segment.reader import Place, decode_run
from spark_log.segment.schema import HEADERS, RECORD_SCHEMA, RECORD_SCHEMA_HEADERS, TIMESTAMP
from spark_log.segment.writer import SegmentWriter

COMPACTED = "compacted"
"""The prefix of the ids of compacted topics."""
KEYED = "keyed"
"""The prefix of the ids of other topics whose records have keys, in runs that encode real segments."""


class Row(NamedTuple):
    """A record.  Every record is unique."""

    payload: str
    """The name of the record's commit."""
    number: int
    time_ms: int = 0

    @property
    def key(self) -> str | None:
        """Its key in a topic with keys: one of a few, or none."""
        draw = self._draw()
        return None if draw % 31 == 0 else f"key{draw % 5}"

    @property
    def is_tombstone(self) -> bool:
        """Whether it has no value in a topic with keys."""
        return self._draw() // 155 % 3 == 0

    def _draw(self) -> int:
        return crc32(f"{self.payload}/{self.number}".encode())


Rows = tuple[Row, ...]
PlacedRows = Sequence[tuple[int, Row]]
"""Records with their offsets."""


class PlacedRun(NamedTuple):
    """Records of a partition, with their offsets relative to the run's base."""

    key: TopicKey
    rows: PlacedRows
    end: int
    """The run covers the offsets up to it."""


def whole_run(key: TopicKey, rows: Rows) -> PlacedRun:
    """A run without holes."""
    return PlacedRun(key, tuple(enumerate(rows)), len(rows))


def is_compacted(key: TopicKey) -> bool:
    """Whether a partition is of a topic that is compacted from the start, by its id."""
    return key[0].startswith(COMPACTED)


def has_keys(key: TopicKey) -> bool:
    """Whether single records of a partition may be removed: by compaction, or by an erasure."""
    return key[0].startswith((COMPACTED, KEYED))


class Encoded(NamedTuple):
    """An object to put."""

    chunks: Sequence[Any]
    size: int
    index_position: int
    runs: tuple[Run, ...]


class Codec(Protocol):
    def encode(self, runs: Sequence[PlacedRun]) -> Encoded: ...

    def decode(self, content: Any, piece: Slice, key: TopicKey) -> PlacedRows:
        """The rows of a slice, with offsets relative to its start; `content` is the slice's byte range."""


class PlainCodec:
    """An object is a tuple of runs, a run is a tuple of rows: run number n is "byte" n."""

    def encode(self, runs: Sequence[PlacedRun]) -> Encoded:
        made = tuple(
            Run(*run.key, number, 1, 0, len(run.rows), 1, *_span_us(run.rows)) for number, run in enumerate(runs)
        )
        return Encoded((tuple(tuple(run.rows) for run in runs),), len(runs), len(runs), made)

    def decode(self, content: Any, piece: Slice, key: TopicKey) -> PlacedRows:
        rows: PlacedRows = content[0]
        return rows


class SegmentCodec:
    """Real segment objects."""

    def encode(self, runs: Sequence[PlacedRun]) -> Encoded:
        writer = SegmentWriter(batch_rows=2)
        for key, placed, end in runs:
            rows = [row for _, row in placed]
            times = pa.array([1000 * row.time_ms for row in rows], pa.int64()).cast(TIMESTAMP)
            if has_keys(key):
                headers = pa.array([[("row", json.dumps(row).encode())] for row in rows], HEADERS)
                keys = pa.array([row.key and row.key.encode() for row in rows], pa.binary())
                values = pa.array([None if row.is_tombstone else b"" for row in rows], pa.binary())
                columns, schema = [keys, values, times, headers], RECORD_SCHEMA_HEADERS
            else:
                values = pa.array([json.dumps(row).encode() for row in rows], pa.binary())
                columns, schema = [pa.nulls(len(rows), pa.binary()), values, times], RECORD_SCHEMA
            offsets = np.array([offset for offset, _ in placed], np.int64)
            writer.append(*key, pa.RecordBatch.from_arrays(columns, schema=schema), offsets=_dense(offsets))
            writer.extend(*key, end)
        written = writer.finish()
        # The writer may order runs differently; the slices of a commit follow the writer's order.
        return Encoded(list(written.chunks()), written.size, written.index_position, written.runs)

    def decode(self, content: Any, piece: Slice, key: TopicKey) -> PlacedRows:
        """A tombstone has no value: the rows of topics with keys are in a header."""
        column = "headers" if has_keys(key) else "value"
        found: list[tuple[int, Row]] = []
        for offsets, records in decode_run(content, piece, [column], place=Place(piece.object, key[0], *key)):
            values = records.column(column).to_pylist()
            rows = map(row_of, values) if has_keys(key) else (Row(*json.loads(value)) for value in values)
            found += zip(map(int, offsets), rows, strict=True)
        return found


def row_of(headers: Sequence[Mapping[str, bytes]]) -> Row:
    """The record with these headers."""
    return Row(*json.loads(headers[0]["value"]))


def _dense(offsets: np.ndarray[Any, np.dtype[np.int64]]) -> Offsets:
    """Offsets as a range where they have no holes, as in the product."""
    return range(len(offsets)) if offsets.tolist() == list(range(len(offsets))) else offsets


def _span_us(rows: Iterable[tuple[int, Row]]) -> tuple[int, int]:
    times = [1000 * row.time_ms for _, row in rows]
    return min(times, default=0), max(times, default=0)
