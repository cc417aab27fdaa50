"""Divides reads among tasks.

By default by bytes: small partitions share a task and large ones are split.  With `minPartitions` or
`maxRecordsPerPartition`, as Kafka's connector does: ranges of single partitions, split into pieces that differ by at
most one record.

A frame that is used again reads more.  Each task must then read the same records as before, or parts that Spark keeps
(a cached frame, a recomputed partition) would not match.  So the driver divides the planned reads once, and records
added later are divided by offset only.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count as count_up
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from pyspark_pylog.source.growth import Basis
from spark_log.client.reader.plan import OffsetRange, SliceRead

TASK_BYTES_MIN = 2 << 20
"""A task costs some 20 ms.  Reading this much, 60,000 small records, takes as long; parsing takes five times that."""
GROWTH_ROWS_MIN, GROWTH_ROWS_MAX = 10_000, 1_280_000
"""Added records go to tasks in turn, in chunks of this size: few records to many tasks, many in few chunks."""
OPEN_TASKS_MIN = 16
"""Used if as many run in parallel.  An empty task takes 20 to 40 ms, so an empty read takes no longer on idle cores."""
BASES_BYTES = 16 << 20
"""Maximum total size of the data that the tasks of a read need to share added records."""


def split_growth(reads: Iterable[SliceRead], basis: Basis) -> list[list[SliceRead]]:
    """Reads of records added since `load()`, by task.  The task of a record depends only on its offset.

    The added records go to the tasks in turn, in chunks that double with each round.
    """
    tasks: list[list[SliceRead]] = [[] for _ in range(basis.tasks)]
    for (topic, topic_id, partition), group in groupby(reads, lambda read: (read.topic, read.topic_id, read.partition)):
        upto, turn = basis.place(topic, topic_id, partition)
        chunks = _chunks(upto, turn, basis.tasks)
        chunk = next(chunks)
        for read in group:
            at = read.start
            while at < read.end:
                while chunk.end <= at:
                    chunk = next(chunks)
                end = min(chunk.end, read.end)
                tasks[chunk.task].append(replace(read, start=at, end=end))
                at = end
    return tasks


def min_tasks(at_once: int) -> int:
    """Minimum number of tasks of a read with an open end: it may be used again after the log has grown."""
    return min(at_once, OPEN_TASKS_MIN)


def growth_tasks(count: int, basis_bytes: int, at_once: int) -> int:
    """How many of `count` tasks read added records: all, unless the data that they need for it is too large."""
    return min(count, max(at_once, BASES_BYTES // basis_bytes))


class _Chunk(NamedTuple):
    """Records [start, end) of a partition, and their task."""

    start: int
    end: int
    task: int


def _chunks(start: int, turn: int, count: int) -> Iterator[_Chunk]:
    """Chunks of a partition from an offset on; infinite."""
    for number in count_up():
        end = start + min(GROWTH_ROWS_MIN << (number // count), GROWTH_ROWS_MAX)
        yield _Chunk(start, end, (turn + number) % count)
        start = end


def task_bytes(total: int, tasks: int, most: int) -> int:
    """Bytes per task of `total`: its share if `tasks` run in parallel, in as few rounds as possible with at most `most`
    per task, but not so few that starting a task dominates."""
    rounds = max(1, math.ceil(total / (tasks * most)))
    return min(most, max(TASK_BYTES_MIN, math.ceil(total / (tasks * rounds))))


def split_by_bytes(reads: Sequence[SliceRead], bytes_each: int) -> list[list[SliceRead]]:
    """Reads divided among as many tasks as `bytes_each` requires, in order and about equal in bytes."""
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
    """The read in pieces that end at the byte limits of the tasks."""
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
    """Kafka's connector's algorithm: nothing is merged, and the result may be above or below `min_partitions`."""
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


QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""CPU quota of a container in Linux's cgroups version 2: `<microseconds or max> <period>`."""


def cores(quota: Path = QUOTA) -> int:
    """Available cores, limited by a container's quota, as the JVM counts them."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        share, period = quota.read_text().split()
        return min(count, math.ceil(int(share) / int(period)))
    return count


_reads_decoder = msgspec.msgpack.Decoder(tuple[SliceRead, ...])


def encode_reads(reads: Iterable[SliceRead]) -> bytes:
    """The planned reads of a task: a tenth of a million in 7 MB (13 MB as a pickle)."""
    return zlib.compress(msgspec.msgpack.encode(tuple(reads)), 1)


def decode_reads(data: bytes) -> tuple[SliceRead, ...]:
    return _reads_decoder.decode(zlib.decompress(data))
