"""Batches that a gateway makes and keeps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatch

import spark_log
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import OffsetRange, plan_reads
from spark_log.client.reader.scan_batches import RECORD_COLUMNS, fetch_ranges
from spark_log.gateway.stored_batches import ENTRY_BYTES, StoredBatches, batches_of


def id_of(log: spark_log.Log) -> str:
    return log.journal.refresh().names["orders"]


def records(log: spark_log.Log, offsets: list[int], end: int) -> Fetched:
    """Records at these offsets, as compaction leaves them."""
    log.append("orders", [{"value": f"v{n}", "partition": 0} for n in offsets])
    asked = OffsetRange("orders", id_of(log), 0, 0, len(offsets))
    (found,) = fetch_ranges(log.journal, plan_reads(log.journal, [asked]), RECORD_COLUMNS)
    return found._replace(offsets=np.array(offsets, np.int64), end=end)


def test_offsets_that_are_far_apart_are_in_several_batches(log: spark_log.Log) -> None:
    """A batch has differences of 31 bits; compaction may leave a few records of billions."""
    offsets, end = [0, 5, 3 << 30, (3 << 30) + 1, 9 << 30], 12 << 30
    batches = list(batches_of([records(log, offsets, end)], 7))
    found = [DefaultRecordBatch(batch.data) for batch in batches]
    assert [one.offset for batch in found for one in batch] == offsets
    ends = [batch.base_offset + batch.last_offset_delta + 1 for batch in found]
    assert ends == [batch.end for batch in batches] and ends == sorted(ends)
    nothing = records(log, offsets, end)._replace(records=pa.RecordBatch.from_pylist([]), offsets=range(0))
    assert [batch.end for batch in batches_of([nothing], 7)] == [end]


# Promise: gateway.md#limits
def test_small_batches_are_counted_with_what_keeping_them_takes(log: spark_log.Log) -> None:
    """A client that follows a topic gets one of each commit: a million of them in a day."""
    for n in range(20):
        log.append("orders", [{"value": f"v{n}", "partition": 0}])
    stored, state = StoredBatches(log.journal, kept_bytes=10 * ENTRY_BYTES), log.journal.state
    for n in range(20):
        stored.read(state, (id_of(log), 0), n, 1)
    assert 0 < len(stored) < 10
