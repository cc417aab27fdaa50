"""Records of partitions as Kafka's batches: read from the log as Arrow, encoded, and kept for the next reader.

Neighbouring slices are joined, since encoding has a fixed cost, and larger ones are cut, so that a client with small
limits gets what it asks for.  A kept batch is served as long as the partition has the segments and the history that it
had: erasure, compaction and a restore end its use.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import OffsetRange, end_of_slices, plan_reads
from spark_log.client.reader.scan_batches import RECORD_COLUMNS, fetch_ranges
from spark_log.errors import SparkLogError
from spark_log.gateway.leader_epochs import leader_epoch
from spark_log.gateway.record_batch import OFFSETS_MAX, record_batch
from spark_log.journal.journal import Journal
from spark_log.metadata.set_backs import Lineage, lineage_of
from spark_log.metadata.state import State, TopicKey
from spark_log.model import APPEND_TIME

BATCH_BYTES = 512 << 10
"""About the size of a batch: half of what clients ask of a partition by default."""
AHEAD_BYTES = 4 << 20
"""Read from a partition together, for this request and the next ones."""
SLICES_PLANNED = 256
"""Slices that a read plans: there may be a million up to the end."""
KEPT_BYTES = 128 << 20
ENTRY_BYTES = 1 << 10
"""Memory that keeping a batch takes beside its bytes.  A batch of a single record is smaller than that."""


class Encoded(NamedTuple):
    """A record batch, and where to read on behind it."""

    end: int
    data: bytes

    @property
    def memory(self) -> int:
        return ENTRY_BYTES + len(self.data)


_Key = tuple[TopicKey, int, Lineage, int]
"""Partition, its edition, the log's lineage, and the offset that was asked for."""


class StoredBatches:
    """The batches of a log.  Thread-safe."""

    def __init__(self, journal: Journal, kept_bytes: int = KEPT_BYTES) -> None:
        self._journal = journal
        self._kept: OrderedDict[_Key, Encoded] = OrderedDict()
        self._bytes = 0
        self._bytes_max = kept_bytes
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def read(self, state: State, key: TopicKey, start: int, bytes_max: int) -> list[bytes]:
        """Batches from an offset on, below the end of the partition.

        At least one, and more of them as long as they have no more than `bytes_max` bytes together.  An error is raised
        if the first one cannot be read; otherwise what is before it is returned.
        """
        part = state.partitions[key]
        lineage, end = lineage_of(state), part.readable_end
        found: list[bytes] = []
        size, at = 0, start
        while at < end:
            try:
                batch = self._batch(state, (key, part.edition, lineage, at))
            except SparkLogError:
                if not found:
                    raise
                break
            size += len(batch.data)
            if found and size > bytes_max:
                break
            found.append(batch.data)
            at = batch.end
        return found

    def keep(self, before: State, key: TopicKey, batches: Mapping[int, Encoded]) -> None:
        """Keep batches that were just committed, by first offset, so that clients at the end cause no read.

        before:  the state of their upload.  If the partition was rewritten since, nothing is kept.
        """
        state = self._journal.state
        part, known, lineage = state.partitions.get(key), before.partitions.get(key), lineage_of(state)
        if part is None or known is None or (part.edition, lineage) != (known.edition, lineage_of(before)):
            return
        for start, batch in batches.items():
            self._keep((key, part.edition, lineage, start), batch)

    def _batch(self, state: State, asked: _Key) -> Encoded:
        with self._lock:
            batch = self._kept.get(asked)
            if batch is not None:
                self._kept.move_to_end(asked)
                return batch
        key, edition, lineage, at = asked
        size, first = 0, None
        for batch in self._encoded(state, key, at):
            first = first or batch
            self._keep((key, edition, lineage, at), batch)
            size, at = size + len(batch.data), batch.end
            if size >= AHEAD_BYTES:
                break
        if first is None:
            raise SparkLogError(f"no records at offset {at}")
        return first

    def _encoded(self, state: State, key: TopicKey, start: int) -> Iterator[Encoded]:
        topic_id, number = key
        part = state.partitions[key]
        end = min(part.readable_end, end_of_slices(part, start, SLICES_PLANNED))
        asked = OffsetRange(state.topics[topic_id].name, topic_id, number, start, end)
        reads = plan_reads(self._journal, [asked], state=state)
        epoch = leader_epoch(state, topic_id)
        failure: SparkLogError | None = None
        waiting: list[Fetched] = []
        try:
            for part_read in fetch_ranges(self._journal, reads, RECORD_COLUMNS):
                if waiting and not _fit(waiting, part_read):
                    yield from batches_of(waiting, epoch)
                    waiting = []
                waiting.append(part_read)
        except SparkLogError as error:
            failure = error
        if waiting:
            yield from batches_of(waiting, epoch)
        elif failure is not None:
            raise failure

    def _keep(self, key: _Key, batch: Encoded) -> None:
        with self._lock:
            before = self._kept.pop(key, None)
            self._bytes += batch.memory - (0 if before is None else before.memory)
            self._kept[key] = batch
            while self._bytes > self._bytes_max:
                self._bytes -= self._kept.popitem(last=False)[1].memory


def _fit(waiting: Sequence[Fetched], more: Fetched) -> bool:
    """Whether the next records belong into one batch with those that wait for it."""
    first = waiting[0].read.slice
    same_time = first.time_kind == more.read.slice.time_kind and (
        first.time_kind != APPEND_TIME or first.min_us == more.read.slice.min_us
    )
    size = sum(one.records.nbytes for one in waiting) + more.records.nbytes
    return same_time and size <= BATCH_BYTES and more.end - waiting[0].read.start <= OFFSETS_MAX


def batches_of(parts: Sequence[Fetched], epoch: int) -> Iterator[Encoded]:
    """The records of neighbouring reads in batches of about `BATCH_BYTES`, under a leader epoch."""
    encode = partial(record_batch, epoch=epoch)
    append_time = parts[0].read.slice.time_kind == APPEND_TIME
    if len(parts) == 1:
        records, offsets = parts[0].records, parts[0].offsets
    else:
        table = pa.Table.from_batches([part.records for part in parts]).combine_chunks()
        records = table.to_batches()[0] if table.num_rows else parts[0].records
        offsets = np.concatenate([part.offset_array() for part in parts])
    end, rows = parts[-1].end, records.num_rows
    if not rows:
        yield Encoded(end, encode(records, offsets, end))
    step, at = max(1, rows if records.nbytes <= BATCH_BYTES else rows * BATCH_BYTES // records.nbytes), 0
    while at < rows:
        limit = int(offsets[at]) + OFFSETS_MAX
        to = min(at + step, bisect_left(offsets, limit))
        last = min(end if to == rows else int(offsets[to]), limit)
        yield Encoded(last, encode(records.slice(at, to - at), offsets[at:to], last, append_time=append_time))
        at = to
