"""One task of a flow: a member of its group that polls, applies the function and commits, batch after batch.

Everything that a task knows is in the log.  After an error that says nothing about its last commit, the task joins the
group again and begins at the committed positions.  Joining gives it a new generation, under which the log refuses that
commit if it arrives late.  A commit also names the history of the log in which its positions began, so that one of
before a restore is refused, too.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from spark_log.client.consumer.consumer import Consumer
from spark_log.client.consumer.membership import Membership, SessionRequest, new_member
from spark_log.client.producer.append import replica_puts
from spark_log.client.producer.commit import NO_BASIS, PlainProducer
from spark_log.client.producer.topic_rules import TopicRows
from spark_log.client.producer.upload import Uploader
from spark_log.errors import (
    FencedInstanceId,
    FunctionFailed,
    GroupInUse,
    IllegalGeneration,
    InvalidRecord,
    LogRestored,
    OffsetOutOfRange,
    RebalanceInProgress,
    SparkLogError,
    UnknownTopicOrPartition,
    WrongRoot,
)
from spark_log.flows.batch_function import BatchFunction
from spark_log.flows.flow_options import FlowOptions
from spark_log.groups.member_share import Share
from spark_log.journal.journal import Journal
from spark_log.journal.storage.seen_log import is_set_back, seen_by
from spark_log.metadata.commits.decide_commits import ReadBasis
from spark_log.metadata.erasures import erased_at
from spark_log.metadata.restores import SeenLog, history_of
from spark_log.metadata.set_backs import BEGINNING, Lineage, lineage_of
from spark_log.metadata.state import GroupState
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.runtime.threads import Event

POLL_MS = 500
"""Longest wait of a task for records."""
SHARE_SESSION_MS = 1_000
"""How long after its last commit a task without a coordinator keeps its share from others that are not this task."""
BACKOFF_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0)
IN_USE_MS = 60_000
"""How long a task waits for a group that others hold: longer than the session of a stream that died."""
REFUSALS_MAX = 3
"""Commits in a row that may be refused because a topic was changed meanwhile."""
TIMES_KEPT = 1_000
RESTORED = "the log was restored from a copy, or set back to one"
SUMMED = ("records_in", "records_out", "bad_records", "batches", "restarts")

logger = logging.getLogger("spark_log")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """Counts of a task since it was started."""

    records_in: int = 0
    records_out: int = 0
    bad_records: int = 0
    batches: int = 0
    restarts: int = 0
    lookup_records: int = 0
    """Records in its tables of lookups now."""
    state_keys: int = 0
    """Keys with a state that it has in memory now."""
    error: str = ""
    """The last error after which the task has joined the group again."""

    def plus(self, later: TaskCounts) -> TaskCounts:
        """The sums, with the later error and the later tables."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in SUMMED}
        tables = later if later.batches else self  # a table may be empty by now
        held = {name: getattr(tables, name) for name in ("lookup_records", "state_keys")}
        return TaskCounts(**sums, **held, error=later.error or self.error)


class Incarnation(NamedTuple):
    """A member without a coordinator: who it is, and whose place it may take."""

    id: str
    former: tuple[str, ...] = ()
    """Ids of its tasks that died before."""
    lineage: Lineage | None = None
    """The log in which one of them has joined last, as this process knows it; None: none has."""
    seen: SeenLog | None = None
    """This log, if another process has joined in it."""


class _Outdated(Exception):
    """The log was restored from a copy: what the consumer holds is of the time before."""


class FlowTask:
    """A task.  `run` belongs to one thread; others may read `counts` and `batch_ms`."""

    def __init__(
        self,
        journal: Journal,
        options: FlowOptions,
        number: int,
        stopping: Event,
        member: Incarnation | None = None,
        renew: Callable[[], Incarnation] | None = None,
    ) -> None:
        """
        member:  without a coordinator; None: it takes the place of any older task of its number.
        renew:   the process that has joined for this task does so again, after a restore.
        """
        self.counts = TaskCounts()
        self.batch_ms: deque[float] = deque(maxlen=TIMES_KEPT)
        """How long the last batches took, from the end of the poll to the end of the commit."""
        self.is_replaced = False
        """True before it is stopped: its entry stays in the group, and tells its successor from other processes."""
        self._committing = threading.Lock()
        """Held from a commit until it is counted."""
        self._seen = journal.state
        """A state that is not newer than the records of the batch."""
        self._journal = journal
        self._clock = journal.context.clock
        self._options = options
        self._number = number
        self._stopping = stopping
        self._function = BatchFunction(journal, options)
        self._producer = PlainProducer(journal)
        self._consumer: Consumer | None = None
        self._member = Incarnation(new_member(journal, "flow")) if member is None else member
        self._renew = renew
        self._lineage: Lineage | None = None
        """The log in which this membership began; None: it has no partitions yet."""
        self._topics: dict[str, str] = {}
        """Ids of the source topics that it has read, by name."""
        self._committed: dict[TopicPartition, int] = {}
        self._new: dict[TopicPartition, int] = {}
        """Starts of partitions in which the group has no position yet."""
        self._in_use_ms = self._clock.monotonic_ms()
        """Since when it has only failed because others hold the group."""
        self._failures = 0
        """In a row."""

    def run(self) -> None:
        """Work until the flow is stopped.  Raises the error that ends the flow."""
        try:
            while not self._stopping.is_set():
                self._attempt(self._work)
        finally:
            if not (self.is_replaced and self._is_alone):
                self._leave()

    def join(self) -> Incarnation:
        """Take the place of any older task of this number, for tasks in other processes that get the result."""
        while self._is_alone and self._member.lineage is None and not self._stopping.is_set():
            self._attempt(self._take_over)
        return self._member

    def _take_over(self) -> None:
        self._journal.refresh()  # it may have been restored since
        Membership(self._journal, self._options.name, self._session()).join()
        state = self._journal.state
        self._member = self._member._replace(lineage=lineage_of(state), seen=seen_by(self._journal, state))

    def _adopt(self, renew: Callable[[], Incarnation]) -> None:
        """Take over the place in which another process has joined: in the log as it is now."""
        seen, state = self._member.seen, self._journal.refresh()
        if seen is None:
            is_restored = self._is_restored
        else:
            is_restored = seen.history != history_of(state) or is_set_back(self._journal, seen)
        member = renew() if is_restored else self._member
        self._member = member._replace(lineage=lineage_of(self._journal.refresh()), seen=None)

    def settle(self) -> None:
        """Wait until commits that were applied are counted."""
        with self._committing:
            pass

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except _Outdated:
            self._note_restart(RESTORED)
        except SparkLogError as error:
            self._check_retriable(error)
            self._note_restart(RESTORED if isinstance(error, LogRestored) else str(error))
            self._stopping.wait(pause_s(self._failures))
            self._failures += 1

    def _note_restart(self, why: str) -> None:
        if not self._is_alone:
            self._leave()  # others need not wait for it; alone, the log has to know whether it is replaced meanwhile
        logger.warning(
            "flow %s, task %d: continues at the committed positions: %s", self._options.name, self._number, why
        )
        self._count(restarts=1, error=why)

    def _check_retriable(self, error: SparkLogError) -> None:
        """Raises an error after which the flow has to end."""
        if not self._failures or not isinstance(error, GroupInUse):
            self._in_use_ms = self._clock.monotonic_ms()
        if isinstance(error, FunctionFailed | FencedInstanceId):
            raise error
        if isinstance(error, IllegalGeneration):
            with suppress(SparkLogError):  # a restored log may have refused a join that named members of before
                self._journal.refresh()
        if self._is_restored:
            return
        if isinstance(error, IllegalGeneration):
            if error.accepted_loss:
                raise error
            if self._is_alone:
                raise IllegalGeneration(
                    f"flow {self._options.name!r}, task {self._number} of {self._options.tasks}: another process has "
                    "started this flow, or a consumer of its group, and owns the partitions now; without a coordinator, "
                    "the newest one owns them",
                    current=error.current,
                ) from error
        elif isinstance(error, GroupInUse):
            if self._clock.monotonic_ms() - self._in_use_ms > IN_USE_MS:
                raise error
        elif isinstance(error, InvalidRecord):
            if self._failures >= REFUSALS_MAX:
                raise error
        elif not (error.retriable or error.maybe_applied or isinstance(error, WrongRoot | LogRestored)):
            raise error  # but it waits for a disk that is not mounted, and until a restored log is as long as before

    @property
    def _is_restored(self) -> bool:
        """Whether the log is another one than that in which this task has last been a member."""
        return self._member.lineage not in (None, lineage_of(self._journal.state))

    @property
    def _is_alone(self) -> bool:
        return not self._journal.context.served

    # ----------------------------------------------------------------------------------------------------- one membership

    def _work(self) -> None:
        self._lineage, self._committed, self._new = None, {}, {}
        if self._renew is not None and self._is_alone:
            self._adopt(self._renew)
        options, local = self._options, self._journal.metadata.local
        session = self._session() if self._is_alone else None
        consumer = Consumer(
            self._journal, session=session, stop=self._stopping, **options.consumer_settings(local=local)
        )
        consumer.subscribe(options.topics, options.pattern, listener=self)
        self._consumer = consumer
        while not self._stopping.is_set():
            self._step(consumer)
            self._failures = 0

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with suppress(SparkLogError):
                consumer.close(autocommit=False)

    def _session(self) -> SessionRequest:
        """The share of this task.  A newer task of its number takes it immediately, because it has the same token.

        An older one does not take it back: after its first join, it only joins again if it has not been replaced.
        """
        share = Share(self._number, self._options.tasks)
        member = self._member
        former = () if self._is_restored or member.lineage is None else (*member.former, member.id)
        return SessionRequest(
            f"flow {self._number}", f"a flow, task {share}", SHARE_SESSION_MS, share, member.id, former
        )

    def _step(self, consumer: Consumer) -> None:
        if self._function.state is not None:
            self._function.state.discard()  # also of a batch that was refused: the next commit may have no records
        self._seen = self._journal.state
        try:
            table = consumer.poll_arrow(POLL_MS)
        except OffsetOutOfRange as error:
            raise self._removed(error) from error
        if self._lineage not in (None, consumer.lineage):
            raise _Outdated
        try:
            if self._new:
                self._commit(consumer, self._new)
                self._new = {}
            if table.num_rows:
                self._process(consumer, table)
            else:
                self._commit_passed(consumer)
        except RebalanceInProgress as error:
            if error.maybe_applied:
                raise
            self._rewind(consumer, table)

    def _process(self, consumer: Consumer, table: pa.Table) -> None:
        began_ms, failed = self._clock.monotonic_ms(), self._function.failed
        ends = {tp: consumer.position(tp) for tp in _starts(table)}
        rows = self._function(table)
        with self._committing:
            self._commit(consumer, ends, rows, self._basis(ends))
            self.batch_ms.append(self._clock.monotonic_ms() - began_ms)
            self._count(
                records_in=table.num_rows,
                records_out=sum(batch.num_rows for batch in rows),
                bad_records=self._function.failed - failed,
                batches=1,
                lookup_records=self._function.lookup_records,
                state_keys=0 if self._function.state is None else len(self._function.state),
            )

    def _basis(self, batch: Iterable[TopicPartition]) -> ReadBasis:
        """The log as the function has read it: erased records and older state do not come back by its outputs."""
        ids = {self._topics[tp.topic] for tp in batch}
        return self._function.basis({topic_id: erased_at(self._seen, topic_id) for topic_id in ids})

    def _commit_passed(self, consumer: Consumer) -> None:
        """Commit positions behind offsets without a record."""
        passed = {tp: at.offset for tp, at in consumer.returned().items() if self._committed.get(tp) != at.offset}
        if passed:
            self._commit(consumer, passed)

    def _commit(
        self,
        consumer: Consumer,
        ends: Mapping[TopicPartition, int],
        rows: Sequence[TopicRows] = (),
        basis: ReadBasis = NO_BASIS,
    ) -> None:
        """Commit outputs with the positions behind their inputs."""
        journal, began, by = self._journal, self._journal.recent(), consumer.committer()
        uploader = Uploader(
            journal.roots.own,
            began.version,
            journal.context.random(),
            replicas=replica_puts(journal),
            lineage=self._lineage or BEGINNING,
            tag=journal.context.tag,
        )
        try:
            for batch in rows:
                uploader.add(batch)
            uploaded = uploader.finish()
        finally:
            uploader.close()
        named = () if by is None else ((self._options.name, by),)
        state = self._function.state
        text = "" if state is None else state.position_text
        positions = consumer.group_commit({tp: OffsetAndMetadata(offset, text) for tp, offset in ends.items()})
        committed = self._producer.commit(began.version, [uploaded], [positions], by=named, basis=basis)
        if state is not None:
            state.applied(committed)
        self._committed.update(ends)

    def _rewind(self, consumer: Consumer, table: pa.Table) -> None:
        """Read a batch again that was not committed; partitions that others own by then are left to them."""
        assigned = consumer.assignment()
        for tp, offset in _starts(table).items():
            if tp in assigned:
                consumer.seek(tp, offset)

    def _count(self, *, error: str = "", **more: int) -> None:
        self.counts = self.counts.plus(TaskCounts(error=error, **more))

    # -------------------------------------------------------------------------------------------------- by the consumer

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Begin at the committed positions of the newest state: the last owner may have committed since the poll."""
        consumer, name = self._consumer, self._options.name
        assert consumer is not None, "it polls"
        if self._lineage is None:
            self._lineage = consumer.lineage
            self._member = self._member._replace(lineage=consumer.lineage)
        state = self._seen = self._journal.require({tp.topic for tp in partitions}, [name])
        offsets = state.groups.get(name, GroupState()).offsets
        for tp in partitions:
            topic_id = state.names.get(tp.topic, "")
            if self._topics.setdefault(tp.topic, topic_id) != topic_id or not topic_id:
                raise self._gone(tp)
            committed = offsets.get((topic_id, tp.partition))
            if committed is None:
                self._new[tp] = state.partitions[topic_id, tp.partition].start
            else:
                self._committed[tp] = committed.offset
            consumer.seek(tp, self._new[tp] if committed is None else committed.offset)
        if self._function.state is not None:
            self._function.state.begin()
            self._function.state.keep({tp.partition for tp in (*consumer.assignment(), *partitions)})

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Raises UnknownTopicOrPartition if it is because a topic was deleted."""
        self.on_partitions_lost(partitions)
        names = self._journal.state.names
        for tp in partitions:
            if self._consumer is not None and names.get(tp.topic) != self._topics.get(tp.topic):
                raise self._gone(tp)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Forget them; their positions are in the log."""
        for tp in partitions:
            self._committed.pop(tp, None)
            self._new.pop(tp, None)

    def _removed(self, error: OffsetOutOfRange) -> OffsetOutOfRange:
        """The error with the command by which the flow continues without the records, in that partition only."""
        state, begun = self._journal.state, {**self._new, **self._committed}
        starts = {tp: state.partitions[state.names[tp.topic], tp.partition].start for tp in begun}
        for tp, at in begun.items():
            if at < starts[tp]:
                return OffsetOutOfRange(
                    f"flow {self._options.name!r}: records {at} to {starts[tp] - 1} of {tp.topic}-{tp.partition} were "
                    "removed before the flow had processed them. To continue without them, stop the flow, and then: pylog "
                    f"group seek {self._options.name} --topic {tp.topic}:{tp.partition} --to earliest",
                    start=error.start,
                    end=error.end,
                )
        return error

    def _gone(self, tp: TopicPartition) -> UnknownTopicOrPartition:
        again = tp.topic in self._journal.state.names
        return UnknownTopicOrPartition(
            f"flow {self._options.name!r}: source topic {tp.topic!r} was deleted{' and created again' if again else ''} "
            "while the flow was running, and records that it had not processed are lost. Start the flow again to "
            + ("read the new topic from its first record" if again else "continue without them")
        )


def pause_s(failures: int) -> float:
    """The pause after so many failures in a row, which may be those of a day."""
    return BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]


def _starts(table: pa.Table) -> dict[TopicPartition, int]:
    """The first offset of each partition in a polled table, each batch of which is of one partition."""
    starts: dict[TopicPartition, int] = {}
    for batch in table.to_batches():
        if batch.num_rows:
            topic, partition, offset = (batch.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
            starts.setdefault(TopicPartition(topic, partition), offset)
    return starts
