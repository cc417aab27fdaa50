"""A task of a batch read: it agrees on a version with the other tasks of its query, and reads its slices."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import InputPartition

from pyspark_pylog.driver_log import notice
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import agreed_value, newest_journal
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.progress.loss import TRIMMED, Loss, report
from pyspark_pylog.source.data_columns import DataColumns, check_reads, names_of, value_of, where_of
from pyspark_pylog.source.growth import (
    NONE,
    Basis,
    Growth,
    additions,
    check_there,
    decode_basis,
    ends_with_groups,
    partitions_there,
    still_there,
)
from pyspark_pylog.source.query_pins import (
    Pin,
    PinNames,
    check_gone,
    check_history,
    check_history_of,
    decode,
    doubtful_reads,
    encode,
    pin_of,
)
from pyspark_pylog.source.ranges import group_offsets
from pyspark_pylog.source.read_columns import stored_columns, to_batch
from pyspark_pylog.source.splits import decode_reads, encode_reads, split_growth
from pyspark_pylog.source.task_erasures import TaskErasures
from spark_log.client.reader.fetch import Fetched, fetch
from spark_log.client.reader.plan import OffsetRange, SliceRead
from spark_log.client.reader.plan_again import NotRead, read_planned
from spark_log.client.reader.prune import columns_to_read, only_matching, plan_matching
from spark_log.client.reader.request_ahead import Begun, Coming, asked_ahead, begin
from spark_log.client.reader.scan_batches import check_not_compacted, check_not_restored
from spark_log.errors import (
    ConcurrentChange,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from spark_log.journal.journal import Journal
from spark_log.metadata.set_backs import Lineage
from spark_log.metadata.state import State
from spark_log.model import TopicPartition
from spark_log.roots.broker_roots import ReplicatedStore
from spark_log.roots.read_failover import CopiesAway
from spark_log.segment.value_read import ValueRead
from spark_log.store.base import ObjectStore


class PlannedTask(InputPartition):
    """A task with planned reads, which it sends in few bytes."""

    reads: tuple[SliceRead, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "reads": encode_reads(self.reads)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.reads = decode_reads(state["reads"])


class ReadTask(PlannedTask):
    """One task, as planned by the driver."""

    def __init__(
        self,
        number: int,
        log: PlannedLog,
        reads: Sequence[SliceRead],
        basis: bytes | None = None,
        data: DataColumns | None = None,
    ) -> None:
        super().__init__(number)
        self.number = number
        self.log = log.of_reads(*reads)
        self.reads = tuple(reads)
        self._basis = basis
        self.data = data
        """The data columns of the frame, if it has any."""

    @property
    def basis(self) -> Basis | None:
        """For a task that also reads records added later."""
        return None if self._basis is None else decode_basis(self._basis)

    def with_reads(self, reads: Sequence[SliceRead]) -> ReadTask:
        """A copy of this task with other reads."""
        return ReadTask(self.number, self.log, reads, self._basis, self.data)


class PinnedQuery:
    """Makes all tasks of a query read one version: the first task claims its name for it, the others read it."""

    def __init__(self, options: ReadOptions, scan: str, query: PinNames, task: ReadTask) -> None:
        self._task = task
        self._log = task.log
        self._options = options
        self._scan = scan
        self._query = query
        self._basis = task.basis

    def reads(self) -> list[SliceRead]:
        """The reads of the task at the pinned version: the planned reads, and its part of the records added since
        `load()`.

        Raises DataLoss if planned records are lost, unless failOnDataLoss is false.
        """
        return self.reads_at(*self.view())

    def reads_at(self, pin: Pin, growth: Growth) -> list[SliceRead]:
        """`reads`, with the result of `view`."""
        check_there(pin.topics, self._options)
        reads, losses = still_there(self._task.reads, pin.topics, self._options, growth.ends)
        report(losses, self._options.fail_on_data_loss)
        return reads + (growth.tasks[self._task.number] if self._task.number < len(growth.tasks) else [])

    def view(self) -> tuple[Pin, Growth]:
        """The pin of the query, and the growth of this scan.

        A user without write permission reads what the driver planned, without trimmed records.
        """
        try:
            pin = decode(agreed_value(self._log, self._query.pin, self._make_pin), Pin)
            self._check(pin)
            return pin, self._growth(pin)
        except (StorageUnavailable, ObjectNotFound):
            raise
        except StorageError as error:
            pin = pin_of(newest_journal(self._log).state)
            check_history(self._log, pin, self._task.reads)
            if self._basis is not None:
                notice(logging.WARNING, f"read only ({error}): records added since this frame was planned are not read")
            return pin, NONE

    def _check(self, pin: Pin) -> None:
        """Raises ConcurrentChange for a pin of a log that was restored since the plan, or by which planned records are
        gone that the log has.
        """
        check_history(self._log, pin, self._task.reads if self._basis is None else None)
        planned = self._log.version
        if doubtful := doubtful_reads(pin, self._task.reads, planned):
            check_gone(pin, doubtful, newest_journal(self._log).state, planned)

    def _make_pin(self, journal: Journal) -> bytes:
        """The pin, with the growth of this scan, so that its other tasks read only one file."""
        pin = pin_of(journal.state)
        return encode(replace(pin, growth={self._scan: self._plan(pin, journal)}) if self._is_needed(pin) else pin)

    def _is_needed(self, pin: Pin) -> bool:
        """Whether a task needs more than the pin contains."""
        if self._basis is None:
            return False
        return ends_with_groups(self._options) or any(additions(pin.topics, self._options, self._basis, {}))

    def _growth(self, pin: Pin) -> Growth:
        if self._scan in pin.growth:
            return pin.growth[self._scan]
        if not self._is_needed(pin):
            return NONE
        planned = agreed_value(self._log, self._query.growth, lambda journal: encode(self._plan(pin, journal)))
        return decode(planned, Growth)

    def _plan(self, pin: Pin, journal: Journal) -> Growth:
        """The records added up to the pinned version, planned by the state of that version."""
        assert self._basis is not None, "only tasks that read the growth plan it"
        state = state_at(journal, pin)
        ends: dict[str, dict[int, int]] = {}
        if ends_with_groups(self._options):
            ends = group_offsets(state, self._options, partitions_there(pin.topics, self._options))
        ranges, losses = additions(pin.topics, self._options, self._basis, ends)
        report(losses, self._options.fail_on_data_loss)
        reads = plan_matching(journal, ranges, where_of(self._options, self._task.data), state=state)
        check_reads(state, reads, self._task.data)
        return Growth(tasks=split_growth(reads, self._basis), ends=ends)


def state_at(journal: Journal, pin: Pin) -> State:
    """The state at the version pinned by another task; the journal may be older or newer."""
    if journal.state.version < pin.version:
        journal.refresh()
    check_history_of(pin, journal)
    state = journal.state_at(pin.version)
    if state is None:
        raise ConcurrentChange(
            f"the other tasks of this query read version {pin.version} of the log, and too much was committed since for this "
            "one to read the same; run the query again"
        )
    return state


def read_pinned(
    task: ReadTask, query: PinnedQuery, schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Run a task of a batch read: ask for its first objects, and agree on a version meanwhile."""
    begun = begin(task.log.objects(), task.reads, options.where.window)
    pin, growth = query.view()
    log = dataclasses.replace(task.log, history=pin.history)
    erased = TaskErasures(log, {topic.topic_id: topic.erased for topic in pin.topics.values()}, pin.made_ms)
    return read_batches(log, query.reads_at(pin, growth), schema, options, begun, task.data, erased)


def read_batches(
    log: PlannedLog,
    reads: Sequence[SliceRead],
    schema: pa.Schema,
    options: ReadOptions,
    begun: Begun | None = None,
    data: DataColumns | None = None,
    erased: TaskErasures | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of planned reads that match the options' condition, as Arrow batches with the columns of `schema`.

    begun:   requests for these reads that were sent earlier.
    data:    the data columns of `schema`; None: it has none.
    erased:  what is known of erasures since the plan; None: nothing.
    """
    options = dataclasses.replace(options, where=where_of(options, data))
    store, stored = log.objects(), names_of(data)
    columns = columns_to_read(stored_columns(schema, stored), options.where)
    source = TaskReads(log, store, columns, options, erased or TaskErasures(log), value_of(data))
    for read, coming in asked_ahead(store, reads, options.where.window, begun):
        for part in read_planned(source, read, coming):
            if part.records.num_rows:
                yield only_matching(to_batch(part, schema, stored), part, options.where)


@dataclasses.dataclass(frozen=True, slots=True)
class TaskReads:
    """The `ReadSource` of a task."""

    log: PlannedLog
    store: ObjectStore
    columns: Sequence[str]
    options: ReadOptions
    erased: TaskErasures
    value: ValueRead | None

    @property
    def latest(self) -> bool:
        return self.options.latest

    def fetch(self, read: SliceRead, coming: Coming | None) -> Iterator[Fetched]:
        return fetch(self.store, read, self.columns, self.options.where.window, coming, self.value)

    def was_erased(self, topic_id: str) -> bool:
        return self.erased.has(topic_id)

    def plan_again(self, rest: SliceRead, error: NotRead | None) -> tuple[TaskReads, Iterable[SliceRead]]:
        """Records that are not in the log any more are reported as lost.

        So are those in a missing object that the newest state still names, but not those in an object whose copies are
        on roots that cannot be reached: they can be read later, so this fails whatever failOnDataLoss is.
        """
        journal, fail = newest_journal(self.log) if error else self.erased.journal(), self.options.fail_on_data_loss
        later = dataclasses.replace(self, store=journal.objects, erased=self.erased.at(journal))
        tp = TopicPartition(rest.topic, rest.partition)
        if journal.state.names.get(rest.topic) != rest.topic_id:
            report([Loss(tp, rest.start, rest.end, f"topic {rest.topic!r} was deleted before they were read")], fail)
            return later, []
        check_not_restored(journal.state, Lineage(self.log.history, None), rest)
        first = journal.state.partitions[rest.topic_id, rest.partition].start
        if first > rest.start:
            report([Loss(tp, rest.start, min(first, rest.end), TRIMMED)], fail)
        there = OffsetRange(rest.topic, rest.topic_id, rest.partition, max(first, rest.start), rest.end)
        reads = plan_matching(journal, [there], self.options.where)
        if self.latest:
            check_not_compacted(journal.state, rest, reads)
        return later, reads if error is None else self._readable(reads, rest, error, later.store)

    def _readable(
        self, reads: Iterable[SliceRead], rest: SliceRead, error: NotRead, newest: ObjectStore
    ) -> Iterator[SliceRead]:
        """The reads of other objects than the one that was not read, and of that one if its copies may be elsewhere."""
        for new in reads:
            if new.slice.object != rest.slice.object or _knows_more(newest, self.store):
                yield new
            elif self.options.fail_on_data_loss or isinstance(error, CopiesAway):
                raise error
            else:
                why = f"{self.store.url}/{new.slice.object} is not there"
                report([Loss(TopicPartition(new.topic, new.partition), new.start, new.end, why)], False)


def _knows_more(newest: ObjectStore, store: ObjectStore) -> bool:
    """Whether the newest state may know copies of an object that the plan does not know."""
    if not isinstance(newest, ReplicatedStore):
        return False
    return not (isinstance(store, ReplicatedStore) and store.roots is newest.roots)
