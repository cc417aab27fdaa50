"""Pruning: reads without the partitions, offsets, slices, batches and rows that cannot match a condition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import Known, OffsetRange, SliceRead, plan_reads, within
from spark_log.conditions import ALL, Condition
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State
from spark_log.segment.arrays.numpy_arrays import micros_of

Ints = npt.NDArray[np.int64]


def plan_matching(
    journal: Journal,
    ranges: Sequence[OffsetRange],
    where: Condition,
    known: Known | None = None,
    state: State | None = None,
) -> list[SliceRead]:
    """The reads for the records of `ranges` that may match `where`, in order.

    They include no other partitions, and no offsets outside the condition's first and last offset.  They may include
    other records that do not match: other timestamps and values, and offsets between listed ones. `only_matching`
    removes these.  For `known`, `state` and the errors see `plan_reads`.
    """
    assert where.rest is None, "the columns of a condition are looked up before it is used"
    clipped = [
        rng._replace(start=max(rng.start, where.offset.first), end=min(rng.end, where.offset.last + 1))
        for rng in ranges
        if rng.partition in where.partition and not where.empty
    ]
    reads = plan_reads(journal, clipped, where.window, known, state)
    return reads if where.offset.among is None else around(reads, _listed(where.offset.among))


def may_match(reads: Sequence[SliceRead], where: Condition) -> list[SliceRead]:
    """Those parts of planned reads that may match, as `plan_matching` would have planned them."""
    if where.empty:
        return []
    kept = [
        replace(read, start=max(read.start, where.offset.first), end=min(read.end, where.offset.last + 1))
        for read in reads
        if read.partition in where.partition
        and read.start <= where.offset.last
        and read.end > where.offset.first
        and within(read.slice, where.window)
    ]
    return kept if where.offset.among is None else around(kept, _listed(where.offset.among))


def around(reads: Sequence[SliceRead], offsets: Ints) -> list[SliceRead]:
    """Each read from the first to the last of some offsets in it, without reads that have none.  offsets: ascending."""
    lows, highs = (
        np.searchsorted(offsets, [getattr(read, end) for read in reads]).tolist() for end in ("start", "end")
    )
    return [
        replace(read, start=int(offsets[low]), end=int(offsets[high - 1]) + 1)
        for read, low, high in zip(reads, lows, highs, strict=True)
        if low < high
    ]


def _listed(among: frozenset[int]) -> Ints:
    return np.sort(np.fromiter(among, np.int64, len(among)))


def spans(reads: Sequence[SliceRead]) -> list[OffsetRange]:
    """The reads as ranges; adjacent reads are merged."""
    ranges: list[OffsetRange] = []
    for read in reads:
        last = ranges[-1] if ranges else None
        if last and (last.topic_id, last.partition, last.end) == (read.topic_id, read.partition, read.start):
            ranges[-1] = last._replace(end=read.end)
        else:
            ranges.append(OffsetRange(read.topic, read.topic_id, read.partition, read.start, read.end))
    return ranges


def cut(reads: Sequence[SliceRead], pieces: Sequence[OffsetRange]) -> list[list[SliceRead]]:
    """The reads of each piece.  The pieces are `spans(reads)`, split, in the same order."""
    dealt: list[list[SliceRead]] = []
    at = 0
    for piece in pieces:
        dealt.append([])
        while at < len(reads) and _overlap(reads[at], piece):
            read = reads[at]
            dealt[-1].append(replace(read, start=max(read.start, piece.start), end=min(read.end, piece.end)))
            if read.end > piece.end:  # the rest belongs to the next piece
                break
            at += 1
    return dealt


def _overlap(read: SliceRead, piece: OffsetRange) -> bool:
    same = (read.topic_id, read.partition) == (piece.topic_id, piece.partition)
    return same and read.start < piece.end and piece.start < read.end


def columns_to_read(columns: Sequence[str], where: Condition) -> list[str]:
    """The stored columns that a projection and the condition need."""
    needed = (["timestamp"] if where.time_us != ALL else []) + list(where.rows.columns if where.rows else ())
    return list(dict.fromkeys([*columns, *needed]))


def only_matching(batch: pa.RecordBatch, part: Fetched, where: Condition) -> pa.RecordBatch:
    """The rows of `batch`, made from `part`, that match.  Conditions that the plan guarantees are not checked again."""
    times, among = where.time_us, where.offset.among
    if (times == ALL and among is None and where.rows is None) or not batch.num_rows:
        return batch
    keep = np.ones(batch.num_rows, dtype=bool)
    if times != ALL:
        found = micros_of(part.records.column("timestamp"))
        keep &= (found >= times.first) & (found <= times.last)
    if among is not None:
        keep &= np.isin(part.offset_array(), _listed(among))
    if where.rows is not None:
        keep &= where.rows.mask(part.records, part.offset_array(), part.read.partition)
    rows = np.flatnonzero(keep)
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):  # without a copy
        return batch.slice(int(rows[0]), len(rows))
    return batch.filter(pa.array(keep)) if len(rows) else batch.slice(0, 0)
