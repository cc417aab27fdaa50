"""Batch reads.

`partitions()` runs once per `load()`, a query any number of times after it.  So where the end is open, it settles only
which task reads which offsets, and how far each goes is settled when the query runs (`pins.py`); where the ends are
explicit offsets or times, tasks carry their slices.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_pylog.columns import stored_columns, to_batch
from pyspark_pylog.cores import cores
from pyspark_pylog.errors import plain_errors
from pyspark_pylog.loss import TRIMMED, Loss, report
from pyspark_pylog.notices import tell
from pyspark_pylog.options import Location, ReadOptions
from pyspark_pylog.patience import patiently
from pyspark_pylog.pins import PINS, Assignment, decode, encode, make_pin, pinned, query_of_task, read_pin
from pyspark_pylog.ranges import batch_ranges, is_fixed, wanted_partitions
from pyspark_pylog.splits import Deal, deal_of, split_by_bytes, split_by_deal, split_ranges, task_bytes
from pyspark_pylog.workers import settle
from spark_log.client.fetch import Fetched, asked_ahead, fetch
from spark_log.client.plan import OffsetRange, SliceRead
from spark_log.client.prune import columns_to_read, cut, only_matching, plan_matching, spans
from spark_log.client.route import open_journal, storage_url
from spark_log.clock import SystemClock
from spark_log.errors import ObjectNotFound, StorageError, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.model import TopicPartition
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store

logger = logging.getLogger("spark_log")


class ReadTask(InputPartition):
    """One task: its number out of how many, and the slices that it reads, if they were settled when it was planned."""

    def __init__(self, number: int, count: int, reads: tuple[SliceRead, ...] | None = None) -> None:
        super().__init__(number)
        self.number = number
        self.count = count
        self.reads = reads


def store_of(location: Location) -> ObjectStore:
    """Where the objects are; a coordinator is asked for it."""
    url = storage_url(location.url, location.token)
    return open_store(url, dict(location.storage), location.durability)


def journal_of(location: Location, *, create: bool = False) -> Journal:
    storage = dict(location.storage)
    return open_journal(location.url, storage, location.token, create=create, durability=location.durability)


def deal_out(reads: Sequence[SliceRead], options: ReadOptions) -> list[list[SliceRead]]:
    """What each task reads: as Kafka's connector would cut it if its options are given, by bytes otherwise.

    The driver's Python cannot see how many tasks run at once: its own cores are the best guess.
    """
    if options.min_partitions is not None or options.max_records is not None:
        return cut(reads, split_ranges(spans(reads), options.min_partitions, options.max_records))
    total, tasks = sum(read.bytes for read in reads), options.parallelism or cores()
    return split_by_bytes(reads, task_bytes(total, tasks, options.bytes_per_partition))


class LogReader(DataSourceReader):
    """Reads a range of the log, as it is when the query runs."""

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
            settle()
            if not isinstance(partition, ReadTask):  # Spark's stand-in for an empty list of partitions
                return
            store = store_of(self.options.location)
            reads = self._late_reads(store, partition) if partition.reads is None else partition.reads
            yield from read_batches(store, reads, self.schema, self.options)

    def _planned(self) -> Sequence[InputPartition]:
        journal = journal_of(self.options.location)
        ends = self._ends_now(journal)
        tasks = self._tasks(journal, ends)
        if is_fixed(self.options, ends) or not self._settle(journal, deal_of(journal.state.version, tasks)):
            return [ReadTask(n, len(tasks), tuple(reads)) for n, reads in enumerate(tasks) if reads]
        return [ReadTask(n, len(tasks)) for n in range(len(tasks))]

    def _ends_now(self, journal: Journal) -> dict[TopicPartition, int]:
        state = journal.state
        tps = wanted_partitions(state, self.options)
        return {tp: state.partitions[state.names[tp.topic], tp.partition].end for tp in tps}

    def _tasks(self, journal: Journal, ends: Mapping[TopicPartition, int]) -> list[list[SliceRead]]:
        """What each task reads: one task at least."""
        ranges = batch_ranges(journal, self.options, ends)
        return deal_out(plan_matching(journal, ranges, self.options.where), self.options) or [[]]

    def _settle(self, journal: Journal, deal: Deal) -> bool:
        """Put down which task reads which offsets.  False where this user may not write: then the ends are those of now."""
        try:
            pinned(journal.store, self._deal_name, lambda: encode(deal))
        except (StorageUnavailable, ObjectNotFound):
            raise
        except StorageError as error:
            logger.warning("read only (%s): this frame ends at version %d however late it is used", error, deal.version)
            return False
        return True

    @property
    def _deal_name(self) -> str:
        return f"{PINS}{self.scan}-deal"

    def _late_reads(self, store: ObjectStore, task: ReadTask) -> Sequence[SliceRead]:
        """This task's part of the plan that was made when the query began to run."""
        query = query_of_task(self.scan)
        opened: list[Journal] = []

        def journal() -> Journal:
            if not opened:
                opened.append(Journal.open(store, create=False))
            return opened[0]

        def plan() -> bytes:
            pin = read_pin(pinned(store, query.pin, lambda: make_pin(journal())))
            state, known = journal().state, pin.ends()
            tps = [tp for tp in wanted_partitions(state, self.options) if tp in known]
            ends = {tp: known[tp] for tp in tps if pin.topics[tp.topic][0] == state.names[tp.topic]}
            reads = plan_matching(journal(), batch_ranges(journal(), self.options, ends), self.options.where)
            # Upkeep drops what is as old as yesterday's deals; a view that is older still gets one by offsets alone.
            anew = Deal(version=pin.version, count=task.count, cuts={})
            deal = decode(pinned(store, self._deal_name, lambda: encode(anew)), Deal)
            return encode(Assignment(version=pin.version, tasks=split_by_deal(reads, deal)))

        return decode(pinned(store, query.plan, plan), Assignment).tasks[task.number]


def read_batches(
    store: ObjectStore, reads: Sequence[SliceRead], schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """What matches of planned reads, as Spark's batches; what lay in an object that is gone by now is planned again by offset."""
    where = options.where
    columns = columns_to_read(stored_columns(schema), where)
    for read, coming in asked_ahead(store, reads):
        at = read.start
        try:
            for part in fetch(store, read, columns, where.window, coming):
                yield only_matching(to_batch(part, schema), part, where)
                at = part.first + part.records.num_rows
        except ObjectNotFound:
            for part in _again(store, replace(read, start=at), columns, options):
                yield only_matching(to_batch(part, schema), part, where)


def _again(store: ObjectStore, read: SliceRead, columns: Sequence[str], options: ReadOptions) -> Iterator[Fetched]:
    """Records that were merged into another object; those that are not in the log any more are a loss."""
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
        yield from fetch(store, new, columns, options.where.window)
