"""Rounds of a producer, and separate pipelines for placement groups that cannot be written to.

Usually one upload and one commit write the records of all partitions.  If the replicas of a group refuse that, the
records of that group go to a pipeline, or those of one partition if earlier records of it are in the way: a queue,
with a separate thread and identity in the log.  The other records are written without delay.  Later records of the same
partitions follow into the pipeline until it is empty, so the order in each partition is kept.  Nothing is written
twice, because records leave a round only after a refusal.

Rounds are delivered one at a time.  A round that was encoded before a pipeline began is encoded again without the
records that go there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_log.client.producer.append import acks_of
from spark_log.client.producer.delivery import BlockedPlace, Delivery, DeliveryAttempt, Held, place_of
from spark_log.client.producer.futures import Ints, SentBatch
from spark_log.errors import (
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotEnoughReplicas,
    RequestTimedOut,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.commits.pending_commits import stuck_partition
from spark_log.metadata.replicas.replicas import min_insync, targets_of
from spark_log.metadata.state import State
from spark_log.model import ACKS_ALL
from spark_log.roots.replica_puts import REPLICAS_BACKOFF_MS, REPLICAS_BACKOFF_MS_MAX
from spark_log.runtime.threads import Thread

DRAIN_MS = 1000
"""How long a round waits for a pipeline that is about to end."""
REFRESH_MS = 10_000
"""How long a pipeline waits for the newest state of the log."""
DELIVERY_BYTES = 32 << 20
"""A pipeline delivers batches of this many bytes together."""


class Owner(NamedTuple):
    """The producer that has pipelines."""

    diverted: Callable[[Sequence[SentBatch]], None]
    """Called when batches go to pipelines."""
    delivered: Callable[[Sequence[SentBatch]], None]
    """Called when the outcome of batches in a pipeline is known."""
    broke: Callable[[BaseException, Sequence[SentBatch]], None]
    """Called when a thread failed with these batches."""


class Pipelines:
    """Delivers the rounds of a producer.  Rounds come from one thread at a time."""

    def __init__(self, journal: Journal, settings: dict[str, Any], owner: Owner) -> None:
        self._journal, self._settings, self._owner = journal, settings, owner
        self._shared = Delivery(journal, settings, self._is_held)
        self._for_all = acks_of(settings["acks"]) == ACKS_ALL
        """Whether writes need `min.insync.replicas`."""
        self._begin()

    def _begin(self) -> None:
        self._lock = self._journal.context.threads.lock()
        self._change = self._journal.context.threads.condition(self._lock)
        self._pipelines: dict[BlockedPlace, _Pipeline] = {}

    def after_fork(self) -> list[SentBatch]:
        """In a child: threads and records belong to the parent.  Returns the records."""
        batches = [batch for one in self._pipelines.values() for batch in one.batches]
        self._begin()
        return batches

    @property
    def batches(self) -> list[SentBatch]:
        """The batches that pipelines have not delivered."""
        with self._lock:
            return [batch for one in self._pipelines.values() for batch in one.batches]

    @property
    def threads(self) -> list[Thread]:
        """The threads of the pipelines."""
        with self._lock:
            return [one.thread for one in self._pipelines.values() if one.thread is not None]

    def begin(self, batches: Sequence[SentBatch]) -> DeliveryAttempt | None:
        """Encode a round.  None: `deliver` encodes it."""
        return self._shared.begin(batches)

    def deliver(self, batches: Sequence[SentBatch], begun: DeliveryAttempt | None) -> None:
        """Write a round, except for records that go to pipelines.  Their batches are split."""
        while batches:
            try:
                self._shared.deliver(batches, begun)
                return
            except Held:
                batches = self._divert(batches)
            except SparkLogError as error:
                place = place_of(error)
                if place is None or not any(_records_of(batch, place).any() for batch in batches):
                    _fail(batches, error)
                    return
                logger.warning("records of placement group %d wait, others do not: %s", place.group, error)
                batches = self._divert(batches, place, error)
            begun = None

    def _is_held(self, batches: Sequence[SentBatch]) -> bool:
        """Whether some records have to go to a pipeline.  One that is about to end is waited for."""
        clock = self._journal.context.clock
        end_ms = clock.monotonic_ms() + DRAIN_MS
        with self._lock:
            while found := [
                one for one in self._pipelines.values() if any(one.takes(batch).any() for batch in batches)
            ]:
                left_ms = end_ms - clock.monotonic_ms()
                if left_ms <= 0 or not all(one.is_ending for one in found):
                    return True
                self._change.wait(left_ms / 1000)
        return False

    def _divert(
        self, batches: Iterable[SentBatch], place: BlockedPlace | None = None, why: SparkLogError | None = None
    ) -> list[SentBatch]:
        """Move records to the pipelines that take them; returns batches of the others.

        place, why:  for what a pipeline begins, and the reason.
        """
        left, moved = list[SentBatch](), list[SentBatch]()
        with self._lock:
            if place is not None and why is not None:
                self._pipelines.setdefault(place, _Pipeline(place)).why = why
            for batch in batches:
                rest, parts = self._share(batch)
                left += rest
                moved += parts
            for one in self._pipelines.values():
                if one.thread is None:
                    one.thread = self._start(one)
        self._owner.diverted(moved)
        return left

    def _share(self, batch: SentBatch) -> tuple[list[SentBatch], list[SentBatch]]:
        """Move records of a batch to pipelines; returns a batch of the others, if any, and those in pipelines.

        Called with the lock held.
        """
        if not batch.count:
            return [], []  # its topic does not exist
        free, parts, pipelines = np.ones(batch.count, bool), [], []
        for one in self._pipelines.values():
            taken = one.takes(batch) & free
            if taken.any():
                free &= ~taken
                parts.append(np.flatnonzero(taken))
                pipelines.append(one)
        if not parts:
            return [batch], []
        rest = np.flatnonzero(free)
        made = batch.split([*parts, rest] if len(rest) else parts)
        for one, at, part in zip(pipelines, parts, made, strict=False):
            assert batch.assignment is not None, "otherwise no pipeline takes its records"
            one.add(part, batch.assignment.topic_id, batch.assignment.partitions[at])
        return made[len(parts) :], made[: len(parts)]

    # ----------------------------------------------------------------------------------------------------- the threads

    def _start(self, pipeline: _Pipeline) -> Thread:
        return self._journal.context.threads.start(
            lambda: self._run(pipeline), f"pylog-producer-{pipeline.place.group}"
        )

    def _run(self, pipeline: _Pipeline) -> None:
        delivery = Delivery(self._journal, self._settings)
        try:
            while self._is_open(pipeline):
                if self._is_writable(pipeline):
                    self._deliver(pipeline, delivery)
                else:
                    self._wait(pipeline, delivery)
        except BaseException as error:
            logger.exception("the producer's thread failed")
            with self._lock:
                left, pipeline.queue = list(pipeline.batches), deque()
                self._end(pipeline)
            self._owner.broke(error, left)

    def _is_open(self, pipeline: _Pipeline) -> bool:
        """Whether the pipeline has records.  Otherwise it ends."""
        with self._lock:
            if not pipeline.queue:
                self._end(pipeline)
            return bool(pipeline.queue)

    def _end(self, pipeline: _Pipeline) -> None:
        if self._pipelines.get(pipeline.place) is pipeline:
            del self._pipelines[pipeline.place]
        self._change.notify_all()

    def _is_writable(self, pipeline: _Pipeline) -> bool:
        """Whether enough replicas are active, so that encoding the records may be worth while."""
        with self._lock:
            topics = {batch.topic for batch in pipeline.queue} if self._for_all else set()
        return can_be_written(self._journal.newest, pipeline.place, topics)

    def _wait(self, pipeline: _Pipeline, delivery: Delivery) -> None:
        """Wait a moment, and fail the batches whose time is over."""
        clock = self._journal.context.clock
        with self._lock:
            late, wait_ms = pipeline.take_late(delivery.left_ms)
            pipeline.is_well = False
            self._change.notify_all()
        if late:
            _fail(late, pipeline.why)
            self._owner.delivered(late)
            return
        clock.sleep_ms(min(pipeline.backoff_ms, wait_ms))
        pipeline.backoff_ms = min(2 * pipeline.backoff_ms, REPLICAS_BACKOFF_MS_MAX)
        with suppress(StorageUnavailable, CoordinatorNotAvailable):
            self._journal.refresh(clock.monotonic_ms() + REFRESH_MS)

    def _deliver(self, pipeline: _Pipeline, delivery: Delivery) -> None:
        with self._lock:
            batches = pipeline.take()
        error: SparkLogError | None = None
        try:
            delivery.deliver(batches, None)
        except SparkLogError as raised:
            error = raised
        left = [batch for batch in batches if batch.count]
        if isinstance(error, RequestTimedOut | LeaderNotAvailable | NotEnoughReplicas) and not error.maybe_applied:
            left = [batch for batch in left if delivery.left_ms(batch) <= 0]  # others are tried again
        if error is not None:
            _fail(left, error)
        with self._lock:
            pipeline.ended(error)
            self._change.notify_all()
        self._owner.delivered([batch for batch in batches if not batch.count])


class _Pipeline:
    """The records of a place that wait for its replicas.  Used with the lock of `Pipelines` held."""

    def __init__(self, place: BlockedPlace) -> None:
        self.place = place
        self.thread: Thread | None = None
        self.queue: deque[SentBatch] = deque()
        self.current: list[SentBatch] = []
        """The batches that are being delivered, which were before those of the queue."""
        self.why: SparkLogError = LeaderNotAvailable("no reason is known")
        """Why the records could not be written."""
        self.is_well = False
        """Whether the last delivery succeeded."""
        self.backoff_ms = REPLICAS_BACKOFF_MS
        self._partitions: dict[str, set[int]] = {}
        """By topic id, the partitions of records that came here: later ones follow, also if their group has changed."""

    @property
    def batches(self) -> list[SentBatch]:
        return [*self.current, *self.queue]

    @property
    def is_ending(self) -> bool:
        return self.is_well and not self.queue

    def takes(self, batch: SentBatch) -> npt.NDArray[np.bool_]:
        """Which records of a batch come here."""
        assignment = batch.assignment
        if assignment is None:
            return np.zeros(batch.count, bool)
        known = self._partitions.get(assignment.topic_id)
        mask = _records_of(batch, self.place)
        return mask | np.isin(assignment.partitions, list(known)) if known else mask

    def add(self, part: SentBatch, topic_id: str, partitions: Ints) -> None:
        """Add records of these partitions, at the end."""
        self.queue.append(part)
        self._partitions.setdefault(topic_id, set()).update(np.unique(partitions).tolist())

    def take(self) -> list[SentBatch]:
        """The first batches of the queue."""
        size = 0
        while self.queue and (not self.current or size + self.queue[0].bytes <= DELIVERY_BYTES):
            size += self.queue[0].bytes
            self.current.append(self.queue.popleft())
        return list(self.current)

    def take_late(self, left_ms: Callable[[SentBatch], int]) -> tuple[list[SentBatch], int]:
        """The batches of the queue whose time is over, and the time until that of another one is."""
        left = [(batch, left_ms(batch)) for batch in self.queue]
        self.queue = deque(batch for batch, ms in left if ms > 0)
        return [batch for batch, ms in left if ms <= 0], min((ms for _, ms in left if ms > 0), default=0)

    def ended(self, error: SparkLogError | None) -> None:
        """A delivery ended.  Batches without an outcome go back to the queue."""
        self.queue.extendleft(reversed([batch for batch in self.current if batch.count]))
        self.current = []
        self.is_well, self.why = error is None, error or self.why
        if error is None:
            self.backoff_ms = REPLICAS_BACKOFF_MS


def can_be_written(state: State, place: BlockedPlace, topics: Iterable[str]) -> bool:
    """Whether enough replicas of a place are active for writes to these topics with acks=all.

    Without topics: whether any other write can be made, which needs the leader.  True for a group that no longer
    exists.
    """
    if place.partition is not None and stuck_partition(state, [place.partition]) is not None:
        return False
    if place.group not in state.placement_groups:
        return True
    known = [topic_id for name in topics if (topic_id := state.names.get(name)) in state.topics]
    least = max((min_insync(state, topic_id) for topic_id in known if topic_id is not None), default=1)
    return len(targets_of(state, place.group).isr) >= least


def _records_of(batch: SentBatch, place: BlockedPlace) -> npt.NDArray[np.bool_]:
    """Which records of a batch are of a place."""
    assignment = batch.assignment
    if assignment is None:
        return np.zeros(batch.count, bool)
    if place.partition is None:
        return assignment.groups == place.group
    topic_id, number = place.partition
    return (assignment.partitions == number) & (assignment.topic_id == topic_id)


def _fail(batches: Sequence[SentBatch], error: SparkLogError) -> None:
    if isinstance(error, StorageUnavailable) and place_of(error) is not None:
        error = RequestTimedOut(f"not written within delivery_timeout_ms: {error}")
    if batches:
        logger.warning("records were not acknowledged: %s", error)
    for batch in batches:
        batch.fail(error)
