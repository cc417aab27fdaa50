"""Consumer group lag, in records, stored bytes and time.

Records and bytes are computed from the state alone.  As in Kafka, offsets that compaction has left without a record
count as records.  A partly read slice, or piece of an index, counts proportionally.
Time is the age of the first unread record, to the second.  For the first record of a slice, that is the slice's
timestamp. Within a slice that spans more than a second, it is the record's timestamp, for which its batch is read.
Within another slice it is the slice's timestamp, even if compaction has removed the rest of its records.
Records that were trimmed before the group read them do not count as lag, because they can no longer be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from spark_log.client.reader.plan import OffsetRange, SliceRead, chunks, plan_reads
from spark_log.client.reader.scan_batches import fetch_ranges
from spark_log.client.representations import described
from spark_log.errors import GroupIdNotFound
from spark_log.journal.journal import Journal
from spark_log.metadata.state import GroupPosition, Partition, State
from spark_log.model import TopicPartition

CLOSE_US = 1_000_000
"""The records of a slice that spans at most this time count as equally old."""
LOOKUPS_AT_ONCE = 16


@described
class PartitionLag(NamedTuple):
    """Lag of a group in one partition."""

    tp: TopicPartition
    position: GroupPosition
    """The committed position."""
    start: int
    end: int
    """End offset of the partition."""
    trimmed: int
    """Records that were removed before the group read them."""
    records: int
    """Number of unread records."""
    bytes: int
    """Approximate stored size of the unread records."""
    ms: int
    """Age of the first unread record; 0 if there is none."""


class Standing(NamedTuple):
    """A group's position in a partition."""

    tp: TopicPartition
    topic_id: str
    part: Partition
    position: GroupPosition

    @property
    def unread(self) -> OffsetRange:
        """The unread records that still exist."""
        start = min(max(self.position.offset, self.part.start), self.part.readable_end)
        return OffsetRange(self.tp.topic, self.topic_id, self.tp.partition, start, self.part.readable_end)


def standings(state: State, group: str) -> Iterator[Standing]:
    """Positions of a group, by topic and partition.  Raises GroupIdNotFound, with the nearest name."""
    known = state.groups.get(group)
    if known is None:
        near = get_close_matches(group, list(state.groups), n=1)
        hint = f"did you mean {near[0]}?" if near else "`pylog group list` shows those that have"
        raise GroupIdNotFound(f"group {group!r} has committed nothing; {hint}")
    for topic, topic_id in sorted(state.names.items()):
        for number, part in state.topic_partitions(topic_id):
            position = known.offsets.get((topic_id, number))
            if position is not None:
                yield Standing(TopicPartition(topic, number), topic_id, part, position)


def lags_of(journal: Journal, groups: Iterable[str], *, ages: bool = True) -> dict[str, list[PartitionLag]]:
    """By group, the lag in each partition in which the group has a position, as of the journal's state.

    Raises GroupIdNotFound.

    ages:  if False, nothing is read from the storage, and the age of the oldest unread record, `ms`, is 0 in every lag.
    """
    state, now_ms = journal.state, journal.context.clock.now_ms()
    found = {group: list(standings(state, group)) for group in groups}
    behind = {at.unread for standing in found.values() for at in standing if at.unread.start < at.unread.end}
    times = _times_ms(journal, sorted(behind)) if ages else {}
    return {group: [_lag(at, times, now_ms) for at in standing] for group, standing in found.items()}


def _lag(at: Standing, times: dict[OffsetRange, int], now_ms: int) -> PartitionLag:
    unread, part = at.unread, at.part
    return PartitionLag(
        tp=at.tp,
        position=at.position,
        start=part.start,
        end=part.readable_end,
        trimmed=max(0, part.start - at.position.offset),
        records=unread.end - unread.start,
        bytes=sum(chunk.bytes for chunk in chunks(part, unread.start, unread.end)),
        ms=max(0, now_ms - times[unread]) if unread in times else 0,
    )


def _times_ms(journal: Journal, ranges: Sequence[OffsetRange]) -> dict[OffsetRange, int]:
    """Timestamp of the first record of each range."""
    reads = plan_reads(journal, [rng._replace(end=rng.start + 1) for rng in ranges])
    if not reads:
        return {}
    with ThreadPoolExecutor(min(LOOKUPS_AT_ONCE, len(reads)), thread_name_prefix="pylog-lag") as pool:
        times = pool.map(lambda rng, read: _time_us(journal, rng, read), ranges, reads)
        return {rng: time // 1000 for rng, time in zip(ranges, times, strict=True) if time is not None}


def _time_us(journal: Journal, rng: OffsetRange, read: SliceRead) -> int | None:
    """Timestamp of the first record of a range, of which `read` reads the first offset; None if it has only holes."""
    piece = read.slice
    if piece.batches and (read.start == piece.start or piece.max_us - piece.min_us <= CLOSE_US):
        return piece.min_us
    reads = _ahead(journal, rng, read)
    for part in chain.from_iterable(fetch_ranges(journal, [one], ["timestamp"]) for one in reads):
        if part.records.num_rows:
            return int(part.records.column("timestamp").view(pa.int64())[0].as_py())
    return None


def _ahead(journal: Journal, rng: OffsetRange, read: SliceRead) -> Iterator[SliceRead]:
    """Reads of a range: its first offset, the rest of that slice, and the following slices, planned when needed."""
    yield read
    while read.end < rng.end:
        start = read.end
        (read,) = plan_reads(journal, [rng._replace(start=start, end=start + 1)])
        read = replace(read, end=min(read.slice.end, rng.end))
        yield read
