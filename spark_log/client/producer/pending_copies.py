"""Copies of the objects of pending commits, from a root that has them to in-sync replicas that do not.

A writer with acks=1 copies in the background (`copy_in_background`).  One with acks=all whose commit is behind pending
ones copies what these lack, and waits until readers see its commit (`await_visible`).  The replicator copies the same
objects; a copy that is there already is only looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from spark_log.configs.settings import cluster_config
from spark_log.errors import (
    CommitUnknown,
    ConcurrentChange,
    CoordinatorNotAvailable,
    NotCoordinator,
    RequestTimedOut,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.commits.pending_commits import LackingObject
from spark_log.metadata.lines import plan_of
from spark_log.metadata.records import Copy
from spark_log.metadata.replicas.replica_commands import AddPendingCopies
from spark_log.metadata.replicas.replicas import is_active, is_current
from spark_log.metadata.state import State
from spark_log.model import Placed
from spark_log.roots.replica_puts import copy_missing, look_for
from spark_log.runtime.fork_safety import renew_after_fork
from spark_log.runtime.threads import SYSTEM_THREADS, Thread, at_exit

PARALLEL = 4
"""Objects that are copied at a time."""
BACKOFF_MS, BACKOFF_MS_MAX = 100, 2_000
LOOK_MS = 5_000
"""How long a root that copies are made from may take to answer before a replica is said to be late."""
EXIT_MS = 10_000
"""How long the end of a process, or of a command, waits for copies."""


def await_visible(journal: Journal, committed: Committed, again: Callable[[], Committed], until_ms: float) -> Committed:
    """Wait until readers see a commit with acks=all, and make the copies that it waits for.

    While the log does not answer, the wait continues.

    again:     repeats the commit under the same identity, and returns its result in the newest state.
    until_ms:  deadline on the monotonic clock.
    Raises RequestTimedOut.  All errors have `maybe_applied` set, because the commit is in the log, and becomes visible
    later.
    """
    clock, wait = journal.context.clock, BACKOFF_MS
    while committed.pending:
        if not _copied_some(journal, committed.lacking, until_ms):
            clock.sleep_ms(wait)
            wait = min(2 * wait, BACKOFF_MS_MAX)
        try:
            journal.refresh(round(until_ms))
            now = again()
            committed = committed._replace(pending=now.pending, lacking=now.lacking) if now.repeated else now
        except (StorageUnavailable, CoordinatorNotAvailable, NotCoordinator, CommitUnknown, ConcurrentChange) as error:
            logger.info("whether readers see a commit is asked again: %s", error)
        except SparkLogError as error:
            error.maybe_applied = True
            raise
        if committed.pending and clock.monotonic_ms() >= until_ms:
            raise _late(committed)
    return committed


def _copied_some(journal: Journal, lacking: Sequence[LackingObject], until_ms: float) -> bool:
    """Copy what a commit waits for, and say so in the log; whether something of it succeeded."""
    history = plan_of(journal.newest)
    made = copied(journal, lacking, until_ms)
    with suppress(SparkLogError):  # the replicator records copies, too
        return bool(made) and bool(journal.propose(AddPendingCopies(copies=made, history=history)))
    return False


def _late(committed: Committed) -> RequestTimedOut:
    error = RequestTimedOut(
        f"the commit is in the log (version {committed.version}), but readers do not see it yet: earlier commits of the "
        "same partitions with acks=0 or 1 are not on all in-sync replicas: `pylog topic describe` shows these"
    )
    error.maybe_applied = True
    return error


def copied(journal: Journal, lacking: Sequence[LackingObject], until_ms: float) -> tuple[Copy, ...]:
    """Copy objects to the replicas that lack them, as far as their roots answer."""
    if not lacking:
        return ()
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="pylog-copies") as pool:
        return tuple(copy for some in pool.map(lambda one: _copied(journal, one, until_ms), lacking) for copy in some)


def _copied(journal: Journal, one: LackingObject, until_ms: float) -> list[Copy]:
    where = Placed(one.group, one.held)
    with suppress(SparkLogError, OSError):
        where = copy_missing(journal.roots, one.name, one.size, where, one.lacking, journal.context.clock, until_ms)
    return [Copy(one.name, *replica) for replica in where.held if replica in one.lacking]


def from_answering(journal: Journal, some: Iterable[LackingObject]) -> list[LackingObject]:
    """For each replica that lacks some, the first of these that is on a root which answers; that a replica lacks others
    is not its fault.

    Each is looked for: one that is not where the log says does not speak for the others.
    """
    clock, silent, judged = journal.context.clock, set[int](), set[tuple[int, int]]()
    found = list[LackingObject]()
    for one in some:
        replicas = {(one.group, broker) for broker, _ in one.lacking}
        asked = [replica for replica in one.held if replica[0] not in silent]
        if replicas <= judged or not asked:
            continue
        began_ms = clock.monotonic_ms()
        seen = look_for(journal.roots, asked, one.name, one.size, clock, began_ms + LOOK_MS)
        if clock.monotonic_ms() - began_ms >= LOOK_MS:
            silent.update(broker for broker, epoch in asked if (broker, epoch) not in seen)
        if seen:
            found.append(one)
            judged |= replicas
    return found


class WaitingCopy(NamedTuple):
    """An object in the queue."""

    lacking: LackingObject
    since_ms: int

    @property
    def copies(self) -> list[tuple[str, int]]:
        """(object, broker) of the copies that are to be made."""
        return [(self.lacking.name, broker) for broker, _ in self.lacking.lacking]


class _Copier:
    """The background copies of one log."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self._clock = journal, journal.context.clock
        self.waiting: list[WaitingCopy] = []
        self.thread: Thread | None = None

    def run(self) -> None:
        """Until nothing is left."""
        wait = BACKOFF_MS
        while some := _copiers.take(self):
            left = self._copy(some)
            _copiers.add(self.journal, left)
            if left:
                self._clock.sleep_ms(wait)
            wait = min(2 * wait, BACKOFF_MS_MAX) if left else BACKOFF_MS

    def _copy(self, some: Sequence[WaitingCopy]) -> list[WaitingCopy]:
        """Copy, and say so in the log; returns what is to be tried again.

        A replica that could not be copied to for `replica.lag.time.max.ms` leaves the ISR, as in Kafka, unless it is
        the roots with copies that do not answer: then the replicator continues.
        """
        began, state = self._clock.monotonic_ms(), self.journal.newest
        limit_ms, history = int(cluster_config(state.configs, "replica.lag.time.max.ms")), plan_of(state)
        some = list(still_lacking(state, some))
        old = [one for one in some if began - one.since_ms >= limit_ms]
        readable = from_answering(self.journal, [one.lacking for one in old])
        made = copied(self.journal, [one.lacking for one in some], self._clock.monotonic_ms() + EXIT_MS)
        done = {(copy.object, copy.broker) for copy in made}
        missed = [one for one in some if not done.issuperset(one.copies)]
        late = [one for one in old if one in missed and one.lacking in readable]
        try:
            if made:
                self.journal.propose(AddPendingCopies(copies=made, history=history))
            if late:  # alone: a coordinator refuses it to a token that has no access to all topics of the replicas
                named = tuple(copy for one in late for copy in one.copies if copy not in done)
                self.journal.propose(AddPendingCopies(copies=(), late=named, history=history))
        except SparkLogError as error:
            logger.warning("copies of records that were written with acks=1 are not in the log yet: %s", error)
            return [one for one in some if self._clock.monotonic_ms() - one.since_ms < 2 * limit_ms]
        return [one for one in missed if one not in old]


def still_lacking(state: State, some: Iterable[WaitingCopy]) -> Iterator[WaitingCopy]:
    """The objects, without those of their replicas that have since been fenced or have got another root."""
    for one in some:
        known = one.lacking.lacking
        left = tuple(replica for replica in known if is_active(state, replica[0]) and is_current(state, *replica))
        if left:
            yield one if left == known else one._replace(lacking=one.lacking._replace(lacking=left))


class _Copiers:
    """Those of all logs to which this process has written with acks=1, while they have work."""

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The parent copies what it has put."""
        self._lock = SYSTEM_THREADS.lock()
        self._working: dict[Journal, _Copier] = {}

    def add(self, journal: Journal, some: Sequence[WaitingCopy]) -> None:
        if not some:
            return
        with self._lock:
            copier = self._working.setdefault(journal, _Copier(journal))
            copier.waiting += some
            if copier.thread is None:
                copier.thread = journal.context.threads.start(copier.run, "pylog-background-copies")

    def take(self, copier: _Copier) -> list[WaitingCopy]:
        """All that waits for a copier, which ends if that is nothing."""
        with self._lock:
            some, copier.waiting = copier.waiting, []
            if not some and self._working.get(copier.journal) is copier:
                del self._working[copier.journal]
            return some

    def working(self) -> list[_Copier]:
        with self._lock:
            return list(self._working.values())


_copiers = _Copiers()


def copy_in_background(journal: Journal, lacking: Iterable[LackingObject]) -> None:
    """Copy objects of a commit with acks=1, of which this process does not wait for the copies."""
    now = journal.context.clock.monotonic_ms()
    _copiers.add(journal, [WaitingCopy(one, now) for one in lacking])


def wait_for_copies(journal: Journal | None = None, limit_ms: int = EXIT_MS) -> None:
    """Wait for background copies, of one log or of all, before the process ends; the replicator makes the rest."""
    for copier in _copiers.working():
        thread = copier.thread
        if thread is not None and journal in (None, copier.journal):
            thread.join(limit_ms / 1000)


at_exit(wait_for_copies)
