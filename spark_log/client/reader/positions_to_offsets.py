"""Resolving positions to offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import pyarrow as pa
from typing_extensions import assert_never

from spark_log.client.reader.fetch import first_offset_at
from spark_log.client.reader.plan import OffsetRange, SliceRead, plan_reads
from spark_log.client.reader.scan_batches import fetch_ranges
from spark_log.conditions import HIGHEST, Window
from spark_log.errors import GroupIdNotFound, InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import PARALLEL
from spark_log.metadata.records import OffsetEntry
from spark_log.metadata.state import GroupState, Partition, State, TopicKey
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.model import EARLIEST, OffsetAndMetadata, TopicPartition
from spark_log.positions import OFFSET_MAX, At, AtTime, Earliest, Latest, LatestMinus, OfGroup, Position, SinceNow
from spark_log.roots.read_failover import NOT_READ
from spark_log.text import is_unicode

SEARCH_TRIES = 3
"""An object may be missing because merging has replaced it: then the search runs again, in the newest state."""


def partition_of(state: State, tp: TopicPartition) -> tuple[TopicKey, Partition]:
    """Key and state of a partition.  Raises UnknownTopicOrPartition."""
    topic_id, topic = topic_named(state, tp.topic)
    if isinstance(tp.partition, bool) or not isinstance(tp.partition, int):
        raise InvalidRequest(f"partition {tp.partition!r} of topic {tp.topic!r} is not a number")
    if not 0 <= tp.partition < topic.partitions:
        raise UnknownTopicOrPartition(
            f"topic {tp.topic!r} has no partition {tp.partition}, it has {topic.partitions} (0 to "
            f"{topic.partitions - 1})"
        )
    return (topic_id, tp.partition), state.partitions[topic_id, tp.partition]


def group_entries(
    state: State,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    read: Mapping[TopicPartition, TopicKey] = MappingProxyType({}),
) -> tuple[OffsetEntry, ...]:
    """Positions by topic name, in the form of a record.

    read:  the partitions that were read.  Another topic may have the name by now, where the positions do not count.
    Raises UnknownTopicOrPartition; InvalidRequest for a value that is not an offset.
    """
    entries = []
    for tp, at in sorted(offsets.items()):
        if isinstance(at.offset, bool) or not isinstance(at.offset, int) or at.offset > OFFSET_MAX:
            raise InvalidRequest(
                f"offset {at.offset!r} of {tp.topic}-{tp.partition} is not a number up to {OFFSET_MAX}"
            )
        if at.offset < 0:
            raise InvalidRequest(f"offset {at.offset} of {tp.topic}-{tp.partition} is negative")
        if not is_unicode(at.metadata):
            raise InvalidRequest(f"the metadata of {tp.topic}-{tp.partition}, {at.metadata!r}, is not text")
        key = read[tp] if tp in read else partition_of(state, tp)[0]
        entries.append(OffsetEntry(*key, at.offset, at.metadata))
    return tuple(entries)


def partitions_of(state: State, topic: str) -> list[TopicPartition]:
    """All partitions of a topic.  Raises UnknownTopicOrPartition."""
    _, found = topic_named(state, topic)
    return [TopicPartition(topic, number) for number in range(found.partitions)]


def bounds(state: State, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
    """The start (EARLIEST) or the end (LATEST) of each partition.  Raises UnknownTopicOrPartition."""
    found = {tp: partition_of(state, tp)[1] for tp in partitions}
    return {tp: part.start if which == EARLIEST else part.readable_end for tp, part in found.items()}


def timestamps_ms(journal: Journal, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The timestamp in milliseconds of one record of each partition, if it still exists."""
    ranges = ranges_between(journal.state, offsets, {tp: offset + 1 for tp, offset in offsets.items()})
    return {
        TopicPartition(part.read.topic, part.read.partition): int(
            part.records.column("timestamp").view(pa.int64())[0].as_py()
        )
        // 1000
        for part in fetch_ranges(journal, plan_reads(journal, ranges), ["timestamp"])
        if part.records.num_rows
    }


def resolve(journal: Journal, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    """The offset of each position in the journal's current state.

    A time after the last record gives the end of the partition.  A group without a committed position gives its start.
    A position outside of the partition gives the nearest offset.
    Raises OffsetOutOfRange for an explicit offset outside of the partition.  Offsets of a pending commit are inside.
    """
    state, now_ms = journal.state, journal.context.clock.now_ms()
    offsets: dict[TopicPartition, int] = {}
    times: dict[TopicPartition, int] = {}
    for tp, position in positions.items():
        key, part = partition_of(state, tp)
        match position:
            case Earliest():
                offsets[tp] = part.start
            case Latest():
                offsets[tp] = part.readable_end
            case LatestMinus(records):
                offsets[tp] = max(part.start, part.readable_end - records)
            case At(offset):
                if not part.start <= offset <= part.end:
                    raise OffsetOutOfRange(
                        f"offset {offset} of {tp.topic}-{tp.partition} is out of range, "
                        f"it has {part.start} to {part.end}",
                        start=part.start,
                        end=part.end,
                    )
                offsets[tp] = offset
            case SinceNow(ms):
                times[tp] = now_ms - ms
            case AtTime(ms):
                times[tp] = ms
            case OfGroup(name):
                offsets[tp] = committed_offset(state, name, key, part)
            case _:
                assert_never(position)
    for tp, found in offsets_for_times(journal, times).items():
        offsets[tp] = partition_of(state, tp)[1].readable_end if found is None else found
    return {tp: offsets[tp] for tp in positions}


def resolve_starts(journal: Journal, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    """Start offsets for a read.  Like `resolve`, but fails if records were removed before a group read them.

    Raises OffsetOutOfRange for a group's position before the first record.
    """
    state = journal.state
    for tp, position in positions.items():
        if isinstance(position, OfGroup):
            key, part = partition_of(state, tp)
            known = state.groups.get(position.name, GroupState()).offsets.get(key)
            if known is not None and known.offset < part.start:
                raise OffsetOutOfRange(
                    f"group {position.name!r} is at offset {known.offset} of {tp.topic}-{tp.partition}, which was "
                    "removed; "
                    f"it has {part.start} to {part.readable_end}: start at one of them, or move the group",
                    start=part.start,
                    end=part.readable_end,
                )
    return resolve(journal, positions)


def committed_offset(state: State, name: str, key: TopicKey, part: Partition) -> int:
    """A group's position in a partition; the partition's start if the group has none.  Raises GroupIdNotFound."""
    group = state.groups.get(name)
    if group is None:
        raise GroupIdNotFound(f"group {name!r} has committed nothing; `pylog group list` shows those that have")
    position = group.offsets.get(key)
    return part.start if position is None else min(max(position.offset, part.start), part.readable_end)


def offsets_for_times(journal: Journal, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """By partition, the first offset whose record has a timestamp at or after a time in milliseconds; None if none has.

    Timestamps need not be in order: it is the lowest such offset.
    """
    for _ in range(SEARCH_TRIES - 1):
        try:
            return _search(journal, times)
        except NOT_READ:
            journal.refresh()
    return _search(journal, times)


def _search(journal: Journal, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """Searches the entries of all partitions in offset order, one of each at a time.

    The first entry that reaches the time almost always has the record, so of each partition one slice index is read.
    """
    state = journal.state
    found: dict[TopicPartition, int | None] = dict.fromkeys(times)
    starts = {tp: partition_of(state, tp)[1].start for tp in times}
    while starts:
        spans = {tp: span for tp, start in starts.items() if (span := _next_span(state, tp, start, 1000 * times[tp]))}
        hits = _first_in(journal, state, spans, times)
        found |= hits
        starts = {tp: span.end for tp, span in spans.items() if tp not in hits}
    return found


def _next_span(state: State, tp: TopicPartition, start: int, time_us: int) -> OffsetRange | None:
    """The offsets from `start` on in the first entry that reaches the time."""
    (topic_id, number), part = partition_of(state, tp)
    for entry in part.entries:
        if entry.end > start and entry.max_us >= time_us:
            return OffsetRange(tp.topic, topic_id, number, max(start, entry.start), min(entry.end, part.readable_end))
    return None


def _first_in(
    journal: Journal, state: State, spans: Mapping[TopicPartition, OffsetRange], times: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The first record in each span that reaches the time of its partition, without spans that have none."""
    if not spans:
        return {}
    earliest_us = 1000 * min(times[tp] for tp in spans)
    by_partition: dict[TopicPartition, list[SliceRead]] = {tp: [] for tp in spans}
    for read in plan_reads(journal, list(spans.values()), window=Window(earliest_us, HIGHEST), state=state):
        by_partition[TopicPartition(read.topic, read.partition)].append(read)

    def first(tp: TopicPartition) -> int | None:
        reads = (read for read in by_partition[tp] if read.slice.max_us >= 1000 * times[tp])
        offsets = (first_offset_at(journal.objects, read, 1000 * times[tp]) for read in reads)
        return next((offset for offset in offsets if offset is not None), None)

    if journal.objects.local or len(spans) == 1:
        firsts = list(map(first, spans))
    else:
        with ThreadPoolExecutor(min(PARALLEL, len(spans)), thread_name_prefix="pylog-times") as pool:
            firsts = list(pool.map(first, spans))
    return {tp: offset for tp, offset in zip(spans, firsts, strict=True) if offset is not None}


def ranges_between(
    state: State, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Ranges of the partitions in `starts`, in order; empty ones are left out."""
    keys: Iterable[TopicPartition] = sorted(starts)
    return [
        OffsetRange(tp.topic, partition_of(state, tp)[0][0], tp.partition, starts[tp], ends[tp])
        for tp in keys
        if starts[tp] < ends[tp]
    ]
