"""Batch reads.

The driver plans once: `partitions()` runs when the frame of a `load()` is first used, while queries run later and
repeatedly.  Tasks carry their part of that plan.  Each query pins a version of the log (`query_pins.py`): planned
records that are trimmed in it are not read, and records added to open ends are read too (`growth.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_pylog.driver_log import tell
from pyspark_pylog.log.open_log import journal_to_read, patiently, planned_log
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.plain_errors import plain_errors
from pyspark_pylog.source.data_columns import DataColumns, planned_data, value_of, where_of
from pyspark_pylog.source.growth import basis_of, ends_with_groups
from pyspark_pylog.source.native_task import ErasureLook, PinnedTask, read_rest
from pyspark_pylog.source.query_pins import query_of_task
from pyspark_pylog.source.ranges import batch_ranges, is_fixed, is_open, replanned
from pyspark_pylog.source.read_task import PinnedQuery, ReadTask, read_pinned
from pyspark_pylog.source.splits import (
    cores,
    growth_tasks,
    min_tasks,
    split_by_bytes,
    split_ranges,
    task_bytes,
)
from pyspark_pylog.worker_process import prepare_process
from spark_log.client.reader.plan import OffsetRange, SliceRead
from spark_log.client.reader.prune import cut, plan_matching, spans
from spark_log.client.reader.typed import check_typed
from spark_log.journal.journal import Journal
from spark_log.model import TopicPartition
from spark_log.runtime.clock import SystemClock


def deal_out(reads: Sequence[SliceRead], options: ReadOptions) -> list[list[SliceRead]]:
    """The reads of each task: split as by Kafka's connector if its options are set, by bytes otherwise.

    The driver's Python cannot see how many tasks run in parallel: its cores are the best estimate.
    """
    if options.min_partitions is not None or options.max_records is not None:
        return cut(reads, split_ranges(spans(reads), options.min_partitions, options.max_records))
    total, tasks = sum(read.bytes for read in reads), options.parallelism or cores()
    return split_by_bytes(reads, task_bytes(total, tasks, options.bytes_per_partition))


class PlannedReader(DataSourceReader):
    """A batch read with the plan of `_planned`."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self.scan = uuid.uuid4().hex
        """Names this load's plans."""

    def partitions(self) -> Sequence[InputPartition]:
        with plain_errors():
            tell(self.options.notes)
            return patiently(self._planned, self.options, SystemClock())

    def _planned(self) -> Sequence[InputPartition]:
        """The tasks.  Called again if the log cannot be reached."""
        raise NotImplementedError

    def _ends_early(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether records cannot be added: all ends are offsets or times."""
        if not ranges:
            return not is_open(self.options.end.default)
        return is_fixed(self.options, [TopicPartition(rng.topic, rng.partition) for rng in ranges])


class LogReader(PlannedReader):
    """Reads a range of the log, as of the time of the query."""

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            prepare_process()
            if isinstance(partition, ReadTask):  # otherwise Spark's substitute for an empty list of partitions
                query = PinnedQuery(self.options, self.scan, query_of_task(self.scan, partition.log.token), partition)
                yield from read_pinned(partition, query, self.schema, self.options)
            elif isinstance(partition, PinnedTask | ErasureLook):
                yield from read_rest(partition, self.schema, self.options)

    def _planned(self) -> Sequence[InputPartition]:
        journal = journal_to_read(self.options.location)
        state = journal.state  # the plan is of this one or a later one
        ranges, reads, data = replanned(lambda: self._plan(journal), lambda: journal.state)
        check_typed(journal.state, reads, value_of(data))
        dealt, log = deal_out(reads, self.options), planned_log(self.options.location, journal, state)
        if self._ends_early(ranges):
            return [ReadTask(number, log, reads, data=data) for number, reads in enumerate(dealt) if reads]
        at_once = self.options.parallelism or cores()
        dealt += [[] for _ in range(min_tasks(at_once) - len(dealt))]
        basis, tasks = self._basis(ranges, dealt, at_once)
        return [
            ReadTask(number, log, reads, basis if number < tasks else None, data) for number, reads in enumerate(dealt)
        ]

    def _basis(
        self, ranges: Sequence[OffsetRange], dealt: Sequence[Sequence[SliceRead]], at_once: int
    ) -> tuple[bytes, int]:
        """The plan that tasks need to read added records, and the number of tasks that do."""
        basis = basis_of(ranges, dealt, self.options, len(dealt)).encode()
        tasks = len(dealt) if ends_with_groups(self.options) else growth_tasks(len(dealt), len(basis), at_once)
        return (basis if tasks == len(dealt) else basis_of(ranges, dealt, self.options, tasks).encode()), tasks

    def _plan(self, journal: Journal) -> tuple[list[OffsetRange], list[SliceRead], DataColumns | None]:
        """The range of each partition, and the reads for them."""
        state, ranges = batch_ranges(journal, self.options)
        data = planned_data(state, self.schema, self.options)
        return ranges, plan_matching(journal, ranges, where_of(self.options, data)), data
