"""Records and objects for the tests of segments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from spark_log.segment.reader import Place, decode_run
from spark_log.segment.schema import RECORD_SCHEMA, RECORD_SCHEMA_HEADERS
from spark_log.segment.writer import SegmentWriter, WrittenSegment

START_US = 1_700_000_000_000_000
OBJECT = "data/7/a.seg"


def records(rows: Iterable[tuple[Any, ...]], *, headers: bool = False) -> pa.RecordBatch:
    """Rows of (key, value, timestamp in microseconds[, headers])."""
    schema = RECORD_SCHEMA_HEADERS if headers else RECORD_SCHEMA
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def numbered(count: int, *, first: int = 0, value_bytes: int = 20) -> pa.RecordBatch:
    """Records with their number in key and value, one a millisecond."""
    rows = range(first, first + count)
    return records([(b"k%d" % i, b"%0*d" % (value_bytes, i), START_US + 1000 * i) for i in rows])


def shuffled(count: int, *, seed: int) -> pa.RecordBatch:
    """Records whose timestamps are out of order, with some null keys and values."""
    rng = np.random.default_rng(seed)
    times = START_US + rng.integers(0, count * 10, count)
    keys = [None if x == 0 else b"k%d" % x for x in rng.integers(0, 20, count)]
    values = [None if x == 0 else bytes(int(x)) for x in rng.integers(0, 30, count)]
    return records(list(zip(keys, values, times.tolist(), strict=True)))


def write(parts: Iterable[tuple[str, int, pa.RecordBatch]], **settings: Any) -> tuple[bytes, WrittenSegment]:
    """The object's bytes and what its writer says of it."""
    writer = SegmentWriter(**settings)
    for topic_id, partition, rows in parts:
        writer.append(topic_id, partition, rows)
    written = writer.finish()
    data = b"".join(written.chunks())
    assert len(data) == written.size
    return data, written


def place(partition: int = 0) -> Place:
    return Place(object=OBJECT, topic="orders", topic_id="t", partition=partition)


def read(data: bytes, written: WrittenSegment) -> dict[tuple[str, int], pa.Table]:
    """Every run, read whole."""
    tables = {}
    for run in written.runs:
        stretch = memoryview(data)[run.position : run.position + run.length]
        tables[run.topic_id, run.partition] = pa.Table.from_batches(
            found.records for found in decode_run(stretch, run, place=place(run.partition))
        )
    return tables
