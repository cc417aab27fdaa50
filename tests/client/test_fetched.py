"""Fetched records carry their offsets, which may have holes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_log.client.consumer.cursor import to_records
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.prune import only_matching
from spark_log.client.reader.scan_batches import SCAN_SCHEMA, to_batch
from spark_log.conditions import as_condition
from spark_log.model import Slice
from spark_log.segment.offsets import Offsets
from spark_log.segment.schema import RECORD_SCHEMA_HEADERS

DENSE, HOLES = range(5, 9), np.array([5, 7, 8, 12])


def part_of(offsets: Offsets) -> Fetched:
    rows = [{"key": None, "value": b"%d" % offset, "timestamp": 0, "headers": None} for offset in offsets]
    read = SliceRead("t", "id", 0, 5, 13, Slice(5, 13, "o", 0, 1, 0, 1, 0, 0), 0, 0)
    return Fetched(read, offsets, pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA_HEADERS), 13)


@pytest.mark.parametrize("offsets", [DENSE, HOLES])
def test_a_batch_is_cut_with_its_offsets(offsets: Offsets) -> None:
    """Both parts have the offsets of their records; the second one ends after the holes behind its last record."""
    whole = part_of(offsets)
    head, tail = whole.head(2), whole.tail(2)
    assert [*head.offset_array(), *tail.offset_array()] == list(offsets)
    assert [b"%d" % offset for offset in tail.offset_array()] == tail.records.column("value").to_pylist()
    assert (head.end, tail.end, whole.end) == (offsets[1] + 1, 13, 13)


@pytest.mark.parametrize("offsets", [DENSE, HOLES])
def test_records_and_batches_have_the_offsets_that_were_read(offsets: Offsets) -> None:
    """As Python values, as Arrow, and where a condition names offsets."""
    part = part_of(offsets)
    records, failed = to_records(part, None, None)
    assert failed is None and [record.offset for record in records] == list(offsets)
    batch = to_batch(part, SCAN_SCHEMA)
    assert batch.column("offset").to_pylist() == list(offsets)
    found = only_matching(batch, part, as_condition("offset in (7, 8)"))
    assert found.column("offset").to_pylist() == [7, 8]


def test_a_record_that_cannot_be_decoded_is_named_by_its_offset() -> None:
    def decode(value: bytes) -> int:
        return 1 // (int(value) - 8)

    records, failed = to_records(part_of(HOLES), None, decode)
    assert [record.offset for record in records] == [5, 7]
    assert failed is not None and failed.offset == 8
