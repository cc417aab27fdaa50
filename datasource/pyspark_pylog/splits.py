"""Which records each task reads.

By default by bytes: small partitions share a task and large ones are split.  With `minPartitions` or
`maxRecordsPerPartition`, as Kafka's connector does it: ranges of single partitions, cut into pieces that differ by at
most one record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from spark_log.client.plan import OffsetRange, SliceRead


def split_by_bytes(reads: Sequence[SliceRead], bytes_each: int, count: int | None = None) -> list[list[SliceRead]]:
    """Reads dealt out to `count` tasks, or as many as `bytes_each` asks for, in order and about equal in bytes.

    Some tasks may have nothing to do when `count` is larger than there is work for.
    """
    total = sum(read.bytes for read in reads)
    count = count or max(1, math.ceil(total / bytes_each))
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
            yield read._replace(start=start, end=at)
            start = at
    yield read._replace(start=start)


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
