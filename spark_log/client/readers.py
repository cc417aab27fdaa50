"""What a consumer reads with: a cursor over one partition, and records out of Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from spark_log.client.fetch import Fetched
from spark_log.client.plan import OffsetRange, plan_reads
from spark_log.client.scan import RECORD_COLUMNS, fetch_ranges
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State, TopicKey
from spark_log.model import ConsumerRecord, TopicPartition

PLAN_RECORDS = 1_000_000
"""Plans reach so far ahead at most."""

Coder = Callable[[Any], Any] | None


class Cursor:
    """Reads one partition from an offset on.  It never goes beyond the end of the state that it is given."""

    def __init__(self, journal: Journal, tp: TopicPartition, key: TopicKey, at: int) -> None:
        self.at = at
        """Offset of the next record that it gives."""
        self._journal = journal
        self._tp = tp
        self._key = key
        self._rest: Fetched | None = None
        self._coming: Iterator[Fetched] = iter(())

    def ready(self, state: State) -> bool:
        """Whether there is a record to give."""
        return self.at < state.partitions[self._key].end

    def take(self, state: State, rows: int) -> Fetched | None:
        """The next records of one batch, at most `rows`; None at the end of `state`.

        Raises DataLoss if they were trimmed, UnknownTopicOrPartition if the topic was deleted.
        """
        part = self._rest or self._next(state)
        if part is None:
            return None
        count = part.records.num_rows
        self._rest = part._replace(first=part.first + rows, records=part.records.slice(rows)) if rows < count else None
        if rows < count:
            part = part._replace(records=part.records.slice(0, rows))
        self.at = part.first + part.records.num_rows
        return part

    def _next(self, state: State) -> Fetched | None:
        part = next(self._coming, None)
        if part is None and self.ready(state):
            end = min(state.partitions[self._key].end, self.at + PLAN_RECORDS)
            ahead = OffsetRange(self._tp.topic, self._key[0], self._tp.partition, self.at, end)
            self._coming = fetch_ranges(self._journal, plan_reads(self._journal, [ahead]), RECORD_COLUMNS)
            part = next(self._coming)
        return part


def to_records(part: Fetched, decode_key: Coder, decode_value: Coder) -> list[ConsumerRecord]:
    """Records as Python values."""
    records, count = part.records, part.records.num_rows
    keys, values = records.column("key").to_pylist(), records.column("value").to_pylist()
    times = (records.column("timestamp").view(pa.int64()).to_numpy() // 1000).tolist()
    rows = zip(
        repeat(part.read.topic),
        repeat(part.read.partition),
        range(part.first, part.first + count),
        times,
        _decoded(decode_key, keys),
        _decoded(decode_value, values),
        _headers(records),
        strict=False,
    )
    return list(map(ConsumerRecord._make, rows))


def _decoded(decode: Coder, values: Sequence[bytes | None]) -> Sequence[Any]:
    return values if decode is None else [None if value is None else decode(value) for value in values]


def _headers(records: pa.RecordBatch) -> list[list[tuple[str, bytes | None]]]:
    headers = records.column("headers")
    if headers.null_count == len(headers):
        return [[] for _ in range(len(headers))]
    return [[(one["key"], one["value"]) for one in some or ()] for some in headers.to_pylist()]
