"""Which records each task reads.

By default by bytes: small partitions share a task and large ones are split.  With `minPartitions` or
`maxRecordsPerPartition`, as Kafka's connector does it: ranges of single partitions, cut into pieces that differ by at
most one record.

A frame that is used again reads more, and then the same task must read what it read before, or what Spark keeps of it
(a cached frame, a lost partition made again) would not fit together.  So where one task ends and the next begins is
settled once, as a `Deal`, and what is appended later is dealt out by offset alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from spark_log.client.plan import OffsetRange, SliceRead

TASK_BYTES_MIN = 2 << 20
"""A task costs some 20 ms; it reads so much, 60,000 small records, in as long, and whoever parses them takes five times that."""
GROWTH_ROWS_MIN = 10_000
"""Records appended after the deal go to tasks in turn, at least so many at a time."""


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """Records [start, end) of a partition belong to a task."""

    start: int
    end: int
    task: int


class Deal(msgspec.Struct, frozen=True, kw_only=True):
    """Which task reads which offsets."""

    version: int
    count: int
    """Tasks."""
    cuts: dict[str, dict[int, list[Cut]]]
    """By topic id and partition, in order."""


def deal_of(version: int, tasks: Sequence[Sequence[SliceRead]]) -> Deal:
    """The deal that gives these tasks what they read."""
    cuts: dict[str, dict[int, list[Cut]]] = {}
    for task, reads in enumerate(tasks):
        for read in reads:
            known = cuts.setdefault(read.topic_id, {}).setdefault(read.partition, [])
            if known and known[-1].task == task and known[-1].end == read.start:
                known[-1] = Cut(known[-1].start, read.end, task)
            else:
                known.append(Cut(read.start, read.end, task))
    return Deal(version=version, count=len(tasks), cuts=cuts)


def split_by_deal(reads: Sequence[SliceRead], deal: Deal) -> list[list[SliceRead]]:
    """Reads by task.  Which task a record goes to depends on its offset alone, not on what else is read."""
    tasks: list[list[SliceRead]] = [[] for _ in range(deal.count)]
    for read in reads:
        known = deal.cuts.get(read.topic_id, {}).get(read.partition, [])
        for cut in _owners(read, known, deal.count):
            tasks[cut.task].append(replace(read, start=cut.start, end=cut.end))
    return tasks


def _owners(read: SliceRead, known: Sequence[Cut], count: int) -> Iterator[Cut]:
    at = read.start
    for cut in known:
        end = min(cut.end, read.end)
        if at < end:
            yield Cut(at, end, cut.task)
            at = end
    if known:
        dealt, task = known[-1].end, known[-1].task + 1
        stride = max(GROWTH_ROWS_MIN, sum(cut.end - cut.start for cut in known) // len(known))
    else:
        dealt, task, stride = 0, zlib.crc32(f"{read.topic_id}-{read.partition}".encode()), GROWTH_ROWS_MIN
    while at < read.end:
        turn = (at - dealt) // stride
        end = min(dealt + (turn + 1) * stride, read.end)
        yield Cut(at, end, (task + turn) % count)
        at = end


def task_bytes(total: int, tasks: int, most: int) -> int:
    """How much one task reads of `total` bytes: its share if `tasks` run at once, in as many rounds as it takes for none to read
    more than `most`, but not so little that starting it is what takes the time."""
    rounds = max(1, math.ceil(total / (tasks * most)))
    return min(most, max(TASK_BYTES_MIN, math.ceil(total / (tasks * rounds))))


def split_by_bytes(reads: Sequence[SliceRead], bytes_each: int) -> list[list[SliceRead]]:
    """Reads dealt out to as many tasks as `bytes_each` asks for, in order and about equal in bytes."""
    total = sum(read.bytes for read in reads)
    count = max(1, math.ceil(total / bytes_each))
    tasks: list[list[SliceRead]] = [[] for _ in range(count)]
    done = 0
    for read in reads:
        for part in _cut_at(read, done, total, count):
            middle = done + part.bytes // 2
            tasks[min(count - 1, middle * count // max(total, 1))].append(part)
            done += part.bytes
    return tasks


def _cut_at(read: SliceRead, before: int, total: int, count: int) -> Iterator[SliceRead]:
    """The read in pieces that end where one task's share of the bytes does."""
    size, rows, start = read.bytes, read.end - read.start, read.start
    first = before * count // total + 1
    last = (before + size - 1) * count // total
    for share in range(first, last + 1):
        at = read.start + rows * (share * total // count - before) // size
        if start < at < read.end:
            yield replace(read, start=start, end=at)
            start = at
    yield replace(read, start=start)


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Kafka's connector's algorithm: nothing is merged, the result may be above or below `min_partitions`."""
    pieces = [rng for rng in ranges if rng.start < rng.end]
    if max_records is not None:
        pieces = [part for rng in pieces for part in _pieces(rng, math.ceil(_size(rng) / max_records))]
    if min_partitions is None or min_partitions <= len(pieces):
        return pieces
    total = sum(map(_size, pieces))
    small = [rng for rng in pieces if _parts(_size(rng), total, min_partitions) == 1]
    whole = {(rng.topic_id, rng.partition) for rng in small}
    rest = total - sum(map(_size, small))
    wanted = max(min_partitions - len(small), 1)
    return [
        part
        for rng in pieces
        for part in (
            (rng,) if (rng.topic_id, rng.partition) in whole else _pieces(rng, _parts(_size(rng), rest, wanted))
        )
    ]


def _size(rng: OffsetRange) -> int:
    return rng.end - rng.start


def _parts(size: int, total: int, wanted: int) -> int:
    return max(1, math.floor(size / total * wanted + 0.5))


def _pieces(rng: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """`count` pieces that differ by at most one record, the larger ones last."""
    start = rng.start
    for left in range(count, 0, -1):
        end = start + (rng.end - start) // left
        yield rng._replace(start=start, end=end)
        start = end
