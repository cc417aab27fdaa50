"""`subscribe=__consumer_offsets`: committed positions of groups, as a batch and as a stream.

The records are made from the log's state, so one task returns them.  A batch with an open end makes them when its query
runs, at the version pinned for the query, so that all its scans see the same (`query_pins.py`).  Those of a micro-batch
are part of its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_pylog.driver_log import tell
from pyspark_pylog.log.open_log import journal_to_read, planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import agreed_value
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.plain_errors import plain_errors
from pyspark_pylog.progress.offset_format import Offset, parse_offset
from pyspark_pylog.source.batch import PlannedReader
from pyspark_pylog.source.following_reader import LONG_POLL_MS, FollowingReader
from pyspark_pylog.source.query_pins import Pin, check_history, check_history_of, decode, encode, pin_of, query_of_task
from pyspark_pylog.source.ranges import is_fixed
from pyspark_pylog.spark_compat import ReadLimit, ReadMaxRows
from spark_log.errors import (
    ConcurrentChange,
    DataLoss,
    InvalidRequest,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.seen_log import seen_by
from spark_log.log_lines import logger
from spark_log.metadata.groups.consumer_offsets import (
    PARTITIONS,
    CommittedOffsets,
    ProgressRecord,
    progress_of,
    to_batch,
)
from spark_log.metadata.state import State
from spark_log.model import PROGRESS_TOPIC, TopicPartition
from spark_log.positions import At, AtTime, Position
from spark_log.runtime.clock import Clock, SystemClock


class RecordsTask(InputPartition):
    """The one task, with its records as planned."""

    def __init__(self, log: PlannedLog, records: Sequence[ProgressRecord], *, fixed: bool) -> None:
        super().__init__(0)
        self.log = log
        self.records = tuple(records)
        self.fixed = fixed
        """Whether they stay the same whenever the query runs."""


class ProgressReader(PlannedReader):
    """Committed positions of groups at the time of the query."""

    def _planned(self) -> Sequence[InputPartition]:
        journal = journal_to_read(self.options.location)
        state = journal.state
        records = self._records(progress_of(state), journal.context.clock.now_ms())
        log = planned_log(self.options.location, journal, state)
        return [RecordsTask(log, records, fixed=is_fixed(self.options, _partitions(self.options)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            assert isinstance(partition, RecordsTask)
            yield to_batch(partition.records if partition.fixed else self._records_now(partition), self.schema)

    def _records_now(self, task: RecordsTask) -> Sequence[ProgressRecord]:
        try:
            progress = pinned_progress(task.log, query_of_task(self.scan, task.log.token).pin)
        except (StorageUnavailable, ObjectNotFound):
            raise
        except StorageError as error:
            logger.warning("read only (%s): this frame has the progress of its load, however late it is used", error)
            return task.records
        return self._records(progress, SystemClock().now_ms())

    def _records(self, progress: CommittedOffsets, now_ms: int) -> list[ProgressRecord]:
        options, starts = self.options, _starts(progress, self.options, now_ms)
        stops: dict[int, Position] = {}
        for tp in starts:
            stop = options.end.of(tp)
            stops[tp.partition] = At(min(stop.offset, progress.end)) if isinstance(stop, At) else stop
        ends = progress.offsets_of(stops, now_ms)
        for tp, start in starts.items():
            if isinstance(options.start.of(tp), At) and start > ends[tp.partition]:
                raise InvalidRequest(
                    f"option {options.start.option}: the start of {tp.topic}-{tp.partition}, {start}, is beyond its end by "
                    f"{options.end.option}, {ends[tp.partition]}; give a start at or before the end"
                )
        return progress.between(_numbers(starts), ends, options.where.only_ranges())


class ProgressStreamReader(FollowingReader):
    """Micro-batches of changes since the previous one: the latest record of each changed position."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, clock: Clock | None = None) -> None:
        super().__init__(options, schema, clock)
        self._target: int | None = None
        """The end of an available-now run."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadMaxRows(2**63 - 1)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Set once: Spark asks again after it has the end of the first batch."""
        with plain_errors():
            if self._initial is None:
                tell(self.options.notes)
                progress = progress_of(self._refreshed())
                starts = _starts(progress, self.options, self.clock.now_ms())
                self._initial = self._known = Offset(ends=starts, ids={}).encode()
            return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        with plain_errors():
            self._target = _end(self._refreshed())

    def latestOffset(  # noqa: N802  Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the topic; after a short wait, `start` if nothing has changed."""
        with plain_errors():
            start = start or self._known or self.initialOffset()
            at = self._restored.in_it(parse_offset(start), self.journal)
            self._check_there(at)
            end = self._wait(min(at.ends.values(), default=0)) if self._target is None else self._target
            ends = {tp: max(end, at.ends.get(tp, 0)) for tp in _partitions(self.options)}
            self._latest = Offset(ends=dict.fromkeys(ends, _end(self.journal.state)), ids={}).encode()
            if ends == at.ends:
                return start
            # If Spark replays the first batch, `initialOffset` may return something else by then.
            starts = at.ends if start == self._initial or at.moved else {}
            seen = seen_by(self.journal, self.journal.state)
            return replace(at, ends=ends, starts=starts, log=self.journal.cluster_id, seen=seen).encode()

    def _polled(self) -> State:
        return self._followed(lambda: self.journal.poll())

    def _check_there(self, at: Offset) -> None:
        """Raises DataLoss for an offset beyond the end."""
        last = max(at.ends.values(), default=0)
        if _end(self.journal.state) < last and (end := _end(self._refreshed())) < last:
            raise DataLoss(
                f"the checkpoint is at offset {last} of {PROGRESS_TOPIC}, beyond its end, {end}: this log is an older "
                "copy, or another one; restore the newer copy, or start the query with a new checkpoint"
            )

    def _wait(self, at: int) -> int:
        deadline = self.clock.monotonic_ms() + LONG_POLL_MS
        while (end := _end(self._polled())) <= at:
            left = deadline - self.clock.monotonic_ms()
            if left <= 0:
                return end
            self.clock.sleep_ms(min(self.backoff.wait_ms(), left))
        self.backoff.found()
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Use the state that determined the end: a later one may have replaced its records by newer ones."""
        with plain_errors():
            self._known = end
            if start == end:  # after a restart Spark 4.0 and 4.1 report the query's position this way
                return []
            at, until = self._restored.in_it(parse_offset(start), self.journal), parse_offset(end)
            self._restored.in_it(until, self.journal)
            starts = _numbers({tp: at.ends.get(tp, 0) for tp in until.ends} | until.starts)
            ends = _numbers(until.ends)
            self._check_there(until)
            records = progress_of(self.journal.state).between(starts, ends, self.options.where.only_ranges())
            log = planned_log(self.options.location, self.journal)
            return [RecordsTask(log, records, fixed=True)] if records else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            assert isinstance(partition, RecordsTask)
            yield to_batch(partition.records, self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark stores the stream's position."""


def pinned_progress(log: PlannedLog, name: str) -> CommittedOffsets:
    """The topic at the version that all scans of a query see; the first scan pins it."""
    pin = decode(agreed_value(log, name, lambda journal: encode(pin_of(journal.state))), Pin)
    check_history(log, pin)
    if pin.progress is not None:
        return pin.progress

    def late(journal: Journal) -> bytes:
        check_history_of(pin, journal)
        return encode(progress_at(journal, pin.version))

    return decode(agreed_value(log, f"{name}-progress", late), CommittedOffsets)


def progress_at(journal: Journal, version: int) -> CommittedOffsets:
    """The topic at a recent version, which other scans of the query see.

    Raises ConcurrentChange if groups have committed since, and the state at that version cannot be rebuilt.
    """
    state: State | None = journal.state if journal.state.version >= version else journal.refresh()
    if state is not None and state.progressed > version:
        state = journal.state_at(version)
    if state is None:
        raise ConcurrentChange(
            f"the other reads of this query see version {version} of the log, and where groups stood then is not known any "
            "more: too much was committed since they began; run the query again"
        )
    return msgspec.structs.replace(progress_of(state), version=version)


def _partitions(options: ReadOptions) -> list[TopicPartition]:
    if options.assign:
        return [tp for tp in options.assign if tp.partition < PARTITIONS]
    return [TopicPartition(PROGRESS_TOPIC, number) for number in range(PARTITIONS)]


def _starts(progress: CommittedOffsets, options: ReadOptions, now_ms: int) -> dict[TopicPartition, int]:
    """The first offset of each partition.

    Raises InvalidRequest for an offset beyond the end, and for a timestamp after the last record, unless the strategy
    is `latest`.
    """
    starts = {}
    for tp in _partitions(options):
        position = options.start.of(tp)
        if isinstance(position, At) and position.offset > progress.end:
            raise InvalidRequest(
                f"option startingOffsets: {position.offset} is beyond the end of {tp.topic}-{tp.partition}, {progress.end}"
            )
        found = progress.offset_of(tp.partition, position, now_ms)
        if found is None and isinstance(position, AtTime) and options.no_match_is_error:
            raise InvalidRequest(
                f"option {options.start.option}: no record of {tp.topic} is at or after {position.ms}; "
                "startingOffsetsByTimestampStrategy=latest starts at the end instead"
            )
        starts[tp] = progress.end if found is None else found
    return starts


def _end(state: State) -> int:
    return state.progressed + 1


def _numbers(ends: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {tp.partition: end for tp, end in ends.items()}
