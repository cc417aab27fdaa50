"""A mirror's offset map: the offsets of a source log, and the offsets of their copies in this log.

A mirror copies partitions record by record, in order.  Offsets in the source have gaps (compaction, transaction
markers), and the copies get offsets without gaps.  So the map keeps *runs* of source offsets without a gap, and the
offset of a copy is the number of records copied before it.  That is exact as long as only the mirror writes to the
copy; `MirrorMap.check` verifies it.  Compaction of the copy removes records and changes no offset, so the map holds.

The map is a topic with one partition.  Each record is JSON, and was committed together with the records it describes:

    {"topic":"orders","id":"<id here>","source":"<id in the source>","partition":0,"runs":[[17,3],[22,1]]}

means that the source records 17, 18, 19 and 22 were copied. A field `history` is there if the source was restored.
Entries with the id of a deleted topic are ignored.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from spark_log.client.log import Log
from spark_log.errors import InvalidRequest
from spark_log.model import NewTopic, TopicPartition

RUNS_MAX = 1000
"""Runs in one entry; further ones go into the next entry."""


KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Configs of the map, whatever the defaults of the log are."""


class OffsetRun(NamedTuple):
    """The consecutive offsets start, start + 1, …, `records` of them."""

    start: int
    records: int

    @property
    def end(self) -> int:
        return self.start + self.records


class MapEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One record of the map."""

    topic: str
    id: str
    """Id of the topic here."""
    source: str
    """Id of the topic in the source."""
    partition: int
    runs: tuple[OffsetRun, ...]
    history: str = ""
    """The history of the source; empty if it was never restored from a copy."""


class Copied(NamedTuple):
    """Progress of a partition."""

    records: int
    end: int
    """The source offset after the last copied record."""
    source: str
    history: str = ""


class MirroredTopic(NamedTuple):
    """A topic that is copied, and the topic of its map.  Sent to tasks."""

    topic: str
    id: str
    source: str
    map: str
    compacted: bool = False
    """Records without a key are left out, as compaction of the source does later: a compacted topic refuses them."""
    history: str = ""
    """The history of the source; empty if it was never restored from a copy."""


def runs_of(offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[OffsetRun]:
    """Ascending offsets as runs without a gap."""
    if not len(offsets):
        return []
    firsts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 2) != 1)
    counts = np.diff(firsts, append=len(offsets))
    return [OffsetRun(int(offsets[first]), int(count)) for first, count in zip(firsts, counts, strict=True)]


def with_map(copy: MirroredTopic, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's records without their source offsets, followed by the entries of the offset map that describe them.

    batches:  columns partition (int32) and offset (int64), and topic, key, value, timestamp, headers as they are to be
              written.  The records of each partition are in order.
    """
    found: dict[int, list[OffsetRun]] = defaultdict(list)
    schema = None
    for batch in batches:
        if copy.compacted:
            batch = batch.filter(batch.column("key").is_valid())
        partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
        for number in np.unique(partitions):
            extend(found[int(number)], runs_of(offsets[partitions == number]))
        records = batch.drop_columns(["offset"])
        schema = records.schema
        yield records
    if schema is not None:
        yield _entries_batch(copy, found, schema)


def extend(known: list[OffsetRun], more: Sequence[OffsetRun]) -> None:
    """Append runs to `known`; adjacent runs become one."""
    if known and more and known[-1].end == more[0].start:
        known[-1] = OffsetRun(known[-1].start, known[-1].records + more[0].records)
        more = more[1:]
    known += more


def _entries_batch(copy: MirroredTopic, found: Mapping[int, Sequence[OffsetRun]], schema: pa.Schema) -> pa.RecordBatch:
    rows = [{**row, "topic": copy.map, "partition": 0} for row in entry_rows(copy, found)]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def entry_rows(copy: MirroredTopic, found: Mapping[int, Sequence[tuple[int, int]]]) -> list[dict[str, bytes]]:
    """The map records for runs by partition."""
    return [
        {
            "value": msgspec.json.encode(
                MapEntry(
                    topic=copy.topic,
                    id=copy.id,
                    source=copy.source,
                    partition=number,
                    runs=tuple(OffsetRun(*run) for run in runs[first : first + RUNS_MAX]),
                    history=copy.history,
                )
            )
        }
        for number, runs in sorted(found.items())
        for first in range(0, len(runs), RUNS_MAX)
    ]


def parse_entry(value: bytes) -> MapEntry:
    """Parse a record of the map.  Raises InvalidRequest."""
    try:
        return _DECODER.decode(value)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the map of a mirror has an invalid entry {value[:80]!r}: {error}") from error


_DECODER = msgspec.json.Decoder(MapEntry)


class CopiedRuns:
    """The entries of one partition.  Runs that meet are one, and a run takes 16 bytes."""

    def __init__(self) -> None:
        self.copied = Copied(0, 0, "")
        self.twice: int | None = None
        """The first source offset from which records were copied twice."""
        self._starts, self._records = array("q"), array("q")

    def add(self, entry: MapEntry) -> None:
        """Add the next entry."""
        known, first = self.copied, entry.runs[0].start
        if first < known.end and known.source in ("", entry.source) and self.twice is None:
            self.twice = first
        for run in entry.runs:
            if self._starts and self._starts[-1] + self._records[-1] == run.start:
                self._records[-1] += run.records
            else:
                self._starts.append(run.start)
                self._records.append(run.records)
        records = known.records + sum(run.records for run in entry.runs)
        self.copied = Copied(records, max(known.end, entry.runs[-1].end), entry.source, entry.history)

    def offset_here(self, offset: int) -> int:
        """A source offset as an offset here: the number of records that were copied before it."""
        starts, records = (np.frombuffer(part, np.int64) for part in (self._starts, self._records))
        return int(np.clip(offset - starts, 0, records).sum())


class MirrorMap:
    """The map, in a topic of a log.  Each look reads only what was added since the last one."""

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self.name = name
        self._forget()

    def _forget(self, topic_id: str = "") -> None:
        self._topic_id, self._end = topic_id, 0
        """The topic that was read, and up to which offset."""
        self._runs: dict[tuple[str, str, int], CopiedRuns] = defaultdict(CopiedRuns)
        """By topic, its id, and partition."""

    def create(self) -> None:
        """Create the topic if it does not exist; its entries are kept for ever."""
        if self.name not in self._log.admin.list_topics():
            self._log.admin.create_topics([NewTopic(self.name, 1, KEPT)])

    @property
    def end(self) -> tuple[str, int]:
        """The topic's id, and the offset up to which it was read."""
        return self._topic_id, self._end

    def entries(self, start: int = 0) -> Iterator[tuple[int, MapEntry]]:
        """All entries from an offset on, with their offsets."""
        for batch in self._log.scan(self.name, start=start, columns=["offset", "value"]):
            for offset, value in zip(batch.column("offset").to_pylist(), batch.column("value"), strict=True):
                yield offset, parse_entry(value.as_py())

    def _known(self) -> dict[TopicPartition, CopiedRuns]:
        """All entries by partition, except for those of deleted or recreated topics."""
        state = self._log.journal.refresh()
        topic_id = state.names.get(self.name, "")
        end = state.partitions[topic_id, 0].readable_end if topic_id else 0
        if topic_id != self._topic_id or end < self._end:
            self._forget(topic_id)
        if end > self._end:
            for offset, entry in self.entries(self._end):
                self._runs[entry.topic, entry.id, entry.partition].add(entry)
                self._end = offset + 1
        return {
            TopicPartition(topic, partition): runs
            for (topic, its_id, partition), runs in self._runs.items()
            if state.names.get(topic) == its_id
        }

    def copied(self) -> dict[TopicPartition, Copied]:
        """Progress of each partition; partitions without copied records are left out.

        Raises InvalidRequest for records that were copied twice.
        """
        known = self._known()
        for tp, runs in known.items():
            if runs.twice is not None:
                raise InvalidRequest(
                    f"records of {tp.topic}-{tp.partition} from offset {runs.twice} of the source on were copied "
                    "twice: two mirrors with different checkpoints have run at the same time. Stop all but one, and "
                    f"delete {tp.topic!r} here to copy it again"
                )
        return {tp: runs.copied for tp, runs in known.items()}

    def translate(self, offsets: Iterable[tuple[TopicPartition, int]]) -> dict[tuple[TopicPartition, int], int]:
        """The offset here of the record with a source offset; in a gap, of the first record after it."""
        known = self._known()
        return {
            (tp, offset): known[tp].offset_here(offset) if tp in known else 0 for tp, offset in dict.fromkeys(offsets)
        }

    def check(self, topics: Iterable[str]) -> dict[TopicPartition, Copied]:
        """The progress.  Raises InvalidRequest for a topic with records that are not copies, or that were copied twice:
        later offsets could not be translated."""
        copied = self.copied()
        for name, topic in self._log.admin.describe_topics(topics).items():
            for part in topic.partitions:
                known = copied.get(TopicPartition(name, part.partition))
                count = known.records if known else 0
                if count != part.end:
                    raise InvalidRequest(
                        f"{name}-{part.partition} ends at {part.end}, but the map {self.name!r} knows of {count} "
                        f"copied records: only the mirror may write to {name!r}. Delete the topic to copy it again"
                    )
        return copied
