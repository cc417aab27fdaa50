"""Proposals of the threads of a process: the thread that has the turn carries out those of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from spark_log.errors import (
    CommitUnknown,
    CoordinatorNotAvailable,
    NotCoordinator,
    SparkLogError,
    StorageError,
    StorageUnavailable,
)
from spark_log.journal.context import Proposal, unanswered
from spark_log.journal.store_operations import Stores
from spark_log.runtime.clock import Clock
from spark_log.runtime.threads import Threads
from spark_log.store.retry import with_retries_for

LATE_S, LATE_TRIES = 2.0, 20
"""A change past its deadline waits this much longer if another thread is about to learn its outcome."""


class ProposalQueue:
    """Proposals that wait while another thread has the turn; the next batch has all of them."""

    def __init__(self, threads: Threads, clock: Clock) -> None:
        self.turn = threads.reentrant_lock()
        """Held during a change, which may take long if it waits for a coordinator."""
        self.waiting: list[Proposal] = []
        self._lock = threads.lock()
        self._clock = clock

    def add(self, proposal: Proposal) -> None:
        with self._lock:
            self.waiting.append(proposal)

    def take(self) -> list[Proposal]:
        """All that wait.  The caller has the turn."""
        with self._lock:
            taken, self.waiting = self.waiting, []
        return taken

    def wait_for_turn(self, proposal: Proposal, late: Callable[[], SparkLogError]) -> bool:
        """Take the turn.  False: another thread has carried out the proposal.

        The thread that has the turn may wait for a coordinator or a bucket, and have a later deadline than this
        proposal.

        late:  the error of a proposal that was not sent before its deadline.
        Raises this error, or CommitUnknown if the proposal was sent.
        """
        if proposal.deadline_ms is None:
            return self.turn.acquire()
        left = proposal.deadline_ms - self._clock.monotonic_ms()
        if self.turn.acquire(timeout=max(left, 0) / 1000):
            return True
        error = late()
        with self._lock:
            unsent = any(one is proposal for one in self.waiting)
            self.waiting = [one for one in self.waiting if one is not proposal]
        if unsent:
            raise error
        # Another thread took it along, and gives up at this deadline unless it is waiting for an answer.
        for _ in range(LATE_TRIES):
            if proposal.done:
                return False
            if self.turn.acquire(timeout=LATE_S / LATE_TRIES):
                return True
        raise unanswered(error, sent=True)


def stores_until(stores: Stores, proposals: Sequence[Proposal], clock: Clock) -> Stores:
    """The stores, the metadata's limited to the latest deadline of the proposals."""
    ends = [proposal.deadline_ms for proposal in proposals if proposal.deadline_ms is not None]
    if not ends or len(ends) < len(proposals):
        return stores
    left_ms = max(ends) - clock.monotonic_ms()
    return stores._replace(metadata=with_retries_for(stores.metadata, clock, left_ms))


def late_error(leader: str | None, url: str) -> SparkLogError:
    """The error of a proposal that was not sent before its deadline.

    leader:  address of the coordinator to which changes are sent; None: they are written to `url`.
    """
    why = "other changes of this process wait for its answer"
    return CoordinatorNotAvailable(f"{leader}: {why}") if leader is not None else StorageUnavailable(f"{url}: {why}")


def failure_of(error: SparkLogError) -> SparkLogError:
    """The error of proposals that ended with `error`: CommitUnknown if they may have been applied."""
    if isinstance(error, StorageError) and error.maybe_applied:
        unknown = CommitUnknown(f"the storage failed during a change, which may have been applied: {error}")
        unknown.__cause__ = error
        return unknown
    if isinstance(error, CoordinatorNotAvailable | NotCoordinator) and error.maybe_applied:
        return unanswered(error, sent=True)
    return error


def fail(proposals: Iterable[Proposal], error: SparkLogError) -> None:
    """Set the error of those that have no outcome."""
    for proposal in proposals:
        if not proposal.done:
            proposal.error, proposal.done = error, True
