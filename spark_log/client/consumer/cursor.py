"""A cursor that reads one partition, and the conversion of Arrow batches to records."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import pyarrow as pa

from spark_log.client.reader.erased_since import ErasedSince
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import OffsetRange, SliceRead, end_of_slices, plan_reads
from spark_log.client.reader.request_ahead import Coming, ahead_of, asked_together
from spark_log.client.reader.scan_batches import RECORD_COLUMNS, fetch_asked, fetch_ranges
from spark_log.client.reader.typed import in_form
from spark_log.errors import CorruptObject, DataLoss, RecordDeserialization, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.metadata.set_backs import lineage_of
from spark_log.metadata.state import State, TopicKey
from spark_log.model import ConsumerRecord, TopicPartition
from spark_log.roots.read_failover import NOT_READ
from spark_log.segment.arrays.numpy_arrays import micros_of
from spark_log.store.bounded_waits import Slot, Waiter

PLAN_RECORDS = 1_000_000
"""A read plan covers at most this many records."""
PLAN_SLICES = 10_000
"""A read plan covers about this many slices.  Each takes 600 bytes: a partition may have a million that were never
merged."""

Coder = Callable[[Any], Any] | None


class JointRead:
    """One read for several partitions of a poll that have few records left: their slices in one object share a request.

    The first cursor that needs records runs the read, in its thread.  The other cursors take their records from it, in
    the same poll or in later ones.
    """

    def __init__(self, journal: Journal, ranges: Sequence[OffsetRange], rack: str = "") -> None:
        """rack:  of the reader; empty: that of the process."""
        self._journal, self._ranges, self._rack, self._pid = journal, ranges, rack, os.getpid()
        self._starts = {(rng.topic_id, rng.partition): rng.start for rng in ranges}
        """Start offsets of partitions that have not taken their records."""
        self._lineage = lineage_of(journal.state)
        self._lock = threading.Lock()
        self._found: dict[TopicKey, Iterator[Fetched]] | None = None

    def has(self, rng: OffsetRange) -> bool:
        """Whether the records from the start of a range are requested, or will be.

        False in a forked child, which does not have the threads of its parent, and after the log was restored: the
        offsets may be those of other records by now.
        """
        if self._pid != os.getpid() or self._lineage != lineage_of(self._journal.state):
            return False
        key, found = (rng.topic_id, rng.partition), self._found
        return self._starts.get(key) == rng.start and (found is None or key in found)

    def of(self, key: TopicKey, at: int) -> Iterator[Fetched]:
        """The records of a partition from an offset on, once; none if they have to be planned alone."""
        if self._starts.pop(key, None) != at:
            return iter(())
        with self._lock:
            if self._found is None:
                self._found = self._requested()
        return self._found.pop(key, iter(()))

    def _requested(self) -> dict[TopicKey, Iterator[Fetched]]:
        try:
            reads = plan_reads(self._journal, self._ranges)
        except (DataLoss, UnknownTopicOrPartition, *NOT_READ, CorruptObject):  # of one: its cursor will see it
            return {}
        asked: dict[TopicKey, list[tuple[SliceRead, Coming | None]]] = {}
        for read, coming in asked_together(self._journal.objects_near(self._rack), reads):
            asked.setdefault((read.topic_id, read.partition), []).append((read, coming))
        return {key: self._fetched(key, pairs) for key, pairs in asked.items()}

    def _fetched(self, key: TopicKey, pairs: Iterable[tuple[SliceRead, Coming | None]]) -> Iterator[Fetched]:
        return fetch_asked(self._journal, pairs, columns_of(self._journal.state, key), rack=self._rack)


def columns_of(state: State, key: TopicKey) -> Sequence[str] | None:
    """The columns that are fetched of a partition: those of records; None, as they are stored, if there is a schema."""
    return None if key[0] in state.schemas else RECORD_COLUMNS


class Cursor:
    """Reads one partition from an offset.  It never reads beyond the end of the given state."""

    def __init__(
        self,
        journal: Journal,
        tp: TopicPartition,
        key: TopicKey,
        at: int,
        waiter: Waiter,
        rack: str = "",
        cursors: Callable[[], int] = lambda: 1,
    ) -> None:
        """
        rack:     of the reader; empty: that of the process.
        cursors:  how many of the reader hold what they requested, this one included.
        """
        self.at = at
        """Offset of the next record."""
        self._journal, self._rack, self._cursors = journal, rack, cursors
        self._tp = tp
        self._key = key
        self._rest: Fetched | None = None
        self._coming: Iterator[Fetched] = iter(())
        self._until = at
        """The end of the records that are planned."""
        self._erased = ErasedSince(journal)
        """Since a version that is not newer than the plan."""
        self._waiter = waiter
        self._under_way = Slot[Fetched | None](direct=journal.objects.local)

    def ready(self, state: State) -> bool:
        """Whether a record is available."""
        return self.at < state.partitions[self._key].readable_end

    def is_at_end(self, state: State) -> bool:
        """Whether there is nothing to read, in memory or after it."""
        part = state.partitions.get(self._key)
        return self._rest is None and part is not None and self.at >= part.readable_end

    @property
    def buffered(self) -> bool:
        """Whether the rest of a batch is in memory."""
        return self._rest is not None

    def rest(self, state: State) -> OffsetRange | None:
        """The records that the next plan would cover; None if there are none, or others come first."""
        known = self._rest is not None or self.at < self._until or not self._under_way.is_free
        return None if known or not self.ready(state) else self._ahead(state)

    def take(self, state: State, rows: int, joint: JointRead | None = None) -> Fetched | None:
        """The next records of one batch, at most `rows`.  They may be holes; None at the end of `state`.

        joint:  a joint read that may include these records.
        Raises DataLoss if the records were trimmed, UnknownTopicOrPartition if the topic was deleted, and Unfinished
        while the storage request is in flight.
        """
        if self._rest is not None and self._erased.has(self._key[0]):
            self._rest = None
        if self._rest is None and not self.ready(state):
            return None
        part = self._rest or self._waiter.answer(self._under_way, lambda: self._next(state, joint))
        if part is None:
            return None
        if self._erased.has(self._key[0]):  # it may have been requested before
            self._erased, self._until = ErasedSince(self._journal), self.at
            self._rest, self._coming = None, iter(())
            return self.take(state, rows)
        self._rest = None
        if rows < len(part.offsets):
            self._rest, part = part.tail(rows), part.head(rows)
        self.at = part.end
        return part

    def _next(self, state: State, joint: JointRead | None) -> Fetched | None:
        part = next(self._coming, None)
        if part is None and self.ready(state):
            ahead = self._ahead(state)
            self._until, self._erased = ahead.end, ErasedSince(self._journal)
            self._coming = joint.of(self._key, self.at) if joint is not None else iter(())
            part = next(self._coming, None)
            if part is None:
                reads = plan_reads(self._journal, [ahead])
                columns, share = columns_of(state, self._key), ahead_of(self._cursors())
                self._coming = fetch_ranges(self._journal, reads, columns, rack=self._rack, ahead=share)
                part = next(self._coming)
        return part

    def _ahead(self, state: State) -> OffsetRange:
        part = state.partitions[self._key]
        end = min(part.readable_end, self.at + PLAN_RECORDS, end_of_slices(part, self.at, PLAN_SLICES))
        return OffsetRange(self._tp.topic, self._key[0], self._tp.partition, self.at, end)


class Readable(NamedTuple):
    """Records of one partition, at least one, as Python values."""

    tp: TopicPartition
    records: list[ConsumerRecord]
    end: int
    """The position after them."""

    def positions(self) -> Iterator[int]:
        """The position after each record."""
        first, last = self.records[0].offset, self.records[-1].offset
        if last - first == len(self.records) - 1:  # without holes
            return chain(range(first + 1, last + 1), (self.end,))
        return chain((record.offset + 1 for record in self.records[:-1]), (self.end,))


def readable(parts: Sequence[Fetched], decode_key: Coder, decode_value: Coder) -> list[Readable]:
    """Records as Python values.  The records of a partition end before the first one that cannot be deserialized.

    Raises RecordDeserialization if the first record of a partition cannot be.
    """
    found: list[Readable] = []
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
            found.append(Readable(tp, records, part.end if failed is None else failed.offset))
            begun.add(tp)
    return found


def to_records(
    part: Fetched, decode_key: Coder, decode_value: Coder
) -> tuple[list[ConsumerRecord], RecordDeserialization | None]:
    """Records as Python values, up to the first one that cannot be deserialized, and the error of that one."""
    part = in_form(part, RECORD_COLUMNS)
    keys, no_key = _decoded(part, "key", decode_key)
    values, no_value = _decoded(part, "value", decode_value)
    times = (micros_of(part.records.column("timestamp")) // 1000).tolist()
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
