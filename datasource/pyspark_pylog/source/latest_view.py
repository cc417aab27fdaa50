"""Batch reads of the latest record of each key (`view=latest`), at one version of the log.

The driver plans the view at `load()`.  Each query pins a version (`query_pins.py`).  If this is another version than
that of the plan, the first task plans the view as of that version, and all tasks divide the same plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_pylog.driver_log import notice
from pyspark_pylog.log.open_log import journal_to_read, planned_log
from pyspark_pylog.log.task_metadata import agreed_value
from pyspark_pylog.plain_errors import plain_errors
from pyspark_pylog.progress.loss import report
from pyspark_pylog.source.batch import PlannedReader
from pyspark_pylog.source.data_columns import check_reads, planned_data, value_of, where_of
from pyspark_pylog.source.growth import ends_with_groups, partitions_there, ranges_at
from pyspark_pylog.source.latest_task import LatestTask, divide, from_first, read_latest
from pyspark_pylog.source.query_pins import Pin, PinNames, check_history, decode, encode, pin_of, query_of_task
from pyspark_pylog.source.ranges import batch_ranges, group_offsets, replanned
from pyspark_pylog.source.read_task import state_at
from pyspark_pylog.source.splits import cores, min_tasks
from pyspark_pylog.worker_process import prepare_process
from spark_log.client.reader.latest import condition_of_view
from spark_log.client.reader.plan import OffsetRange, SliceRead
from spark_log.client.reader.prune import plan_matching
from spark_log.client.reader.typed import check_typed
from spark_log.errors import ObjectNotFound, StorageError, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State


class LatestView(msgspec.Struct, frozen=True, kw_only=True):
    """All reads of a view, at the pinned version."""

    reads: list[SliceRead]


class LatestReader(PlannedReader):
    """Reads the latest record of each key, as of the time of the query."""

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            prepare_process()
            if not isinstance(partition, LatestTask):  # Spark's substitute for an empty list of partitions
                return
            task = self.task_now(partition, query_of_task(self.scan, partition.log.token))
            yield from read_latest(task, self.schema, self.options)

    def task_now(self, task: LatestTask, query: PinNames) -> LatestTask:
        """A task at the version that its query pins.  Raises DataLoss unless failOnDataLoss is false."""
        pin, view = self._view(task, query)
        if pin is None:
            return task
        log = replace(task.log, version=pin.version, time_ms=pin.made_ms, history=pin.history)
        if view is None:
            return LatestTask(task.number, log, task.reads, task.view, data=task.data)
        shares = divide(view, where_of(self.options, task.data), task.count)
        reads = shares[task.number] if task.number < len(shares) else []
        return LatestTask(task.number, log, reads, from_first(view, reads), data=task.data)

    def _planned(self) -> Sequence[InputPartition]:
        journal = journal_to_read(self.options.location)
        state, ranges, view = replanned(lambda: self._plan(journal), lambda: journal.state)
        data = planned_data(state, self.schema, self.options)
        check_typed(state, view, value_of(data))
        at_once = self.options.parallelism or cores()
        shares = divide(view, where_of(self.options, data), at_once)
        if not self._ends_early(ranges):
            shares += [[] for _ in range(min_tasks(at_once) - len(shares))]
        log = planned_log(self.options.location, journal, state)
        return [
            LatestTask(number, log, reads, from_first(view, reads), ranges, len(shares), data)
            for number, reads in enumerate(shares)
        ]

    def _plan(self, journal: Journal) -> tuple[State, list[OffsetRange], list[SliceRead]]:
        """The range of each partition, and the view."""
        state, ranges = batch_ranges(journal, self.options)
        return state, ranges, plan_matching(journal, ranges, condition_of_view(self.options.where), state=state)

    def _view(self, task: LatestTask, query: PinNames) -> tuple[Pin | None, list[SliceRead] | None]:
        """The pin of the query, and the view at its version; None if it is that of the driver's plan.

        A user without write permission has no pin, and reads what the driver planned.
        """
        try:
            pin = decode(agreed_value(task.log, query.pin, lambda journal: encode(pin_of(journal.state))), Pin)
            check_history(task.log, pin, task.ranges if self._ends_early(task.ranges) else None)
            if pin.version == task.log.version:
                return pin, None
            return pin, decode(
                agreed_value(task.log, query.growth, partial(self._plan_at, pin, task)), LatestView
            ).reads
        except (StorageUnavailable, ObjectNotFound):
            raise
        except StorageError as error:
            notice(logging.WARNING, f"read only ({error}): records added since this frame was planned are not read")
            return None, None

    def _plan_at(self, pin: Pin, task: LatestTask, journal: Journal) -> bytes:
        state = state_at(journal, pin)
        ends: dict[str, dict[int, int]] = {}
        if ends_with_groups(self.options):
            ends = group_offsets(state, self.options, partitions_there(pin.topics, self.options))
        ranges, losses = ranges_at(pin.topics, task.ranges, self.options, ends)
        report(losses, self.options.fail_on_data_loss)
        where = condition_of_view(self.options.where)
        view = plan_matching(journal, ranges, where, state=state)
        check_reads(state, view, task.data)
        return encode(LatestView(reads=view))
