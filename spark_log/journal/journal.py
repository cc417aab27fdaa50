"""The metadata of a log in one process: opens it, refreshes it, and changes it by proposals.

The threads of a process share a view of a metadata log (`metadata_log.py`): here are their locks, their queue, their
deadlines, and the link to a coordinator.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from spark_log.clock import Clock, SystemClock
from spark_log.errors import (
    AuthenticationFailed,
    CommitUnknown,
    CoordinatorNotAvailable,
    CorruptObject,
    InconsistentClusterId,
    InvalidRequest,
    LogRestored,
    NotCoordinator,
    SparkLogError,
    StorageError,
    StorageUnavailable,
)
from spark_log.journal.fork_safety import renew_after_fork
from spark_log.journal.metadata_log import MetadataLog, View, decided
from spark_log.journal.proposal import Context, Proposal, is_led_elsewhere, unanswered
from spark_log.journal.storage_log import open_storage_log
from spark_log.journal.store_operations import (
    OWN_ROOT,
    Link,
    Steps,
    Stores,
    beside,
    run,
)
from spark_log.journal.upkeep import seal_and_expire
from spark_log.journal.upkeep_limits import LIMITS, StepLimits
from spark_log.metadata.decide.coordinators import decide_release, decide_take_over
from spark_log.metadata.decide.decision import Decision
from spark_log.metadata.state import State
from spark_log.settings import cluster_config
from spark_log.store.base import ObjectStore
from spark_log.store.retry import answer_until, with_retries, with_retries_for
from spark_log.threads import SYSTEM_THREADS, Threads

HEAR_MS_MAX = 5000
"""Maximum time of one request to a coordinator for changes: the caller has other work."""
AWAY_MS = 250
"""Wait for an unreachable coordinator before the storage is read instead."""
UPKEEP_RETRY_MS = 10_000
"""Minimum time before a later commit retries failed upkeep."""
LATE_S, LATE_TRIES = 2.0, 20
"""A change past its deadline waits this much longer if another thread is about to learn its outcome."""

Result = TypeVar("Result")
logger = logging.getLogger("spark_log")


class Journal:
    """The metadata of one log.  Thread-safe; concurrent proposals share one put."""

    def __init__(self, metadata_log: MetadataLog[Any], stores: Stores, link: Link | None = None) -> None:
        self.metadata_log = metadata_log
        self.stores = stores
        self.link = link
        self.cluster_id = metadata_log.cluster_id
        self.after_fork()
        renew_after_fork(self)
        self._view: View = self.run(metadata_log.open())
        self._upkeep_from = 0
        """Time on the monotonic clock before which no upkeep runs."""

    def after_fork(self) -> None:
        """Creates new locks; proposals that the parent's threads had queued stay with the parent."""
        threads = self.context.threads
        self._lock = threads.reentrant_lock()
        """Held during a change, which may take long if it waits for a coordinator."""
        self._reading = threads.lock()
        """Held during a read of new records: one reader reads for all."""
        self._installing = threads.lock()
        self._queue: list[Proposal] = []
        self._queue_lock = threads.lock()
        self._keeping = threads.lock()

    @classmethod
    def open(
        cls,
        metadata: ObjectStore,
        objects: ObjectStore | None = None,
        *,
        create: bool,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        link: Link | None = None,
        served: bool = False,
        limits: StepLimits = LIMITS,
        threads: Threads = SYSTEM_THREADS,
    ) -> Journal:
        """Open the log whose metadata is in `metadata`, or create one there if `create`.

        objects: the store of its records; None: also `metadata`.
        link:    connects to the coordinator of the log, if it has one.
        served:  all changes go through a coordinator.
        limits:  bounds of the log's upkeep.
        Raises NoLog if there is none and `create` is False, UnsupportedVersion for a newer format, another kind of
        file or a lost `meta/format`, StoreNotExclusive if the storage cannot hold a log.
        """
        context = Context(
            clock or SystemClock(), rng or random.SystemRandom(), served=served, limits=limits, threads=threads
        )
        metadata = with_retries(metadata, context.clock, context.random())
        if objects is not None:
            objects = with_retries(objects, context.clock, context.random())
        stores = Stores.of(metadata, objects)
        return cls(open_storage_log(stores, context, create=create), stores, link)

    @property
    def context(self) -> Context:
        """The environment of this process."""
        return self.metadata_log.context

    @property
    def metadata(self) -> ObjectStore:
        """The store of the metadata log."""
        return self.stores.metadata

    @property
    def objects(self) -> ObjectStore:
        """The store of the records: the log's own root."""
        return self.stores.objects[OWN_ROOT]

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol on this log's stores."""
        return run(steps, self.stores, self.context.clock, self.link)

    def refresh_if_there(self) -> bool:
        """`refresh`, and in the same round whether the log still exists; False if it was deleted or replaced: then this
        journal must not be used any more.

        Raises LogRestored if an older copy of this log was restored.
        """
        try:
            _, is_there = self.refresh_beside(self.metadata_log.is_still_there())
        except (CorruptObject, LogRestored):
            if self.run(self.metadata_log.is_still_there()):
                raise
            return False
        return is_there

    @property
    def state(self) -> State:
        """The newest state in this process."""
        return self._view.state

    def state_at(self, version: int) -> State | None:
        """The state at a recent version; None if it cannot be rebuilt any more."""
        state = self.state
        return state if state.version == version else self.run(self.metadata_log.state_at(version))

    def refresh(self, deadline_ms: int | None = None) -> State:
        """The state at the end of the log.

        deadline_ms:  on the monotonic clock, for a bucket.  Raises StorageUnavailable then.
        """
        if deadline_ms is not None and not self.metadata.local:
            return answer_until(deadline_ms, self.context.clock, self.metadata.url, self.refresh)
        with self._reading:
            known = self._view
            self._install(self.run(self.metadata_log.refresh(known)), known)
        return self._view.state

    def recent(self, deadline_ms: int | None = None) -> State:
        """The newest state in this process, refreshed if it is old.

        Under an old state, an upload or a producer would begin at or below the fence.

        deadline_ms:  as in `refresh`.
        """
        state = self.state
        age = cluster_config(state.configs, "gc.fence.age.ms")
        return self.refresh(deadline_ms) if abs(self.context.clock.now_ms() - state.time) > age // 4 else state

    def refresh_beside(self, steps: Steps[Result]) -> tuple[State, Result]:
        """`refresh`, and other reads in the same rounds of requests."""
        with self._reading:
            known = self._view
            view, result = self.run(beside(self.metadata_log.refresh(known), steps))
            self._install(view, known)
        return self._view.state, result

    def _install(self, view: View, known: View) -> None:
        """Install a view that follows `known`.  Readers and changes do not wait for each other.

        If another thread has installed a view meanwhile, the newer one is kept.
        """
        with self._installing:
            now = self._view
            follows = now is known and view.state.version >= known.state.version
            self._view = view if follows else self.metadata_log.newer(view, now)

    def poll(self) -> State:
        """Like `refresh`, for a waiting reader: one get if nothing happened, or one request to the coordinator."""
        return self._hear(0) if self._is_told() else self._look()

    def wait(
        self,
        look_ms: float,
        timeout_ms: float,
        clock: Clock | None = None,
        group: str = "",
        topics: Sequence[str] | None = None,
    ) -> State:
        """Wait for a change.  A coordinator reports one immediately; a storage is polled after `look_ms`.

        clock:  the caller's clock, if it is not the journal's: the time must pass on the clock that the caller reads.
        group:  a coordinator also reports the start of a rebalance of this group.
        topics: ids; a coordinator does not report records of other topics before the time is over.
        """
        if self._is_told():
            return self._hear(int(min(timeout_ms, HEAR_MS_MAX)), group, topics)
        (clock or self.context.clock).sleep_ms(look_ms)
        return self._look()

    def _is_told(self) -> bool:
        return self.link is not None and is_led_elsewhere(self._view.state, self.context)

    def _hear(self, wait_ms: int, group: str = "", topics: Sequence[str] | None = None) -> State:
        """Ask the coordinator for changes; the lock is not held meanwhile."""
        known = self._view.state
        assert self.link is not None, "only a link reports changes"
        try:
            changes = self.link.changes(known.coordinator, known.version, wait_ms, group, topics)
        except (CoordinatorNotAvailable, NotCoordinator, AuthenticationFailed, InconsistentClusterId, InvalidRequest):
            # A client that may read the storage may read the log, even if the coordinator rejects it or requires TLS.
            self.context.clock.sleep_ms(min(wait_ms, AWAY_MS))
            return self._look()
        if changes.version > known.version:
            with self._reading:
                view = self._view
                if view.state.version == known.version:
                    self._install(self.run(self.metadata_log.follow(view, changes)), view)
        return self._view.state

    def _look(self) -> State:
        with self._reading:
            known = self._view
            view = self.run(self.metadata_log.look(known))
            if view is not known:
                self._install(view, known)
        return self._view.state

    def propose(
        self,
        decide: Callable[[State, int], Decision[Result]],
        deadline_ms: int | None = None,
        *,
        upkeep: bool = True,
    ) -> Result:
        """Apply a decision: when this returns its reply, the change is durable.

        deadline_ms:  on the monotonic clock, limits the wait for a coordinator; None: `patience_ms` of the context.
        upkeep:       run `upkeep_after_commit` afterwards; a caller with waiting threads calls it after releasing them.
        Raises the decision's errors, CommitUnknown if the storage failed and the change may have been applied.
        """
        command = Proposal(decide, deadline_ms=self._deadline_ms() if deadline_ms is None else deadline_ms)
        with self._queue_lock:
            self._queue.append(command)
        if self._has_turn(command):
            try:
                if not command.done:
                    self._propose_queued()
            finally:
                self._lock.release()
        if upkeep:
            self.upkeep_after_commit()
        if command.error is not None:
            raise command.error
        return command.reply

    def _deadline_ms(self) -> int | None:
        """The deadline of a change without one: it waits for a coordinator no longer than the changes before it."""
        return self.context.clock.monotonic_ms() + self.context.patience_ms if self._is_told() else None

    def _has_turn(self, command: Proposal) -> bool:
        """Wait for the lock, and take it.  False: another thread has applied the command.

        The thread with the lock may wait for a coordinator or a bucket, and have a later deadline than this command.
        Raises CoordinatorNotAvailable, StorageUnavailable or CommitUnknown at the deadline.
        """
        if command.deadline_ms is None:
            return self._lock.acquire()
        left = command.deadline_ms - self.context.clock.monotonic_ms()
        if self._lock.acquire(timeout=max(left, 0) / 1000):
            return True
        late = self._late()
        with self._queue_lock:
            unsent = any(one is command for one in self._queue)
            self._queue = [one for one in self._queue if one is not command]
        if unsent:
            raise late
        # Another thread took it along, and gives up at this deadline unless it is waiting for an answer.
        for _ in range(LATE_TRIES):
            if command.done:
                return False
            if self._lock.acquire(timeout=LATE_S / LATE_TRIES):
                return True
        raise unanswered(late, sent=True)

    def _late(self) -> SparkLogError:
        why = "other changes of this process wait for its answer"
        if self._is_told():
            return CoordinatorNotAvailable(f"{self._view.state.coordinator.address}: {why}")
        return StorageUnavailable(f"{self.metadata.url}: {why}")

    def _propose_queued(self) -> None:
        with self._queue_lock:
            commands, self._queue = self._queue, []
        self.carry_out(commands)

    def carry_out(self, commands: list[Proposal]) -> None:
        """Apply commands together; afterwards each has its reply or its error."""
        with self._lock:
            self._carry_out(commands)

    def _carry_out(self, commands: list[Proposal]) -> None:
        try:
            known = self._view
            steps = self.metadata_log.propose(known, commands)
            self._install(run(steps, self._stores_for(commands), self.context.clock, self.link), known)
        except SparkLogError as error:
            failed: SparkLogError = error
            if isinstance(error, StorageError) and error.maybe_applied:
                failed = CommitUnknown(f"the storage failed during a change, which may have been applied: {error}")
                failed.__cause__ = error
            elif isinstance(error, CoordinatorNotAvailable | NotCoordinator) and error.maybe_applied:
                failed = unanswered(error, sent=True)
            _fail(commands, failed)
            return
        except BaseException as error:
            # An interrupt, or a bug: threads that wait for other commands must not take them for applied.
            _fail(commands, CommitUnknown(f"a change was interrupted by {error!r} and may have been applied"))
            raise

    def _stores_for(self, commands: Sequence[Proposal]) -> Stores:
        """The stores, the metadata's limited to the latest deadline of the commands."""
        ends = [command.deadline_ms for command in commands if command.deadline_ms is not None]
        if not ends or len(ends) < len(commands):
            return self.stores
        left_ms = max(ends) - self.context.clock.monotonic_ms()
        return self.stores._replace(metadata=with_retries_for(self.metadata, self.context.clock, left_ms))

    # ------------------------------------------------------------------------------------------------- as a coordinator

    def take_over(self, expected: int, address: str, host: str) -> int:
        """Become the log's coordinator after epoch `expected`; returns the new epoch.

        Raises NotCoordinator if another process was faster.
        """
        cluster = self.cluster_id
        take = Proposal(lambda state, now: decide_take_over(state, expected, address, host, cluster), takes_over=True)
        with self._lock:
            before = self.context
            self.metadata_log.context = replace(before, epoch=expected + 1)
            self._carry_out([take])
            if take.error is not None:
                self.metadata_log.context = before
                raise take.error
        return expected + 1

    def release(self, epoch: int) -> bool:
        """Release the log to embedded writers; False if it is not led under that epoch, or the one before."""
        release = Proposal(lambda state, now: decide_release(state, epoch), takes_over=True, releases=True)
        self.carry_out([release])
        if release.error is not None:
            raise release.error
        return bool(release.reply)

    # ------------------------------------------------------------------------------------------------------------ upkeep

    def upkeep_after_commit(self) -> None:
        """Run upkeep after a change if it is due and no other thread runs it."""
        if self.metadata_log.is_due(self._view) and not is_led_elsewhere(self._view.state, self.context):
            self._try_upkeep()

    def run_upkeep(self) -> None:
        """Seal, prune and checkpoint if it is due."""
        self.poll()
        if self.metadata_log.is_due(self._view):
            self._try_upkeep()

    def _try_upkeep(self) -> None:
        """Run upkeep after the acknowledgement: an error is logged, never raised, and a later commit retries.

        Only steps that change the log block other threads' commits; the first thread to arrive runs upkeep.
        """
        now = self.context.clock.monotonic_ms()
        if now < self._upkeep_from or not self._keeping.acquire(blocking=False):
            return
        self._upkeep_from = now + UPKEEP_RETRY_MS
        try:
            self._do_upkeep()
            self._upkeep_from = 0
        except SparkLogError as error:
            logger.warning("upkeep of %s was put off: %s", self.metadata.url, error)
        except Exception:
            logger.exception("upkeep of %s failed; a later commit retries", self.metadata.url)
        finally:
            self._keeping.release()

    def _do_upkeep(self) -> None:
        known = self._view
        self._install(self.run(self.metadata_log.look_again(known)), known)
        if not self.metadata_log.is_due(self._view):
            return  # another process has done it
        with self._lock:
            known = self._view
            view, _ = self.run(decided(self.metadata_log, known, seal_and_expire(known.state, self.context)))
            self._install(view, known)
        self._install(self.run(self.metadata_log.checkpoint_and_truncate(view, known.state.fence)), view)


def _fail(commands: list[Proposal], error: SparkLogError) -> None:
    for command in commands:
        if not command.done:
            command.error, command.done = error, True
