"""The streaming source: the calls of Spark, and when they are answered.

The reader lives in one process as long as the query runs; its state is dropped when Spark pickles it for the tasks.
Spark stores its position (`offset_format.py`); `resume.py` decides how it continues, `rate_limits.py` how far.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_pylog.driver_log import notice, tell
from pyspark_pylog.log.open_log import planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.plain_errors import plain, plain_errors
from pyspark_pylog.progress.coordinated_progress import CoordinatedProgress, progress_of
from pyspark_pylog.progress.loss import Loss, report
from pyspark_pylog.progress.offset_format import Ends, Offset, offset_at, parse_offset
from pyspark_pylog.source.batch import deal_out
from pyspark_pylog.source.data_columns import where_of
from pyspark_pylog.source.following_reader import LONG_POLL_MS, FollowingReader
from pyspark_pylog.source.latest_task import LatestTask, divide, from_first, read_latest, upto
from pyspark_pylog.source.native_task import ErasureLook, PinnedTask, read_rest
from pyspark_pylog.source.ranges import start_offsets, topics_asked_for, wanted_partitions
from pyspark_pylog.source.rate_limits import byte_budgets, end_within, is_due, share
from pyspark_pylog.source.read_task import ReadTask, read_batches
from pyspark_pylog.source.resume import check_target, check_topics, go_on, planned_ranges, split_at
from pyspark_pylog.source.splits import cores
from pyspark_pylog.source.stream_columns import StreamColumns
from pyspark_pylog.spark_compat import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark_pylog.worker_process import prepare_process
from spark_log.client.reader.latest import condition_of_view
from spark_log.client.reader.plan import REPLAN_TRIES, Chunk, OffsetRange, chunks, plan_reads
from spark_log.client.reader.positions_to_offsets import ranges_between
from spark_log.client.reader.prune import plan_matching
from spark_log.errors import DataLoss, RebalanceInProgress, SparkLogError, UnknownTopicOrPartition
from spark_log.journal.storage.seen_log import seen_by
from spark_log.metadata.state import State
from spark_log.model import TopicPartition
from spark_log.runtime.clock import Clock

ASSIGNED_MS_MAX = 300_000
"""Maximum wait for an assignment: of an available-now run, and of a query whose triggers are as far apart."""
TOLD_MAX = 10_000
"""Losses that are remembered, so that each is reported once: a query that is always late has more every day."""


class Ahead(NamedTuple):
    """The records that a stream could read next."""

    state: State
    starts: Ends
    ends: Ends
    pending: int
    """Records."""
    has_changes: bool
    """Whether a batch would advance the stream.  An offset without partitions does not, as with Kafka's connector."""


class LogStreamReader(FollowingReader):
    """Micro-batches of a log, each read up to one version."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, clock: Clock | None = None) -> None:
        super().__init__(options, schema, clock)
        self._progress = progress_of(options)
        self._first: Offset | None = None
        """The start of the first batch, after the query owns the group."""
        self._is_begun = False
        """Whether a batch was planned: if the first one was empty, the second also begins at the initial offset."""
        self._target: Offset | None = None
        """The end of an available-now run."""
        self._columns = StreamColumns(schema, options)
        self._told_losses: set[Loss] = set()
        self._told = False
        self._idle_since_ms = -math.inf
        """When the log was polled last, on the monotonic clock."""
        self._triggered_ms = math.inf
        """When Spark asked for a batch last."""

    # ------------------------------------------------------------------------------------------------------- the driver

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Always a limit, so that `ReadAllAvailable` means Trigger.Once, which ignores all limiting options."""
        return ReadMaxRows(self.options.max_offsets or 2**63 - 1)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Set once: Spark asks again after it has the end of the first batch, and the log may have grown."""
        with plain_errors():
            if self._initial is None:
                state = self._refreshed()
                self._columns.start(state)
                # With a coordinator, it has no partitions yet.
                initial = Offset(ends={}, ids={}) if self.options.coordinated else self._beginning(state)
                self._initial = initial.encode()
                self._known = self._initial
            return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        with plain_errors():
            state = self._refreshed()
            self._target = offset_at(state, self._ends(state))

    def latestOffset(  # noqa: N802  Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the next batch; `start` while there is none.

        An idle query waits a little here, so that it does not poll in a loop.  A run with a fixed end never waits.
        """
        with plain_errors():
            self._tell()
            start = start or self._known or self.initialOffset()
            first = start == self._initial and not self._is_begun
            at = self._checked(parse_offset(start))
            if first:
                self._restored.begin(self.journal)
                at = self._joined(at)
            once = ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable)
            if not self._is_assigned(at, ends=once or self._target is not None):
                return start
            self._progress.join(self.journal, at)  # first, so that the next look sees what a former owner has published
            ahead = self._now(at) if once or self._target is not None else self._wait(at)
            self._progress.reached(self.journal, at)
            if ahead is None:
                if self._is_settled(at):
                    return start
                # The checkpoint gets the query's token and its start by an empty batch.
                return self._progress.signed(replace(at, starts=at.ends if first else {})).encode()
            ends = ahead.ends if once else self._limited(ahead)
            return self._progress.signed(self._offset(at, ahead, ends, first=first)).encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with plain_errors():
            self._known = end
            self._is_begun = True
            if start == end:  # after a restart Spark 4.0 and 4.1 report the query's position this way
                return []
            at, until = self._checked(parse_offset(start)), parse_offset(end)
            self._checked(until)
            self._progress.join(self.journal, until)
            if start != self._initial:  # it is not from a checkpoint if Spark replays the first batch
                self._progress.reached(self.journal, at)
            return self._planned(at, until)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish progress to the group; Spark stores it in the checkpoint."""
        with plain_errors():
            self._progress.reached(self.journal, parse_offset(end))

    def stop(self) -> None:
        """Spark does not always call this: then the group is free when its session has expired."""
        self._progress.leave()

    # -------------------------------------------------------------------------------------------------------- the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            prepare_process()
            if isinstance(partition, PinnedTask | ErasureLook):
                yield from read_rest(partition, self.schema, self.options)
                return
            assert isinstance(partition, ReadTask)
            if isinstance(partition, LatestTask):
                yield from read_latest(partition, self.schema, self.options)
            else:
                yield from read_batches(partition.log, partition.reads, self.schema, self.options, data=partition.data)

    # -------------------------------------------------------------------------------------------------------- decisions

    def _checked(self, at: Offset) -> Offset:
        """An offset in the log as it is now: the first one of a run is the checkpoint's."""
        return self._restored.in_it(at, self.journal)

    def _joined(self, initial: Offset) -> Offset:
        """The initial offset after joining the group, whose offsets the previous owner may have changed meanwhile."""
        if self._first is None:
            self._progress.join(self.journal, initial)
            state = self.journal.state
            there = [tp for tp in initial.ends if initial.same_topic(tp.topic, state.names.get(tp.topic))]
            moved = self._progress.moved(state, there, self.options.fail_on_data_loss)
            latest = {tp: end for tp, end in initial.latest.items() if tp not in moved}
            self._first = replace(initial, ends=initial.ends | moved, latest=latest)
        return self._first

    def _is_assigned(self, at: Offset, *, ends: bool) -> bool:
        """Whether the query has its partitions.  A run with a fixed end waits for them, as it would end otherwise; so
        does a query with rare triggers, which would wait for the next one."""
        now_ms, before_ms = self.clock.monotonic_ms(), self._triggered_ms
        self._triggered_ms = now_ms
        deadline = now_ms + (ASSIGNED_MS_MAX if ends else min(ASSIGNED_MS_MAX, now_ms - before_ms))
        while isinstance(self._progress, CoordinatedProgress):
            state = self._polled()
            if not at.ends and not self._progress.has_begun:
                self._progress.begin(state, self._beginning(state))
            if self._progress.is_assigned(self.journal, topics_asked_for(self.options, state.names), at, LONG_POLL_MS):
                return True
            if self.clock.monotonic_ms() < deadline:
                continue
            if not ends:
                self._latest = self._latest or offset_at(state, self._ends(state)).encode()
                return False
            raise RebalanceInProgress(
                f"group {self.options.group!r} has not assigned partitions to this query for {ASSIGNED_MS_MAX // 1000} s: "
                "another member is in a long batch, or another source of this query is in the same group and needs a "
                "group of its own; run the query again"
            )
        return True

    def _view_ends(self, state: State, starts: Ends) -> Ends:
        """The end of the view that the query begins with, of each partition that has one."""
        ends = {tp: state.partitions[state.names[tp.topic], tp.partition].readable_end for tp in starts}
        return {tp: end for tp, end in ends.items() if self.options.start.latest_per_key and starts[tp] < end}

    def _beginning(self, state: State) -> Offset:
        """Where a query without a checkpoint begins: at the group's positions, else where the options say."""
        tps = self._owned(state)
        standing = self._progress.standing(state, tps, self.options.fail_on_data_loss)
        starts = start_offsets(self.journal, self.options, tps, standing)
        latest = self._view_ends(state, {tp: starts[tp] for tp in tps if tp not in standing})
        return replace(offset_at(state, starts), latest=latest)

    def _owned(self, state: State) -> list[TopicPartition]:
        """The partitions to read: those that the options request, or this query's share of them."""
        return [tp for tp in wanted_partitions(state, self.options) if self._progress.owns(tp)]

    def _still_owned(self, at: Offset, state: State) -> Offset:
        """An offset without the partitions that other queries read now.  Those of a topic that is gone are a loss."""
        ends = {
            tp: end
            for tp, end in at.ends.items()
            if self._progress.owns(tp) or not at.same_topic(tp.topic, state.names.get(tp.topic))
        }
        return at if len(ends) == len(at.ends) else replace(at, ends=ends)

    def _ends(self, state: State) -> Ends:
        return {tp: state.partitions[state.names[tp.topic], tp.partition].readable_end for tp in self._owned(state)}

    def _polled(self) -> State:
        """The state at the end of the log, or of the last poll if that found nothing and the next one is not due yet:
        an idle query polls at the end of one call of Spark, which calls again immediately."""
        if self.clock.monotonic_ms() - self._idle_since_ms < self.backoff.wait_ms():
            return self.journal.state
        return self._followed(lambda: self.journal.poll())

    def _waited(self, poll_ms: float, most_ms: float, ahead: Ahead) -> State:
        topics = sorted({ahead.state.names[tp.topic] for tp in self._ends(ahead.state)})
        state = self._followed(lambda: self.journal.wait(poll_ms, most_ms, self.clock, topics=topics))
        self._idle_since_ms = self.clock.monotonic_ms() if state is ahead.state else -math.inf
        return state

    def _look(self, at: Offset, state: State) -> Ahead:
        """The records after `at`, up to the end of the run if it has one.  Reports lost records."""
        target, at = self._target, self._still_owned(at, state)
        reached = target is not None and self._still_owned(target, state).says_as(at)
        if target is not None and not reached:
            check_target(state, target)
        check_topics(state, self.options, at)
        ends = self._ends(state)
        self._latest = offset_at(state, ends).encode()
        if reached:  # later changes of its topics are for the next run
            return Ahead(state, at.ends, at.ends, 0, False)
        starts, losses = go_on(state, self.options, at, ends, self._progress.positions(state, ends))
        self._report(losses)
        if target is not None:  # later records are for the next run
            starts = {tp: start for tp, start in starts.items() if tp in target.ends}
            ends = {tp: max(target.ends[tp], start) for tp, start in starts.items()}
        pending = sum(ends.values()) - sum(starts.values())
        return Ahead(state, starts, ends, pending, bool(ends) and not offset_at(state, ends).says_as(at))

    def _now(self, at: Offset) -> Ahead | None:
        ahead = self._look(at, self._refreshed())
        return ahead if ahead.has_changes else None

    def _wait(self, at: Offset) -> Ahead | None:
        """The records after `at` as soon as they make a batch; None if the wait times out."""
        deadline = self.clock.monotonic_ms() + LONG_POLL_MS
        ahead = self._look(at, self._polled())
        while not (ahead.has_changes and self._is_due(at, ahead)):
            left = deadline - self.clock.monotonic_ms()
            if left <= 0:
                return None
            state = self._waited(min(self.backoff.wait_ms(), left), left, ahead)
            if state is not ahead.state:
                ahead = self._look(at, state)
        self.backoff.found()
        return ahead

    def _is_due(self, at: Offset, ahead: Ahead) -> bool:
        return is_due(
            ahead.pending,
            self.options.min_offsets,
            now_ms=self.clock.now_ms(),
            fired_ms=at.fired_ms,
            delay_ms=self.options.max_delay_ms,
        )

    def _limited(self, ahead: Ahead) -> Ends:
        starts, ends = ahead.starts, ahead.ends
        if self.options.max_offsets is not None:
            sizes = {tp: end - starts[tp] for tp, end in ends.items()}
            shares = share(self.options.max_offsets, sizes, turn=sum(starts.values()))
            ends = {tp: starts[tp] + shares[tp] for tp in ends}
        if self._max_bytes is not None:
            ends = self._within_bytes(self._max_bytes, ahead.state, starts, ends)
        return ends

    @property
    def _max_bytes(self) -> int | None:
        """Before 4.2 Spark runs available-now as one batch and does not report it: the default must not limit it."""
        return self.options.max_bytes if ReadAllAvailable is not None or self.options.max_bytes_asked else None

    def _within_bytes(self, limit: int, state: State, starts: Ends, ends: Ends) -> Ends:
        """Ends that about `limit` bytes reach, divided by backlog; plans only reads that may be within them."""
        coarse = {
            tp: list(chunks(state.partitions[state.names[tp.topic], tp.partition], starts[tp], end))
            for tp, end in ends.items()
            if starts[tp] < end
        }
        sizes = {tp: sum(chunk.bytes for chunk in parts) for tp, parts in coarse.items()}
        if sum(sizes.values()) <= limit:
            return ends
        budgets = byte_budgets(limit, sizes)
        reach = {tp: end_within(budgets[tp], parts, cut=False) for tp, parts in coarse.items()}
        fine: dict[TopicPartition, list[Chunk]] = {tp: [] for tp in reach}
        try:
            reads = plan_reads(self.journal, ranges_between(state, {tp: starts[tp] for tp in reach}, reach))
        except (DataLoss, UnknownTopicOrPartition):  # lost since; reported when the batch is planned
            return ends | {tp: end_within(budgets[tp], parts, cut=True) for tp, parts in coarse.items()}
        for read in reads:
            fine[TopicPartition(read.topic, read.partition)].append(Chunk(read.start, read.end, read.bytes))
        return ends | {tp: end_within(budgets[tp], parts, cut=True) for tp, parts in fine.items()}

    def _offset(self, at: Offset, ahead: Ahead, ends: Ends, *, first: bool) -> Offset:
        """The end of a batch that begins now.

        The first one contains its start: if Spark replays it, `initialOffset` may return something else by then.
        """
        there = offset_at(ahead.state, ends)
        goes_on = {
            tp for tp in ends if at.ends.get(tp) == ahead.starts[tp] and at.same_topic(tp.topic, there.ids[tp.topic])
        }
        lost = {tp for tp in ends.keys() - goes_on if tp in at.ends and at.same_topic(tp.topic, there.ids[tp.topic])}
        self._tell_skipped(at, ahead, sorted(lost))
        starts = {
            tp: start
            for tp, start in ahead.starts.items()
            if first or tp in lost or tp in at.moved or (tp not in goes_on and ends[tp] > 0)
        }
        latest = {
            tp: end
            for tp, end in at.latest.items()
            if ahead.starts.get(tp, end) < end and at.same_topic(tp.topic, there.ids[tp.topic])
        }
        fires = self.options.min_offsets is not None and ahead.pending > 0
        fired_ms = self.clock.now_ms() if fires else at.fired_ms
        log = self.journal.cluster_id
        seen = seen_by(self.journal, ahead.state)
        return replace(there, log=log, seen=seen, starts=starts, latest=latest, fired_ms=fired_ms, carried=at.carried)

    def _tell_skipped(self, at: Offset, ahead: Ahead, tps: Iterable[TopicPartition]) -> None:
        """Log where a query with a number continues at the group's position: its checkpoint may be an older copy, which
        was restored with the results of the query."""
        for tp in tps if self.options.share is not None else ():
            known, start = at.ends[tp], ahead.starts[tp]
            if start > ahead.state.partitions[ahead.state.names[tp.topic], tp.partition].start:
                notice(
                    logging.WARNING,
                    f"{tp.topic}-{tp.partition}: the checkpoint is at {known}, and group {self.options.group!r} at {start}: "
                    "the query continues there, as another one has read the records before; to read them again, stop all "
                    "queries of the group and set its position back with `pylog group seek`",
                )

    def _planned(self, at: Offset, until: Offset) -> list[InputPartition]:
        """Tasks of a batch, planned by the state that `latestOffset` has seen; by the newest one if that fails."""
        state = self.journal.state
        for left in reversed(range(REPLAN_TRIES)):
            try:
                ranges, losses = planned_ranges(state, at, until)
                tasks = self._tasks(ranges, until.latest, state)
            except (DataLoss, UnknownTopicOrPartition):
                before, state = state, self._refreshed()
                if state is before or not left:
                    raise
                continue
            self._report(losses)
            return tasks
        raise AssertionError("the last try returns or raises")

    def _is_settled(self, at: Offset) -> bool:
        """Whether there is nothing to read, all is published, and the checkpoint has the query's token."""
        if at.ends and not self._progress.knows(at):
            return False
        if self._target is None:
            self._progress.flush()
        else:
            self._progress.leave(at)
        return True

    def _report(self, losses: Sequence[Loss]) -> None:
        """Report losses once per run.  Raises DataLoss unless failOnDataLoss is false."""
        news = [loss for loss in losses if loss not in self._told_losses]
        report(news, self.options.fail_on_data_loss)
        if len(self._told_losses) > TOLD_MAX:
            self._told_losses.clear()
        self._told_losses.update(news)

    def _tell(self) -> None:
        """Log notes once per run."""
        if self._told:
            return
        self._told = True
        tell(self.options.notes)
        if not self.options.max_bytes_asked and self._max_bytes is not None:
            size = f"{self._max_bytes >> 30}g"
            notice(
                logging.INFO,
                f"maxBytesPerTrigger is {size} by default: about that many bytes in a micro-batch (none: no limit)",
            )

    def _tasks(self, ranges: Sequence[OffsetRange], latest: Ends, state: State) -> list[InputPartition]:
        """Tasks for the parts of the ranges before and after the ends of the view that the query begins with."""
        before, after = split_at(ranges, latest)
        log = planned_log(self.options.location, self.journal, state)
        where = where_of(self.options, self._columns.found(state))
        planned = plan_matching(self.journal, after, where, state=state)
        data = self._columns.of(state, planned)
        dealt = deal_out(planned, self.options)
        tasks: list[InputPartition] = [
            ReadTask(number, log, reads, data=data) for number, reads in enumerate(dealt) if reads
        ]
        if before:
            tasks += self._latest_tasks(before, latest, len(tasks), log, state)
        return tasks

    def _latest_tasks(
        self, ranges: Sequence[OffsetRange], latest: Ends, first: int, log: PlannedLog, state: State
    ) -> list[InputPartition]:
        where = condition_of_view(self.options.where)
        whole = [rng._replace(end=latest[TopicPartition(rng.topic, rng.partition)]) for rng in ranges]
        view = plan_matching(self.journal, whole, where, state=state)
        data = self._columns.of(state, view)
        shares = divide(upto(view, ranges), where_of(self.options, data), self.options.parallelism or cores())
        return [
            LatestTask(number, log, reads, from_first(view, reads), data=data)
            for number, reads in enumerate(shares, first)
            if reads
        ]


class Refused(DataSourceStreamReader):
    """Raises an error about the options on Spark's first call.

    PySpark hides errors raised before it has a reader, because its clean-up fails then.
    """

    def __init__(self, error: SparkLogError) -> None:
        self.error = error

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        raise plain(self.error)

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815  Spark's names
