"""Batch reads.

The driver plans once: `partitions()` runs when the frame of a `load()` is first used, while queries run later and
                       repeatedly.
Tasks carry their part of that plan.  Each query pins a version of the log (`query_pins.py`): planned records that are
trimmed in it are not read, and records added to open ends are read too (`growth.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_pylog.driver_log import tell
from pyspark_pylog.open_log import journal_of, patiently, store_of
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.plain_errors import plain_errors
from pyspark_pylog.source.growth import (
    basis_of,
    check_there,
    ends_with_groups,
    still_there,
)
from pyspark_pylog.source.loss import report
from pyspark_pylog.source.query_pins import PinNames, query_of_task
from pyspark_pylog.source.ranges import batch_ranges, is_fixed, is_open
from pyspark_pylog.source.read_task import PinnedQuery, ReadTask, read_batches
from pyspark_pylog.source.splits import (
    cores,
    growth_tasks,
    min_tasks,
    split_by_bytes,
    split_ranges,
    task_bytes,
)
from pyspark_pylog.worker_process import prepare_process
from spark_log.client.reading.plan import OffsetRange, SliceRead
from spark_log.client.reading.prune import cut, plan_matching, spans
from spark_log.clock import SystemClock
from spark_log.errors import (
    DataLoss,
    UnknownTopicOrPartition,
)
from spark_log.journal.journal import Journal
from spark_log.model import TopicPartition
from spark_log.store.base import ObjectStore


class ReadTask(InputPartition):
    """One task, as planned by the driver."""

    def __init__(self, number: int, reads: Sequence[SliceRead], basis: bytes | None = None) -> None:
        super().__init__(number)
        self.number = number
        self.reads = tuple(reads)
        self._basis = basis

    @cached_property
    def basis(self) -> Basis | None:
        """For a task that also reads records added later."""
        return None if self._basis is None else decode_basis(self._basis)

    def __getstate__(self) -> dict[str, Any]:
        return {"number": self.number, "reads": encode_reads(self.reads), "basis": self._basis}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["number"], decode_reads(state["reads"]), state["basis"])  # type: ignore[misc]


def deal_out(reads: Sequence[SliceRead], options: ReadOptions) -> list[list[SliceRead]]:
    """The reads of each task: split as by Kafka's connector if its options are set, by bytes otherwise.

    The driver's Python cannot see how many tasks run in parallel: its cores are the best estimate.
    """
    if options.min_partitions is not None or options.max_records is not None:
        return cut(reads, split_ranges(spans(reads), options.min_partitions, options.max_records))
    total, tasks = sum(read.bytes for read in reads), options.parallelism or cores()
    return split_by_bytes(reads, task_bytes(total, tasks, options.bytes_per_partition))


class LogReader(DataSourceReader):
    """Reads a range of the log, as of the time of the query."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self.scan = uuid.uuid4().hex
        """Names this load's plans."""

    def partitions(self) -> Sequence[InputPartition]:
        with plain_errors():
            tell(self.options.notes)
            return patiently(self._planned, self.options, SystemClock())

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            prepare_process()
            if not isinstance(partition, ReadTask):  # Spark's substitute for an empty list of partitions
                return
            store = store_of(self.options.location)
            reads = self.reads_now(store, partition, query_of_task(self.scan))
            yield from read_batches(store, reads, self.schema, self.options)

    def reads_now(self, store: ObjectStore, task: ReadTask, query: PinNames) -> list[SliceRead]:
        """A task's reads at the version that its query pins.  Raises DataLoss unless failOnDataLoss is false."""
        pin, growth = PinnedQuery(store, self.options, self.scan, query, task).view()
        check_there(pin.topics, self.options)
        reads, losses = still_there(task.reads, pin.topics, self.options, growth.ends)
        report(losses, self.options.fail_on_data_loss)
        return reads + (growth.tasks[task.number] if task.number < len(growth.tasks) else [])

    def _planned(self) -> Sequence[InputPartition]:
        journal = journal_of(self.options.location)
        ranges, reads = self._plan(journal)
        dealt = deal_out(reads, self.options)
        if self._ends_early(ranges):
            return [ReadTask(number, reads) for number, reads in enumerate(dealt) if reads]
        at_once = self.options.parallelism or cores()
        dealt += [[] for _ in range(min_tasks(at_once) - len(dealt))]
        basis, tasks = self._basis(ranges, dealt, at_once)
        return [ReadTask(number, reads, basis if number < tasks else None) for number, reads in enumerate(dealt)]

    def _ends_early(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether records cannot be added: all ends are offsets or times."""
        if not ranges:
            return not is_open(self.options.end.default)
        return is_fixed(self.options, [TopicPartition(rng.topic, rng.partition) for rng in ranges])

    def _basis(
        self, ranges: Sequence[OffsetRange], dealt: Sequence[Sequence[SliceRead]], at_once: int
    ) -> tuple[bytes, int]:
        """The plan that tasks need to read added records, and the number of tasks that do."""
        basis = basis_of(ranges, dealt, self.options, len(dealt)).encode()
        tasks = len(dealt) if ends_with_groups(self.options) else growth_tasks(len(dealt), len(basis), at_once)
        return (basis if tasks == len(dealt) else basis_of(ranges, dealt, self.options, tasks).encode()), tasks

    def _plan(self, journal: Journal) -> tuple[list[OffsetRange], list[SliceRead]]:
        """The range of each partition, and the reads for them; planned again if a trim came in between."""
        while True:
            state, ranges = batch_ranges(journal, self.options)
            try:
                return ranges, plan_matching(journal, ranges, self.options.where)
            except (DataLoss, UnknownTopicOrPartition):
                if journal.state is state:
                    raise


class PinnedQuery:
    """Makes all tasks of a query read one version: the first task puts it under a name, the others read it."""

    def __init__(self, store: ObjectStore, options: ReadOptions, scan: str, query: PinNames, task: ReadTask) -> None:
        self._store = store
        self._options = options
        self._scan = scan
        self._query = query
        self._basis = task.basis

    def view(self) -> tuple[Pin, Growth]:
        """The pin of the query, and the growth of this scan.

        A user without write permission reads what the driver planned, without trimmed records.
        """
        try:
            pin = decode(pinned(self._store, self._query.pin, self._make_pin), Pin)
            return pin, self._growth(pin)
        except (StorageUnavailable, ObjectNotFound):
            raise
        except StorageError as error:
            pin = pin_of(self._journal.state)
            if self._basis is not None:
                notice(logging.WARNING, f"read only ({error}): records added since this frame was planned are not read")
            return pin, NONE

    @cached_property
    def _journal(self) -> Journal:
        return Journal.open(self._store, create=False)

    def _make_pin(self) -> bytes:
        """The pin, with the growth of this scan, so that its other tasks read only one file."""
        pin = pin_of(self._journal.state)
        return encode(replace(pin, growth={self._scan: self._plan(pin)}) if self._is_needed(pin) else pin)

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
        return decode(pinned(self._store, self._query.growth, lambda: encode(self._plan(pin))), Growth)

    def _plan(self, pin: Pin) -> Growth:
        """The records added up to the pinned version, planned by the state of that version."""
        assert self._basis is not None, "only tasks that read the growth plan it"
        state = self._state_at(pin.version)
        ends: dict[str, dict[int, int]] = {}
        if ends_with_groups(self._options):
            ends = group_offsets(state, self._options, partitions_there(pin.topics, self._options))
        ranges, losses = additions(pin.topics, self._options, self._basis, ends)
        report(losses, self._options.fail_on_data_loss)
        reads = plan_matching(self._journal, ranges, self._options.where, state=state)
        return Growth(tasks=split_growth(reads, self._basis), ends=ends)

    def _state_at(self, version: int) -> State:
        """The state at the version pinned by another task; the journal may be older or newer."""
        if self._journal.state.version < version:
            self._journal.refresh()
        state = self._journal.state_at(version)
        if state is None:
            raise ConcurrentChange(
                f"the other tasks of this query read version {version} of the log, and too much was committed since for this "
                "one to read the same; run the query again"
            )
        return state


def read_batches(
    store: ObjectStore, reads: Sequence[SliceRead], schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The matching records of planned reads, as Spark's batches."""
    columns = columns_to_read(stored_columns(schema), options.where)
    for read, coming in asked_ahead(store, reads):
        for part in _fetched(store, read, columns, options, coming):
            yield only_matching(to_batch(part, schema), part, options.where)


def _fetched(
    store: ObjectStore,
    read: SliceRead,
    columns: Sequence[str],
    options: ReadOptions,
    coming: Future[bytes] | None = None,
) -> Iterator[Fetched]:
    """The records of a read.  If its object no longer exists, the records are planned again by offset."""
    at = read.start
    try:
        for part in fetch(store, read, columns, options.where.window, coming):
            yield part
            at = part.first + part.records.num_rows
    except ObjectNotFound as error:
        yield from _again(store, replace(read, start=at), columns, options, error)


def _again(
    store: ObjectStore, read: SliceRead, columns: Sequence[str], options: ReadOptions, error: ObjectNotFound
) -> Iterator[Fetched]:
    """Records that were merged into another object.  Those that are not in the log any more are lost.

    So are those in a missing object that the newest state still names.
    """
    journal, fail = Journal.open(store, create=False), options.fail_on_data_loss
    tp = TopicPartition(read.topic, read.partition)
    if journal.state.names.get(read.topic) != read.topic_id:
        report([Loss(tp, read.start, read.end, f"topic {read.topic!r} was deleted before they were read")], fail)
        return
    first = journal.state.partitions[read.topic_id, read.partition].start
    if first > read.start:
        report([Loss(tp, read.start, min(first, read.end), TRIMMED)], fail)
    rest = OffsetRange(read.topic, read.topic_id, read.partition, max(first, read.start), read.end)
    for new in plan_matching(journal, [rest], options.where):
        if new.slice.object != read.slice.object:
            yield from _fetched(store, new, columns, options)
        elif fail:
            raise error
        else:
            report([Loss(tp, new.start, new.end, f"{store.url}/{new.slice.object} is not there")], fail)
