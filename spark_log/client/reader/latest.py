"""The latest record of each key in a range of a topic, without a compaction (docs/decisions/0061-latest-view.md).

A record is the latest of its key if no record after it in its partition has the same key.  Deletions, which are records
without a value, and records without a key are left out.

Each range of records is read twice: first the keys from its start to the end of the view, which gives the offsets of
the latest records; then only the parts of slices that contain them.  Memory is bounded: the keys of a range are added
to a map of limited size, and where it is full, the range ends and the next one begins.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace as replace_fields
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from spark_log.client.reader.erased_since import ErasedSince
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.prune import Ints, around, columns_to_read, may_match, only_matching
from spark_log.client.reader.scan import plan_scan
from spark_log.client.reader.scan_batches import (
    fetch_ranges,
    is_data_wanted,
    record_columns,
    scan_schema,
    to_batch,
)
from spark_log.client.reader.typed import bound_to_topic, check_typed, fetched_as, value_read
from spark_log.conditions import EVERYTHING, Condition, Values, as_condition
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.model import PROGRESS_TOPIC
from spark_log.segment.keys.key_hashes import KeyHasher
from spark_log.segment.keys.newest_offsets import NewestOffsets
from spark_log.segment.schema import TOMBSTONE

KEYS_MAX = 4_000_000
"""Keys of one partition that a reader holds at a time, in 96 MB.  Sorting takes about twice as much for a moment."""

FetchReads = Callable[[Sequence[SliceRead], Sequence[str], Condition], Iterator[Fetched]]
"""Reads, columns, and a condition whose window may skip batches."""


def scan_latest(
    journal: Journal,
    topic: str,
    partitions: Sequence[int] | None,
    end: object,
    columns: Sequence[str] | None,
    where: str | Condition | None,
    value_format: str | None = None,
    value_parse: str | None = None,
) -> pa.RecordBatchReader:
    """The latest record of each key before `end` as a stream of Arrow batches, partition by partition, in offset order.

    where:                      a condition on the latest records.
    value_format, value_parse:  as for `value_read`.
    """
    if topic == PROGRESS_TOPIC:
        raise InvalidRequest(f"{topic} has no view of the latest records: it is made from the log's state; use read")
    condition = as_condition(where)
    view = plan_scan(journal, topic, partitions, "earliest", end, condition_of_view(condition))
    erased = ErasedSince(journal)
    condition = bound_to_topic(journal.state, topic, condition)
    value = value_read(journal.state, topic, value_format, value_parse)
    schema = scan_schema(columns, value)
    value = fetched_as(journal.state, topic, value, condition, value_parse)
    wanted = record_columns(schema, value)
    if is_data_wanted(schema, value, condition):
        check_typed(journal.state, view, value)

    def fetch(reads: Sequence[SliceRead], columns: Sequence[str], where: Condition) -> Iterator[Fetched]:
        return fetch_ranges(journal, reads, columns, where.window, latest=True, value=value, erased=erased)

    def batches() -> Iterator[pa.RecordBatch]:
        for part in fetch_latest(may_match(view, condition), view, wanted, condition, fetch):
            batch = only_matching(to_batch(part, schema), part, condition)
            if batch.num_rows:
                yield batch

    return pa.RecordBatchReader.from_batches(schema, batches())


def condition_of_view(where: Condition) -> Condition:
    """The part of a condition on the latest records that can be applied before it is known which ones are the latest.

    A newer record of a key is in the same partition, at a higher offset.  So only partitions, and the records before a
    first offset, can be left out.
    """
    if where.empty:
        return replace_fields(where, rest=None, rows=None)
    return Condition(partition=where.partition, offset=Values(first=where.offset.first))


def fetch_latest(
    reads: Sequence[SliceRead],
    view: Sequence[SliceRead],
    columns: Sequence[str],
    where: Condition,
    fetch: FetchReads,
    keys_max: int = KEYS_MAX,
) -> Iterator[Fetched]:
    """The records of `reads` that are the latest of their key in `view`, and that may match `where`, in the order of
    `reads`.

    The caller must still filter them by `only_matching`.

    reads:     a subset of `view`, grouped by partition, in offset order.
    view:      all reads of these partitions from the first of `reads` to the end of the view, at one version.
    columns:   any of key, value, timestamp, headers and the data columns.  Results also have the columns that `where`
               needs, and one that marks tombstones.
    keys_max:  how many keys are held in memory at a time.
    """
    wanted = columns_to_read([*columns, TOMBSTONE.name], where)
    by_partition = {key: list(group) for key, group in groupby(view, _partition)}
    for key, group in groupby(reads, _partition):
        left = list(group)
        while left:
            newer = _from(by_partition[key], left[0].start)
            offsets, upto = _latest_offsets(partial(fetch, newer, ["key"], EVERYTHING), left[-1].end, keys_max)
            for part in fetch(around(left, offsets), wanted, where):
                found = _only(part, offsets)
                if found.records.num_rows:
                    yield found
            left = _from(left, upto)


def _partition(read: SliceRead) -> tuple[str, int]:
    return read.topic_id, read.partition


def _from(reads: Iterable[SliceRead], start: int) -> list[SliceRead]:
    """The reads from an offset on."""
    return [replace(read, start=max(read.start, start)) for read in reads if read.end > start]


def _latest_offsets(keys: Callable[[], Iterator[Fetched]], end: int, keys_max: int) -> tuple[Ints, int]:
    """Offsets of the latest records before `end`, ascending; and the end of the range, if there are too many keys.

    keys:  fetches the keys from the start of the range to the end of the view.
    """
    while True:
        newest, upto = NewestOffsets(KeyHasher(random.SystemRandom()), keys_max), end
        for part in keys():
            if not part.records.num_rows:
                continue
            if part.offsets[0] < upto:
                newest.add(part.records.column("key"), part.offsets)
                upto = min(upto, part.end) if newest.is_full else upto
            else:
                newest.update(part.records.column("key"), part.offsets)
        if not newest.collides:
            offsets = newest.offsets()
            return offsets[: np.searchsorted(offsets, upto)], upto


def _only(part: Fetched, offsets: Ints) -> Fetched:
    """The records at some offsets, if they have a value.  offsets: ascending."""
    low, high = np.searchsorted(offsets, (part.offsets[0], part.end)) if part.records.num_rows else (0, 0)
    at = part.offset_array()
    keep = np.isin(at, offsets[low:high], assume_unique=True)
    if part.records.num_rows:
        keep &= ~part.records.column(TOMBSTONE.name).to_numpy(zero_copy_only=False)
    return part if keep.all() else Fetched(part.read, at[keep], part.records.filter(pa.array(keep)), part.end)
