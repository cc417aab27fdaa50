"""Copying objects to the root of one broker, several at a time.  Reads no log: executors of a Spark job do it, too.

Roots may hang.  A thread copies one large object, or several small ones in turn, and is left alone if it makes no
progress.  Small ones wait for syncs and for a processor most of the time, so that more are under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_log.errors import SparkLogError
from spark_log.metadata.records import Copy
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.state import ObjectRow
from spark_log.replication.checked_copies import BadCopy, SourceFailed, check_copy, copy_checked
from spark_log.replication.copy_throttle import Pace
from spark_log.replication.hung_threads import hung_threads
from spark_log.roots.broker_roots import Roots
from spark_log.roots.root_owner import check_first_use
from spark_log.runtime.daemon_tasks import Task
from spark_log.runtime.own_failures import is_own
from spark_log.runtime.threads import SYSTEM_THREADS, Threads
from spark_log.store.base import ObjectStore
from spark_log.store.retry import RetryingStore

PARALLEL = {"local": 2, "remote": 8}
"""Objects that are copied to a broker at the same time."""
SMALL_BYTES = 256 << 10
"""The size of a small object."""
SMALL_OBJECTS, SMALL_PARALLEL = 16, 8
"""How many small objects a thread copies, and how many threads copy them at the same time."""
SOURCE_MS = 2_000
"""How long reads of a copy are tried again before another copy is taken."""
STALLED_S = 20.0
"""A copy that makes no progress for so long is given up; so much longer for each `STALLED_BYTES` of the object."""
STALLED_BYTES = 20 << 20
WAIT_S = 0.2


Moved = Callable[[str], None]


class WantedCopy(NamedTuple):
    """An object that a broker lacks.  Sent to tasks."""

    name: str
    row: ObjectRow
    group: int
    """Its placement group."""
    sources: tuple[tuple[int, int], ...]
    """(broker, epoch) of the brokers that may have a copy, in the order in which they are tried."""


@dataclass(slots=True)
class CopiedObjects:
    """The result for some objects.  Sent back by tasks."""

    done: list[tuple[str, int]] = field(default_factory=list)
    """Names and sizes of the copies that were made, and were there afterwards."""
    failed: set[int] = field(default_factory=set)
    """Placement groups of objects that could not be copied."""
    denied: set[str] = field(default_factory=set)
    """Those of which a copy may be on a root that this process cannot read, for its own reasons."""
    bad: list[Copy] = field(default_factory=list)
    """Copies that were read twice and are bad, on roots that are those of their brokers."""
    problems: list[str] = field(default_factory=list)
    stopped: bool = False
    """The broker's root failed: nothing more can be copied to it now."""


class _TargetFailed(Exception):
    """The broker's own root failed."""


@dataclass(slots=True)
class _Job:
    """One object on its way."""

    wanted: WantedCopy
    sources: list[tuple[int, int]]
    """Those that are not yet tried."""
    doing: str = "read"
    source: int = -1
    is_denied: bool = False
    """Whether a root has denied access, or this process is at its limits."""
    bad: list[Copy] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    ended: bool = False
    error: BaseException | None = None
    """Why it was not copied."""


@dataclass(slots=True)
class _Batch:
    """The objects that a thread copies in turn."""

    jobs: list[_Job]
    moved_ms: int
    """When its thread has read or written something."""
    left_alone: bool = False
    """The thread begins no further object: others copy these."""
    task: Task[None] = field(init=False)

    def divided(self) -> tuple[list[_Job], list[_Job]]:
        """The objects that have ended, and the others, of which the first one is being copied."""
        ended = sum(job.ended for job in self.jobs)
        return self.jobs[:ended], self.jobs[ended:]


class ObjectCopying:
    """Copies objects to one broker.  `run` may hang with the broker's root."""

    def __init__(
        self,
        roots: Roots,
        broker: int,
        pace: Pace,
        threads: Threads = SYSTEM_THREADS,
        moved: Moved = lambda doing: None,
    ) -> None:
        """moved:  called when bytes were read or written, with the next step, as by `copy_checked`."""
        self._roots, self._broker, self._pace = roots, broker, pace
        self._clock, self._threads, self._moved = roots.clock, threads, moved
        self._lock = threads.lock()
        self._ended = threads.condition(self._lock)
        """Notified when a copy ends."""
        self._silent: set[int] = set()
        """Brokers whose roots did not answer."""

    def run(self, wanted: Sequence[WantedCopy]) -> CopiedObjects:
        """Copy the objects.  Failures of roots are part of the result."""
        found = CopiedObjects()
        try:
            self._roots.check(self._broker, again=True)
            if self._broker != OWN_BROKER:
                check_first_use(self._roots, self._broker)
            found.done = self._confirmed(self._copy_all(wanted, found))
        except (_TargetFailed, SparkLogError, OSError, KeyError) as error:
            found.stopped = True
            found.problems.append(f"copying to broker {self._broker} stopped: {error}")
        return found

    def _copy_all(self, wanted: Sequence[WantedCopy], found: CopiedObjects) -> list[WantedCopy]:
        """The objects that were copied.  Raises _TargetFailed."""
        target = self._roots[self._broker]
        waiting, copied = [_Job(one, list(one.sources)) for one in reversed(wanted)], list[WantedCopy]()
        running: list[_Batch] = []
        try:
            while waiting or running:
                while waiting and len(running) < _parallel(waiting[-1], target):
                    running.append(self._start(_next_jobs(waiting), target))
                with self._lock:
                    if not any(batch.task.ended for batch in running):
                        self._ended.wait(WAIT_S)
                left: list[_Batch] = []
                for batch in running:
                    has_ended = batch.task.ended
                    ended, rest = batch.divided()
                    if not has_ended and not self._is_stalled(batch, rest):
                        left.append(batch)
                        continue
                    copied += [job.wanted for job in ended if self._succeeded(job, found)]
                    if not has_ended:
                        waiting += self._given_up(batch, rest)
                running = left
        finally:
            for batch in running:  # the broker's root failed
                self._leave_alone(batch, batch.divided()[1])
        return copied

    def _start(self, jobs: list[_Job], target: ObjectStore) -> _Batch:
        if hung_threads.are_many(self._roots, self._broker):
            raise _TargetFailed("its root hangs")
        batch = _Batch(jobs, self._clock.monotonic_ms())
        batch.task = Task(lambda: self._copy_some(batch, target), "pylog-copy", self._threads, self._notify)
        return batch

    def _notify(self) -> None:
        with self._lock:
            self._ended.notify_all()

    def _copy_some(self, batch: _Batch, target: ObjectStore) -> None:
        """Copy objects in turn, until the broker's root fails."""
        for job in batch.jobs:
            if batch.left_alone:
                return
            try:
                self._copy(batch, job, target)
            except BaseException as error:  # noqa: BLE001  judged by the thread that waits
                job.error = error
            job.ended = True
            if job.error is not None and not isinstance(job.error, BadCopy):
                return

    def _copy(self, batch: _Batch, job: _Job, target: ObjectStore) -> None:
        """Copy an object from the first root that has a good copy.  Raises BadCopy if none has."""

        def moved(to: str) -> None:
            job.doing, batch.moved_ms = to, self._clock.monotonic_ms()
            self._moved(to)

        while job.sources:
            job.source, epoch = job.sources[0]
            source = self._source(job)
            try:
                if source is not None:
                    copy_checked(source, target, job.wanted.name, job.wanted.row, self._pace, moved)
                    return
            except SourceFailed as error:
                job.problems.append(f"broker {job.source}: {error}")
                job.is_denied |= is_own(error)
            except BadCopy:
                moved("read")
                self._look_again(job, source, epoch)
            job.sources.pop(0)
        raise BadCopy("; ".join(job.problems) or "no root that can be read has a copy")

    def _source(self, job: _Job) -> ObjectStore | None:
        if job.source in self._silent:
            return None
        try:
            store = self._roots[job.source]
        except KeyError:
            return None
        if hung_threads.are_many(self._roots, job.source):
            job.problems.append(f"broker {job.source}: its root hangs")
            return None
        return RetryingStore(store.inner, self._clock, SOURCE_MS) if isinstance(store, RetryingStore) else store

    def _look_again(self, job: _Job, source: ObjectStore | None, epoch: int) -> None:
        """A copy is bad if a second read finds it bad, and the root is that of its broker."""
        assert source is not None, "it was read"
        try:
            check_copy(source, job.wanted.name, job.wanted.row)
        except BadCopy as error:
            job.problems.append(f"broker {job.source}: {error}")
            try:
                self._roots.check(job.source, again=True)
            except SparkLogError as wrong:
                job.problems.append(str(wrong))
            else:
                job.bad.append(Copy(job.wanted.name, job.source, epoch))
        except SourceFailed as error:
            job.problems.append(f"broker {job.source}: {error}")

    def _succeeded(self, job: _Job, found: CopiedObjects) -> bool:
        found.bad += job.bad
        if isinstance(job.error, BadCopy):
            found.failed.add(job.wanted.group)
            found.denied |= {job.wanted.name} if job.is_denied else set()
            found.problems.append(f"{job.wanted.name} was not copied to broker {self._broker}: {job.error}")
            return False
        if isinstance(job.error, (SparkLogError, OSError, KeyError)):
            raise _TargetFailed(str(job.error)) from job.error
        if job.error is not None:
            raise job.error
        found.problems += [f"{job.wanted.name}: {problem}" for problem in job.problems if job.bad]
        return True

    def _is_stalled(self, batch: _Batch, rest: Sequence[_Job]) -> bool:
        if not rest or rest[0].doing == "wait":
            return False
        allowed_s = STALLED_S * (1 + rest[0].wanted.row.size / STALLED_BYTES)
        return self._clock.monotonic_ms() - batch.moved_ms > allowed_s * 1000

    def _leave_alone(self, batch: _Batch, rest: Sequence[_Job]) -> None:
        """Leave the thread of a batch, which may hang with a root."""
        batch.left_alone = True
        hung_in_write = not rest or rest[0].doing == "write"
        hung_threads.add(self._roots, self._broker if hung_in_write else rest[0].source, batch.task)

    def _given_up(self, batch: _Batch, rest: Sequence[_Job]) -> list[_Job]:
        """The objects that are left of a batch: the first one without the source that does not answer."""
        job = rest[0]
        if job.doing == "write":
            raise _TargetFailed("its root does not answer")
        self._leave_alone(batch, rest)
        self._silent.add(job.source)
        problems = [*job.problems, f"broker {job.source}: its root does not answer"]
        again = _Job(job.wanted, job.sources[1:], bad=job.bad, problems=problems, is_denied=job.is_denied)
        return [*(_Job(one.wanted, list(one.wanted.sources)) for one in reversed(rest[1:])), again]

    def _confirmed(self, copied: Sequence[WantedCopy]) -> list[tuple[str, int]]:
        """Names and sizes of the copies, if all are there and the root is still that of the broker."""
        if not copied:
            return []
        self._roots.check(self._broker, again=True)
        target = self._roots[self._broker]
        if any(target.size(one.name) != one.row.size for one in copied):
            raise _TargetFailed("objects are gone that were just put: was its disk unmounted, or swapped?")
        return [(one.name, one.row.size) for one in copied]


def _is_small(job: _Job) -> bool:
    return job.wanted.row.size <= SMALL_BYTES


def _parallel(job: _Job, target: ObjectStore) -> int:
    """How many threads may copy when the next one begins with an object."""
    return SMALL_PARALLEL if _is_small(job) else PARALLEL["local" if target.local else "remote"]


def _next_jobs(waiting: list[_Job]) -> list[_Job]:
    """Take the objects of the next thread from the end.  Few small ones are divided among all threads."""
    some, number = [waiting.pop()], min(SMALL_OBJECTS, len(waiting) // SMALL_PARALLEL)
    while waiting and len(some) < number and _is_small(some[-1]) and _is_small(waiting[-1]):
        some.append(waiting.pop())
    return some
