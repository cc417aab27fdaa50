"""Copies to one broker: what it lacks, the oldest uploads first, a few objects at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.column_blocks import rows_with_copies
from spark_log.metadata.records import Copy
from spark_log.metadata.replica_commands import AddCopies, RemoveCopies
from spark_log.metadata.replica_state import Copies
from spark_log.metadata.replicas import epoch_of, holders, is_active, lacked
from spark_log.metadata.state import ObjectRow, State
from spark_log.node.checked_copies import BadCopy, Pace, SourceFailed, check_copy, copy_checked
from spark_log.node.daemon_tasks import Task
from spark_log.store.base import ObjectStore
from spark_log.store.retry import RetryingStore

PARALLEL = {"local": 2, "remote": 8}
"""Objects that are copied to a broker at the same time."""
OBJECTS_AT_ONCE, BYTES_AT_ONCE = 256, 256 << 20
"""After about so many, a record says that the broker has them."""
SOURCE_MS = 2_000
"""How long reads of a copy are tried again before another copy is taken."""
STALLED_S = 20.0
"""A copy that makes no progress for so long is given up; so much longer for each `STALLED_BYTES` of the object."""
STALLED_BYTES = 20 << 20
WAIT_S = 0.2


@dataclass(slots=True)
class Copied:
    """The result of a pass."""

    objects: int = 0
    bytes: int = 0
    failed: set[int] = field(default_factory=set)
    """Placement groups of objects that could not be copied."""
    bad: list[Copy] = field(default_factory=list)
    """Bad copies that were met, and recorded as missing."""
    problems: list[str] = field(default_factory=list)
    left: bool = False
    """The time was over before all was copied, or the broker's root failed."""


class _TargetFailed(Exception):
    """The broker's own root failed: nothing more can be copied to it now."""


@dataclass(slots=True)
class _Job:
    """One object on its way."""

    name: str
    row: ObjectRow
    group: int
    sources: list[tuple[int, int]]
    """(broker, epoch) of the copies that are not yet tried."""
    doing: str = "read"
    moved_ms: int = 0
    source: int = -1
    bad: list[Copy] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class BrokerCopies:
    """One pass over what a broker lacks.  `run` may hang with the broker's root, so it runs in a separate thread."""

    def __init__(self, journal: Journal, broker: int, epoch: int, pace: Pace, until_ms: int) -> None:
        self._journal, self._broker, self._epoch = journal, broker, epoch
        self._pace, self._until_ms = pace, until_ms
        self._clock, self._threads = journal.context.clock, journal.context.threads
        self._lock = self._threads.lock()
        self._ended = self._threads.condition(self._lock)
        """Notified when a copy ends."""
        self._silent: set[int] = set()
        """Brokers whose roots did not answer in this pass."""
        self._done = Copied()
        self._bad: list[Copy] = []
        """Bad copies that are not yet recorded as missing."""

    def run(self, state: State) -> Copied:
        """Copy what the broker lacks in a state, until the time is over."""
        wanted, done = self._wanted(state), self._done
        try:
            while jobs := self._some(wanted):
                self._journal.roots.check(self._broker, again=True)
                self._record(self._copy_all(jobs))
                if self._clock.monotonic_ms() >= self._until_ms:
                    done.left = next(wanted, None) is not None
                    break
        except (_TargetFailed, SparkLogError, OSError, KeyError) as error:
            done.left = True
            done.problems.append(f"copying to broker {self._broker} stopped: {error}")
        return done

    def _wanted(self, state: State) -> Iterator[_Job]:
        keys: dict[int, Copies] = {
            one: state.copies[one]
            for number, group in state.placement_groups.items()
            if self._broker in group.replicas
            for one in lacked(state, number, self._broker)
        }
        for name, row in rows_with_copies(state.objects, keys):
            sources = [
                (broker, epoch)
                for broker in holders(state, row)
                if is_active(state, broker) and (epoch := epoch_of(state, broker)) is not None
            ]
            yield _Job(name, row, keys[row.copies].group, sources)

    @staticmethod
    def _some(wanted: Iterator[_Job]) -> list[_Job]:
        jobs, size = list[_Job](), 0
        for job in islice(wanted, OBJECTS_AT_ONCE):
            jobs.append(job)
            size += job.row.size
            if size >= BYTES_AT_ONCE:
                break
        return jobs

    # ---------------------------------------------------------------------------------------------------------- copying

    def _copy_all(self, jobs: Sequence[_Job]) -> list[_Job]:
        """The jobs whose object was copied.  Raises _TargetFailed."""
        target = self._journal.roots[self._broker]
        parallel = PARALLEL["local" if target.local else "remote"]
        waiting, copied = list(reversed(jobs)), list[_Job]()
        running: list[tuple[_Job, Task[None]]] = []
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append(self._start(waiting.pop(), target))
            with self._lock:
                if not any(task.ended for _, task in running):
                    self._ended.wait(WAIT_S)
            left: list[tuple[_Job, Task[None]]] = []
            for job, task in running:
                if task.ended:
                    if self._succeeded(job, task):
                        copied.append(job)
                elif self._is_stalled(job):
                    waiting += self._given_up(job)
                else:
                    left.append((job, task))
            running = left
        return copied

    def _start(self, job: _Job, target: ObjectStore) -> tuple[_Job, Task[None]]:
        job.moved_ms = self._clock.monotonic_ms()
        return job, Task(lambda: self._copy(job, target), "pylog-copy", self._threads, self._notify)

    def _notify(self) -> None:
        with self._lock:
            self._ended.notify_all()

    def _copy(self, job: _Job, target: ObjectStore) -> None:
        """Copy an object from the first root that has a good copy.  Raises BadCopy if none has."""

        def moved(to: str) -> None:
            job.doing, job.moved_ms = to, self._clock.monotonic_ms()

        while job.sources:
            job.source, epoch = job.sources[0]
            source = self._source(job.source)
            try:
                if job.source not in self._silent and source is not None:
                    copy_checked(source, target, job.name, job.row, self._pace, moved)
                    return
            except SourceFailed as error:
                job.problems.append(f"broker {job.source}: {error}")
            except BadCopy:
                moved("read")
                self._look_again(job, source, epoch)
            job.sources.pop(0)
        raise BadCopy("; ".join(job.problems) or "no active broker has a copy")

    def _source(self, broker: int) -> ObjectStore | None:
        try:
            store = self._journal.roots[broker]
        except KeyError:
            return None
        return RetryingStore(store.inner, self._clock, SOURCE_MS) if isinstance(store, RetryingStore) else store

    def _look_again(self, job: _Job, source: ObjectStore | None, epoch: int) -> None:
        """A copy is recorded as missing if a second read finds it bad, and the root is that of its broker."""
        assert source is not None, "it was read"
        try:
            check_copy(source, job.name, job.row)
        except BadCopy as error:
            job.problems.append(f"broker {job.source}: {error}")
            try:
                self._journal.roots.check(job.source, again=True)
            except SparkLogError as wrong:
                job.problems.append(str(wrong))
            else:
                job.bad.append(Copy(job.name, job.source, epoch))
        except SourceFailed as error:
            job.problems.append(f"broker {job.source}: {error}")

    def _succeeded(self, job: _Job, task: Task[None]) -> bool:
        self._bad += job.bad
        try:
            task.result()
        except BadCopy as error:
            self._done.failed.add(job.group)
            self._done.problems.append(f"{job.name} was not copied to broker {self._broker}: {error}")
            return False
        except (SparkLogError, OSError, KeyError) as error:
            raise _TargetFailed(str(error)) from error
        self._done.problems += [f"{job.name}: {problem}" for problem in job.problems if job.bad]
        return True

    def _is_stalled(self, job: _Job) -> bool:
        if job.doing == "wait":
            return False
        allowed_s = STALLED_S * (1 + job.row.size / STALLED_BYTES)
        return self._clock.monotonic_ms() - job.moved_ms > allowed_s * 1000

    def _given_up(self, job: _Job) -> list[_Job]:
        """Its thread is left alone.  The job again, without the source that does not answer."""
        if job.doing == "write":
            raise _TargetFailed("its root does not answer")
        self._silent.add(job.source)
        problems = [*job.problems, f"broker {job.source}: its root does not answer"]
        return [_Job(job.name, job.row, job.group, job.sources[1:], bad=job.bad, problems=problems)]

    # -------------------------------------------------------------------------------------------------------- recording

    def _record(self, copied: Sequence[_Job]) -> None:
        """Say in the log what was copied, if it is there, and which copies are bad."""
        journal, done = self._journal, self._done
        if copied:
            target = journal.roots[self._broker]
            journal.roots.check(self._broker, again=True)
            there = [job for job in copied if target.size(job.name) == job.row.size]
            if len(there) < len(copied):
                raise _TargetFailed("objects are gone that were just put: was its disk unmounted, or swapped?")
            added = tuple(Copy(job.name, self._broker, self._epoch) for job in there)
            journal.propose(AddCopies(copies=added))
            done.objects += len(there)
            done.bytes += sum(job.row.size for job in there)
            self._remove_if_gone(target, [job.name for job in there])
        if self._bad:
            state = journal.refresh()
            bad = tuple(copy for copy in dict.fromkeys(self._bad) if _is_held(state, copy))
            if bad:
                journal.propose(RemoveCopies(copies=bad))
            self._bad = []
            done.bad += bad

    def _remove_if_gone(self, target: ObjectStore, names: Sequence[str]) -> None:
        """Garbage collection may have passed while this process was stopped: then nobody else would delete a copy."""
        state = self._journal.refresh()
        gone = [name for name in names if name not in state.objects and name not in state.dropped]
        if gone and not state.dropped_lists:
            target.delete(gone)


def _is_held(state: State, copy: Copy) -> bool:
    row = state.objects.get(copy.object)
    copies = state.copies.get(row.copies) if row is not None else None
    return copies is not None and copy.broker in copies.brokers and epoch_of(state, copy.broker) == copy.epoch
