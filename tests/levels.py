"""Logs as they were made before new logs began at the newest level."""

from __future__ import annotations

from spark_log import Log
from spark_log.journal.object_names import log_key
from spark_log.metadata.batch_format import encode_batch
from spark_log.metadata.records import Batch, SetConfigsRecord


def begin_at_level_1(log: Log) -> Log:
    """Write the first version of a log without records, as pylogs of level 1 did; the same log."""
    journal = log.journal
    record = SetConfigsRecord(configs={"num.partitions": "1"})
    batch = Batch(id="level-1", time=journal.context.clock.now_ms(), records=(record,))
    assert journal.metadata.put_new(log_key(1), encode_batch(batch)), "the log has records"
    assert not journal.refresh().features
    return log
