"""A cursor that reads one partition, and the conversion of Arrow batches to records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.client.reading.fetch import Fetched
from spark_log.client.reading.plan import OffsetRange, plan_reads
from spark_log.client.reading.scan_batches import RECORD_COLUMNS, fetch_ranges
from spark_log.errors import RecordDeserialization
from spark_log.journal.journal import Journal
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.model import ConsumerRecord, TopicPartition
from spark_log.store.bounded_waits import Slot, Waiter

PLAN_RECORDS = 1_000_000
"""A read plan covers at most this many records."""

Coder = Callable[[Any], Any] | None


class Cursor:
    """Reads one partition from an offset.  It never reads beyond the end of the given state."""

    def __init__(self, journal: Journal, tp: TopicPartition, key: TopicKey, at: int, waiter: Waiter) -> None:
        self.at = at
        """Offset of the next record."""
        self.exhausted: Partition | None = None
        """The partition as it was when it had no more records."""
        self._journal = journal
        self._tp = tp
        self._key = key
        self._rest: Fetched | None = None
        self._coming: Iterator[Fetched] = iter(())
        self._waiter = waiter
        self._under_way = Slot[Fetched | None](direct=journal.objects.local)

    def ready(self, state: State) -> bool:
        """Whether a record is available."""
        return self.at < state.partitions[self._key].readable_end

    @property
    def buffered(self) -> bool:
        """Whether the rest of a batch is in memory."""
        return self._rest is not None

    def take(self, state: State, rows: int) -> Fetched | None:
        """The next records of one batch, at most `rows`; None at the end of `state`.

        Raises DataLoss if they were trimmed, UnknownTopicOrPartition if the topic was deleted, and Unfinished while the
        storage request is in flight.
        """
        if self._rest is None and not self.ready(state):
            self.exhausted = state.partitions[self._key]
            return None
        part = self._rest or self._waiter.answer(self._under_way, lambda: self._next(state))
        if part is None:
            return None
        self._rest = None
        if rows < len(part.offsets):
            self._rest, part = part.tail(rows), part.head(rows)
        self.at = part.end
        return part

    def _next(self, state: State) -> Fetched | None:
        part = next(self._coming, None)
        if part is None and self.ready(state):
            end = min(state.partitions[self._key].readable_end, self.at + PLAN_RECORDS)
            ahead = OffsetRange(self._tp.topic, self._key[0], self._tp.partition, self.at, end)
            self._coming = fetch_ranges(self._journal, plan_reads(self._journal, [ahead]), RECORD_COLUMNS)
            part = next(self._coming)
        return part


def readable(parts: Sequence[Fetched], decode_key: Coder, decode_value: Coder) -> list[list[ConsumerRecord]]:
    """Records as Python values.  A partition's records end before the first one that cannot be deserialized.

    Raises RecordDeserialization if that is the first record of its partition.
    """
    found: list[list[ConsumerRecord]] = []
    begun: set[TopicPartition] = set()
    ended: set[TopicPartition] = set()
    for part in parts:
        tp = TopicPartition(part.read.topic, part.read.partition)
        if tp in ended:
            continue
        records, failed = to_records(part, decode_key, decode_value)
        if failed is not None:
            if not records and tp not in begun:
                raise failed
            ended.add(tp)
        if records:
            found.append(records)
            begun.add(tp)
    return found


def to_records(
    part: Fetched, decode_key: Coder, decode_value: Coder
) -> tuple[list[ConsumerRecord], RecordDeserialization | None]:
    """Records as Python values, up to the first one that cannot be deserialized, and the error of that one."""
    keys, no_key = _decoded(part, "key", decode_key)
    values, no_value = _decoded(part, "value", decode_value)
    times = (_micros(part.records.column("timestamp")) // 1000).tolist()
    # In the offsets, a null has start == end.
    records = list(
        map(
            ConsumerRecord,
            repeat(part.read.topic),
            repeat(part.read.partition),
            part.offsets if isinstance(part.offsets, range) else part.offsets.tolist(),
            times,
            keys,
            values,
            _headers(part.records),
        )
    )
    failed = [error for error in (no_key, no_value) if error is not None]
    return records, min(failed, key=lambda error: error.offset, default=None)


def _micros(stamps: pa.Array) -> npt.NDArray[np.int64]:
    """As a numpy array.  `to_numpy` would import pandas on its first call: 0.3 s before the first record."""
    data: npt.NDArray[np.int64] = np.frombuffer(stamps.buffers()[1], dtype=np.int64)
    return data[stamps.offset : stamps.offset + len(stamps)]


def _decoded(part: Fetched, column: str, decode: Coder) -> tuple[Sequence[Any], RecordDeserialization | None]:
    values: list[bytes | None] = part.records.column(column).to_pylist()
    if decode is None:
        return values, None
    decoded: list[Any] = []
    try:
        for value in values:
            decoded.append(None if value is None else decode(value))
    except Exception as error:  # noqa: BLE001  the user's function may raise anything
        topic, partition, offset = part.read.topic, part.read.partition, int(part.offsets[len(decoded)])
        failed = RecordDeserialization(
            f"{topic}-{partition}, offset {offset}: the {column} cannot be deserialized: {error!r}; "
            f"seek to {offset + 1} to skip it",
            topic=topic,
            partition=partition,
            offset=offset,
        )
        failed.__cause__ = error
        return decoded, failed
    return decoded, None


def _headers(records: pa.RecordBatch) -> Iterable[Sequence[tuple[str, bytes | None]]]:
    headers = records.column("headers")
    if headers.null_count == len(headers):
        return repeat(())
    return [[(one["key"], one["value"]) for one in some] if some else () for some in headers.to_pylist()]
