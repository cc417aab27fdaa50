"""Reads that `native/PylogReader.java` leaves to Python, in the tasks of a query that it has begun.

Its driver has agreed on a version of the log (`native/plan.py`), so these tasks carry the reads of that version.  Those
of a micro-batch are planned at one.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import InputPartition

from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.source.data_columns import DataColumns
from pyspark_pylog.source.read_task import PlannedTask, read_batches
from pyspark_pylog.source.task_erasures import TaskErasures
from spark_log.client.reader.plan import SliceRead


class PinnedTask(PlannedTask):
    """The reads of a task at the version that its query has pinned."""

    def __init__(
        self,
        log: PlannedLog,
        reads: Sequence[SliceRead],
        data: DataColumns | None,
        erased: Mapping[str, int],
        made_ms: int,
    ) -> None:
        """
        erased:   by topic id, the version of the last erasure, by the pin of the query.
        made_ms:  when the pin was made.
        """
        super().__init__(0)
        self.log = log.of_reads(*reads)
        self.reads = tuple(reads)
        self.data = data
        self.erased = dict(erased)
        self.made_ms = made_ms


class ErasureLook(InputPartition):
    """Looks whether records of a task's topics were erased since they were planned."""

    def __init__(self, task: PinnedTask) -> None:
        super().__init__(0)
        self.task = task


def rest_of(task: bytes, read: int, offset: int) -> InputPartition:
    """The task of a `PinnedTask` from a read on, which starts at an offset; if `read` is negative, an `ErasureLook`.

    Called by the pickle that Java writes.
    """
    pinned: PinnedTask = pickle.loads(task)
    if read < 0:
        return ErasureLook(pinned)
    reads = list(pinned.reads[read:])
    reads[:1] = [replace(one, start=max(one.start, offset)) for one in reads[:1] if offset < one.end]
    pinned.reads = tuple(reads)
    return pinned


def read_rest(task: PinnedTask | ErasureLook, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of a `PinnedTask`; a row of nulls if an `ErasureLook` finds an erasure."""
    pinned = task.task if isinstance(task, ErasureLook) else task
    erased = TaskErasures(pinned.log, pinned.erased, pinned.made_ms)
    if isinstance(task, PinnedTask):
        yield from read_batches(task.log, task.reads, schema, options, data=task.data, erased=erased)
    elif any(erased.has(topic_id) for topic_id in {read.topic_id for read in pinned.reads}):
        yield pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
