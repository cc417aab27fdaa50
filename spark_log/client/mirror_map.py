"""A mirror's offset map: the offsets of a source log, and the offsets of their copies in this log.

A mirror copies partitions record by record, in order.  Offsets in the source have gaps (compaction, transaction
markers), and the copies get offsets without gaps.  So the map keeps *runs* of source offsets without a gap, and the
offset of a copy is the number of records copied before it.  That is exact as long as only the mirror writes to the
copy; `MirrorMap.check` verifies it.  Compaction of the copy removes records and changes no offset, so the map holds.

The map is a topic with one partition.  Each record is JSON, and was committed together with the records it describes:

    {"topic":"orders","id":"<id here>","source":"<id in the source>","partition":0,"runs":[[17,3],[22,1]]}

means that the source records 17, 18, 19 and 22 were copied.  Entries with the id of a deleted topic are ignored.
"""

from __future__ import annotations

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


class MapEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record of the map."""

    topic: str
    id: str
    """Id of the topic here."""
    source: str
    """Id of the topic in the source."""
    partition: int
    runs: tuple[OffsetRun, ...]


class Copied(NamedTuple):
    """Progress of a partition."""

    records: int
    end: int
    """The source offset after the last copied record."""
    source: str


class MirroredTopic(NamedTuple):
    """A topic that is copied, and the topic of its map.  Sent to tasks."""

    topic: str
    id: str
    source: str
    map: str
    compacted: bool = False
    """Records without a key are left out, as compaction of the source does later: a compacted topic refuses them."""


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


def translate(
    entries: Iterable[MapEntry], offsets: Iterable[tuple[TopicPartition, int]]
) -> dict[tuple[TopicPartition, int], int]:
    """Source offsets as offsets here: the number of records that were copied before them."""
    found = dict.fromkeys(offsets, 0)
    wanted: dict[TopicPartition, list[int]] = defaultdict(list)
    for tp, offset in found:
        wanted[tp].append(offset)
    for entry in entries:
        tp = TopicPartition(entry.topic, entry.partition)
        if tp in wanted:
            starts, counts = np.array(entry.runs, dtype=np.int64).T
            for offset in wanted[tp]:
                found[tp, offset] += int(np.clip(offset - starts, 0, counts).sum())
    return found


class MirrorMap:
    """The map, in a topic of a log."""

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self.name = name

    def create(self) -> None:
        """Create the topic if it does not exist; its entries are kept for ever."""
        if self.name not in self._log.admin.list_topics():
            self._log.admin.create_topics([NewTopic(self.name, 1, KEPT)])

    def entries(self) -> Iterator[MapEntry]:
        """All entries, except those of deleted or recreated topics."""
        names = self._log.journal.refresh().names
        if self.name not in names:
            return
        for batch in self._log.scan(self.name, columns=["value"]):
            for value in batch.column("value"):
                entry = parse_entry(value.as_py())
                if names.get(entry.topic) == entry.id:
                    yield entry

    def copied(self) -> dict[TopicPartition, Copied]:
        """Progress of each partition; partitions without copied records are left out.

        Raises InvalidRequest for records that were copied twice.
        """
        found: dict[TopicPartition, Copied] = {}
        for entry in self.entries():
            tp = TopicPartition(entry.topic, entry.partition)
            known = found.get(tp, Copied(0, 0, entry.source))
            if entry.runs[0].start < known.end and entry.source == known.source:
                raise InvalidRequest(
                    f"records of {tp.topic}-{tp.partition} from offset {entry.runs[0].start} of the source on were copied "
                    "twice: two mirrors with different checkpoints have run at the same time. Stop all but one, and "
                    f"delete {tp.topic!r} here to copy it again"
                )
            records = known.records + sum(run.records for run in entry.runs)
            found[tp] = Copied(records, max(known.end, entry.runs[-1].end), entry.source)
        return found

    def translate(self, offsets: Iterable[tuple[TopicPartition, int]]) -> dict[tuple[TopicPartition, int], int]:
        """The offset here of the record with a source offset; in a gap, of the first record after it."""
        return translate(self.entries(), offsets)

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
