"""A task that reads the latest record of each key: a part of a view.

Each task also reads the keys of all records of the view that are newer than its part.  So a partition is divided among
few tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from msgspec import structs

from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.source.data_columns import DataColumns, names_of, value_of, where_of
from pyspark_pylog.source.read_columns import stored_columns, to_batch
from pyspark_pylog.source.read_task import ReadTask, TaskReads
from pyspark_pylog.source.splits import TASK_BYTES_MIN, decode_reads, encode_reads, split_by_bytes
from pyspark_pylog.source.task_erasures import TaskErasures
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.latest import fetch_latest
from spark_log.client.reader.plan import OffsetRange, SliceRead
from spark_log.client.reader.plan_again import read_planned
from spark_log.client.reader.prune import may_match, only_matching
from spark_log.client.reader.request_ahead import asked_ahead
from spark_log.conditions import Condition

TASKS_MAX = 8
"""Tasks of one partition, at most.  Together, eight tasks read its keys 4.5 times, and its values once."""


class LatestTask(ReadTask):
    """Those records of `reads` that are the latest of their key in `view`."""

    def __init__(
        self,
        number: int,
        log: PlannedLog,
        reads: Sequence[SliceRead],
        view: Sequence[SliceRead],
        ranges: Sequence[OffsetRange] = (),
        count: int = 0,
        data: DataColumns | None = None,
    ) -> None:
        super().__init__(number, log, reads, data=data)
        self.log = log.of_reads(*reads, *view)
        self.view = tuple(view)
        """All reads of the partitions of `reads`, from the first of these to the end of the view."""
        self.ranges = tuple(ranges)
        """For a batch: the range of each partition at `load()`."""
        self.count = count
        """For a batch: the number of its tasks."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "view": encode_reads(self.view)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.view = decode_reads(state["view"])


def divide(view: Sequence[SliceRead], where: Condition, count: int) -> list[list[SliceRead]]:
    """The reads of a view that may match, for `count` tasks or fewer, about equal in bytes."""
    reads = may_match(view, where)
    sizes: Counter[tuple[str, int]] = Counter()
    for read in reads:
        sizes[read.topic_id, read.partition] += read.bytes
    if not reads:
        return []
    largest = max(sizes.values()) // TASKS_MAX
    return split_by_bytes(reads, max(TASK_BYTES_MIN, largest, -(-sum(sizes.values()) // count)))


def upto(view: Sequence[SliceRead], ranges: Sequence[OffsetRange]) -> list[SliceRead]:
    """The part of a view before the ends of some ranges, one of each partition."""
    ends = {(rng.topic_id, rng.partition): rng.end for rng in ranges}
    return [
        structs.replace(read, end=min(read.end, end))
        for read in view
        if read.start < (end := ends.get((read.topic_id, read.partition), read.start))
    ]


def from_first(view: Sequence[SliceRead], reads: Sequence[SliceRead]) -> list[SliceRead]:
    """The part of a view that decides which of `reads` are the latest: nothing before them, and their partitions."""
    starts: dict[tuple[str, int], int] = {}
    for read in reads:
        starts.setdefault((read.topic_id, read.partition), read.start)
    return [read for read in view if read.end > starts.get((read.topic_id, read.partition), read.end)]


def read_latest(task: LatestTask, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The matching records of a task, as Spark's batches."""
    options = replace(options, where=where_of(options, task.data))
    store, stored, value = task.log.objects(), names_of(task.data), value_of(task.data)
    erased = TaskErasures(task.log)

    def fetch(reads: Sequence[SliceRead], columns: Sequence[str], where: Condition) -> Iterator[Fetched]:
        source = TaskReads(task.log, store, columns, replace(options, where=where, latest=True), erased, value)
        for read, coming in asked_ahead(store, reads, where.window):
            yield from read_planned(source, read, coming)

    for part in fetch_latest(task.reads, task.view, stored_columns(schema, stored), options.where, fetch):
        yield only_matching(to_batch(part, schema, stored), part, options.where)
