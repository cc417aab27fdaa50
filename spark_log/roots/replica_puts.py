"""Puts of one object to all replicas of its placement group, in parallel.

A put that is not done one second after `min.insync.replicas` of the ISR are, or after half of the time that they took
if that is more, counts as missed.  The puts run in the threads of their roots (`root_threads.py`): a root that hangs
delays neither the others nor the end of the process.  Before its first put to the root of a broker, a process checks
that it is that broker's (the store of a disk does it in each put).  After each put it checks that again, and the size
of the object, because a mount may have come or gone in between.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from spark_log.errors import (
    CorruptObject,
    LeaderNotAvailable,
    NoSpace,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
    SyncFailed,
    UnsupportedVersion,
    WrongRoot,
)
from spark_log.log_lines import logger
from spark_log.metadata.replicas.replica_state import OWN_BROKER, OWN_GROUP
from spark_log.metadata.replicas.replicas import Targets
from spark_log.model import Placed
from spark_log.roots.broker_roots import Roots
from spark_log.roots.copy_sources import CopySource
from spark_log.roots.root_owner import check_first_use
from spark_log.runtime.clock import Clock
from spark_log.store.base import Bytes, Chunks, ObjectStore
from spark_log.store.copy_object import copy_object

GRACE_MS = 1000
"""A put may take this much longer than those of the first `min.insync.replicas`."""
STUCK_MS = 60_000
"""A put that sends nothing for this long is not waited for, although there are not enough others."""
IMPATIENT_MS = 10_000
"""A writer that has other groups to write to does not wait for a put that sends nothing for this long."""
REPLICAS_MS_MAX = 120_000
"""How long a writer without a deadline tries to write to a group again: Kafka's `delivery.timeout.ms`."""
REPLICAS_BACKOFF_MS, REPLICAS_BACKOFF_MS_MAX = 100, 2000

COPY_MS, BYTES_PER_MS = 10_000, 10_000
"""A copy may take this long, and a millisecond more for so many bytes, before its root is left out."""

Data: TypeAlias = Sequence[Bytes] | Callable[[], Iterable[Bytes]]
"""The bytes of an object, or a function that generates them for each attempt."""
Replica: TypeAlias = tuple[int, int]
"""(broker, epoch)."""


ROOT_FAILURES = (StorageUnavailable, NoSpace, SyncFailed, WrongRoot, CorruptObject, UnsupportedVersion)
"""Errors of a root that is not well; others are the writer's: it has no right to write there."""


class NoReplica(StorageUnavailable):
    """None of the replicas of a group could be written to: their roots cannot be reached or hang."""

    def __init__(self, message: str, *, placement_group: int) -> None:
        super().__init__(message)
        self.placement_group = placement_group


class Outcome(NamedTuple):
    """The outcome of puts of one object."""

    held: tuple[Replica, ...]
    """The replicas that have it, in the order of the targets."""
    missed: Mapping[int, Exception | None]
    """The others by broker, with their errors; None: the put had not ended."""
    size: int
    """Bytes of the object."""


def put_replicas(roots: Mapping[int, ObjectStore], targets: Targets, name: str, chunks: Data, clock: Clock) -> Placed:
    """Put an object to the replicas of its group, and return which of them have it.  They may be fewer than `least`.

    roots:  those of a journal, unless the group is that of the log's own root.
    Raises as `ReplicaPut` and its `outcome` do.
    """
    if targets.group == OWN_GROUP:
        roots[OWN_BROKER].put(name, Chunks(chunks) if callable(chunks) else chunks)
        return Placed(OWN_GROUP)
    assert isinstance(roots, Roots), "a log with placement groups has brokers"
    put = ReplicaPut(roots, targets, name, chunks, clock)
    return put.retry_missed(put.outcome())


class ReplicaPut:
    """A put of one object to the replicas of a group with brokers; its threads begin immediately."""

    def __init__(
        self,
        roots: Roots,
        targets: Targets,
        name: str,
        chunks: Data,
        clock: Clock,
        until_ms: float = math.inf,
        stuck_ms: int = STUCK_MS,
    ) -> None:
        """
        until_ms:  deadline on the monotonic clock.
        stuck_ms:  how long puts that send nothing are waited for.
        """
        self._stuck_ms = stuck_ms
        self._roots, self._targets, self.name, self._clock, self._until_ms = roots, targets, name, clock, until_ms
        self._data = _SharedData(chunks, clock)
        replicas = targets.all if targets.isr else ()
        jobs = {one: partial(_put, roots, one[0], name, self._data) for one in replicas}
        self._race = _Race(replicas, jobs, roots, clock, until_ms, among=targets.isr, least=targets.least)

    def outcome(self) -> Outcome:
        """Wait for the puts.

        Raises LeaderNotAvailable if no in-sync replica is active; the error of a replica that refuses the request, if
        fewer than `least` have the object; NoSpace or NoReplica if none has it.
        """
        if not self._targets.isr:
            raise LeaderNotAvailable(
                f"no in-sync replica of placement group {self._targets.group} is active: `pylog broker list` shows "
                "why; nothing was written",
                placement_group=self._targets.group,
            )
        try:
            ended = self._race.wait(lambda: self._data.moved_ms, self._stuck_ms)
        finally:
            self._data.release()
        outcome = _outcome(self._targets, ended, self._data.size)
        for broker, error in sorted(outcome.missed.items()):
            logger.warning("broker %d missed the put of %s: %s", broker, self.name, error or "it had not ended")
        _check_held(self._targets, outcome)
        return outcome

    def retry_missed(self, outcome: Outcome) -> Placed:
        """Try once more what failed, by copies from a replica that has the object.  Puts that have not ended count as
        missed.
        """
        group, targets = self._targets.group, self._targets.all
        failed = [one for one in targets if outcome.missed.get(one[0]) is not None]
        held = {*outcome.held}
        if failed:
            origin, size = outcome.held[0][0], outcome.size
            held.update(copy_to(self._roots, origin, failed, self.name, size, self._clock, self._until_ms))
        return Placed(group, tuple(one for one in targets if one in held))


def _outcome(targets: Targets, ended: Mapping[Replica, Exception | None], size: int) -> Outcome:
    held = tuple(one for one in targets.all if one in ended and ended[one] is None)
    return Outcome(held, {one[0]: ended.get(one) for one in targets.all if one not in held}, size)


def _check_held(targets: Targets, outcome: Outcome) -> None:
    """Raises the error of a replica that refuses the writer, if too few others have the object; if none has it, NoSpace
    if all are full, and otherwise NoReplica.
    """
    errors = [error for _, error in sorted(outcome.missed.items()) if error is not None]
    refusals = [error for error in errors if not isinstance(error, ROOT_FAILURES)]
    if refusals and sum(one in outcome.held for one in targets.isr) < targets.least:
        raise refusals[0]
    if not outcome.held:
        if not targets.leader_only and all(isinstance(error, NoSpace) for error in outcome.missed.values()):
            raise errors[0]
        whys = [f"broker {one}: {error or 'it did not answer'}" for one, error in sorted(outcome.missed.items())]
        raise NoReplica(f"no replica could be written: {'; '.join(whys)}", placement_group=targets.group)


class ToPut(NamedTuple):
    """An object of a group with brokers that is to be put."""

    group: int
    least: int
    """The highest `min.insync.replicas` of the topics of the object."""
    name: str
    chunks: Callable[[], Iterable[Bytes]]


Begun: TypeAlias = Mapping[ToPut, ReplicaPut]


@dataclass(frozen=True, slots=True)
class ReplicaPuts:
    """How a writer puts objects of placement groups with brokers."""

    roots: Roots
    targets: Callable[[int], Targets]
    """Where objects of a group are put, as far as the writer knows; with acks=1 on the leader."""
    newest: Callable[[int], Targets]
    """All of its replicas by the newest state of the log.  It may raise StorageUnavailable."""
    clock: Clock
    until_ms: float = math.inf
    """Deadline on the monotonic clock."""
    patient: bool = True
    """Whether an object that no replica takes is put again."""

    def begin(self, objects: Iterable[ToPut]) -> Begun:
        """Put objects, together; `placed` waits for them."""
        return {one: self._put(one, self.targets) for one in objects}

    def placed(self, begun: Begun) -> dict[str, Placed]:
        """Where the objects are.  One that no replica takes is put again until the deadline, or for `REPLICAS_MS_MAX`.

        Raises as `ReplicaPut.outcome` does.
        """
        until_ms = min(self.until_ms, self.clock.monotonic_ms() + REPLICAS_MS_MAX)
        wait, placed = REPLICAS_BACKOFF_MS, dict[str, Placed]()
        while True:
            done, failed = _ended(begun)
            placed |= done
            if not failed:
                return placed
            error = next(iter(failed.values()))
            left_ms = until_ms - self.clock.monotonic_ms() - REPLICAS_BACKOFF_MS
            if not self.patient or left_ms <= 0:
                raise error
            logger.info("an object is put again: %s", error)
            self.clock.sleep_ms(min(wait, left_ms))
            wait = min(2 * wait, REPLICAS_BACKOFF_MS_MAX)
            begun = {one: self._put(one, self._newest) for one in failed}

    def _put(self, one: ToPut, targets: Callable[[int], Targets]) -> ReplicaPut:
        where = targets(one.group)._replace(least=one.least)
        stuck_ms = STUCK_MS if self.patient and not where.leader_only else IMPATIENT_MS
        return ReplicaPut(self.roots, where, one.name, one.chunks, self.clock, self.until_ms, stuck_ms)

    def _newest(self, group: int) -> Targets:
        try:
            return self.newest(group)
        except StorageUnavailable:
            return self.targets(group)


def _ended(begun: Begun) -> tuple[dict[str, Placed], dict[ToPut, LeaderNotAvailable | NoReplica]]:
    """Where objects are, and those that no replica took with their errors."""
    outcomes, failed = dict[ToPut, Outcome](), dict[ToPut, LeaderNotAvailable | NoReplica]()
    for one, put in begun.items():
        try:
            outcomes[one] = put.outcome()
        except (LeaderNotAvailable, NoReplica) as error:
            failed[one] = error
    return {one.name: begun[one].retry_missed(outcome) for one, outcome in outcomes.items()}, failed


def copy_to(
    roots: Roots,
    source: int,
    targets: Sequence[Replica],
    name: str,
    size: int,
    clock: Clock,
    until_ms: float = math.inf,
    wait_ms: float = GRACE_MS,
) -> list[Replica]:
    """Copy an object from the root of a broker to those of others, together; returns those that have it then.

    wait_ms:  how long they are waited for.
    """
    jobs = {one: partial(copy_replica, roots, source, one[0], name, size) for one in targets}
    race = _Race(targets, jobs, roots, clock, min(until_ms, clock.monotonic_ms() + wait_ms))
    ended = race.wait(clock.monotonic_ms)
    for (broker, _), error in sorted(ended.items()):
        if error is not None:
            level = logging.WARNING if roots.is_new_failure(broker, error, name) else logging.INFO
            logger.log(level, "%s was not copied to broker %d: %s", name, broker, error)
    return [one for one in targets if one in ended and ended[one] is None]


def copy_missing(
    roots: Mapping[int, ObjectStore],
    name: str,
    size: int,
    where: Placed,
    lacking: Sequence[Replica],
    clock: Clock,
    until_ms: float = math.inf,
) -> Placed:
    """Copy an object from a replica that has it to those that lack it; returns where it is then.

    A replica that got it under an older epoch is only looked at: it has it, unless its root has lost it since.  Roots
    that did not answer lately are the last ones to be copied from.
    """
    assert isinstance(roots, Roots), "a log with placement groups has brokers"
    limit_ms = COPY_MS + size / BYTES_PER_MS
    before = {broker for broker, _ in where.held}
    if seen := look_for(roots, [one for one in lacking if one[0] in before], name, size, clock, until_ms):
        where = _with(where, seen)
        lacking = [one for one in lacking if one not in seen]
    for source in sorted((broker for broker, _ in where.held), key=roots.is_late) if lacking else ():
        targets = [one for one in lacking if one[0] != source]
        if done := copy_to(roots, source, targets, name, size, clock, until_ms, limit_ms):
            return _with(where, done)
    return where


def _with(where: Placed, done: Sequence[Replica]) -> Placed:
    """Also these copies; one under an older epoch of the same broker is replaced."""
    brokers = {broker for broker, _ in done}
    return Placed(where.group, (*(one for one in where.held if one[0] not in brokers), *done))


def look_for(
    roots: Roots, replicas: Sequence[Replica], name: str, size: int, clock: Clock, until_ms: float
) -> list[Replica]:
    """The replicas whose roots have an object that was put there."""
    if not replicas:
        return []
    jobs = {one: partial(_check_put, roots, one[0], name, size) for one in replicas}
    race = _Race(replicas, jobs, roots, clock, min(until_ms, clock.monotonic_ms() + COPY_MS))
    ended = race.wait(clock.monotonic_ms)
    return [one for one in replicas if one in ended and ended[one] is None]


def copy_replica(roots: Roots, source: int, target: int, name: str, size: int) -> None:
    """Copy an object from the root of a broker to that of another one.

    Raises StorageError, WrongRoot; CorruptObject if the source has other bytes.
    """
    check_broker_root(roots, target)
    try:
        origin = CopySource(roots, source, target)
    except KeyError:
        raise WrongRoot(f"broker {source} is not registered any more") from None
    if copy_object(origin, _root(roots, target), name, size) is None:
        raise ObjectNotFound(f"{origin.url}/{name} is not there", key=name)
    _check_put(roots, target, name, size)


def _put(roots: Roots, broker: int, name: str, data: _SharedData) -> None:
    sent = 0

    def counted() -> Iterator[Bytes]:
        nonlocal sent
        sent = 0
        for chunk in data.chunks():
            sent += len(chunk)
            roots.moved(broker)
            yield chunk

    check_broker_root(roots, broker)
    _root(roots, broker).put(name, Chunks(counted))
    _check_put(roots, broker, name, sent)
    data.size = sent


def _check_put(roots: Roots, broker: int, name: str, size: int) -> None:
    """Check that what was put is on the root of the broker: a mount may have come or gone since it was checked."""
    check_broker_root(roots, broker, again=True)
    found = size_on(roots, broker, name)
    if found != size:
        raise WrongRoot(
            f"{_root(roots, broker).url}/{name} has {'no' if found is None else found} bytes after {size} were put: "
            "was the disk mounted or unmounted meanwhile?"
        )


def size_on(roots: Roots, broker: int, name: str) -> int | None:
    """The size of an object on the root of a broker; None: it is not there.  Raises StorageError, WrongRoot."""
    return _root(roots, broker).size(name)


def check_broker_root(roots: Roots, broker: int, *, again: bool = False) -> None:
    """Raises what `Roots.check` raises, and WrongRoot if this log is a copy of the one that the root belongs to."""
    try:
        roots.check(broker, again=again)
        if broker != OWN_BROKER:
            check_first_use(roots, broker)
    except KeyError:
        raise WrongRoot(f"broker {broker} is not registered any more") from None


def _root(roots: Roots, broker: int) -> ObjectStore:
    try:
        return roots[broker]
    except KeyError:
        raise WrongRoot(f"broker {broker} is not registered any more") from None


class _SharedData:
    """The bytes of an object for several threads: their source may be a file with one position."""

    def __init__(self, chunks: Data, clock: Clock) -> None:
        self._make: Callable[[], Iterable[Bytes]] | None = chunks if callable(chunks) else lambda: chunks
        self._lock, self._clock = threading.Lock(), clock
        self.moved_ms = clock.monotonic_ms()
        """When a thread last took some of them."""
        self.size = 0
        """How many there are; set when one put has ended."""
        self._read: list[_Forgettable] = []
        """The source that threads read from."""

    def chunks(self) -> Iterator[Bytes]:
        """Raises StorageError after `release`."""
        data = self._begun()
        while True:
            with self._lock:
                self._check()
                chunk = next(data, None)
                self.moved_ms = self._clock.monotonic_ms()
            if chunk is None:
                return
            yield chunk

    def _begun(self) -> Iterator[Bytes]:
        with self._lock:
            make = self._check()
            data = _Forgettable(iter(make()))
            self._read.append(data)
            return data

    def _check(self) -> Callable[[], Iterable[Bytes]]:
        if self._make is None:
            raise StorageError("this put is not waited for any more")
        return self._make

    def release(self) -> None:
        """Let the bytes go: puts that have not ended fail, and a thread of a root that hangs does not keep them."""
        with self._lock:
            self._make = None
            for data in self._read:
                data.inner = iter(())
            self._read.clear()


class _Forgettable:
    """An iterator that lets go of another one when that is replaced."""

    def __init__(self, inner: Iterator[Bytes]) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Bytes]:
        return self

    def __next__(self) -> Bytes:
        return next(self.inner)


class _Race:
    """Jobs, each in a thread of its root, and the rule that says how long they are waited for."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        jobs: Mapping[Replica, Callable[[], None]],
        roots: Roots,
        clock: Clock,
        until_ms: float,
        *,
        among: Sequence[Replica] = (),
        least: int = 1,
    ) -> None:
        """
        among, least:  when this many of these have ended without an error, the others get a short time more.
        """
        self._count, self._clock, self._until_ms = len(replicas), clock, until_ms
        self._among, self._least = frozenset(among), min(least, len(among)) or len(replicas)
        self._change = threading.Condition()
        self._ended: dict[Replica, Exception | None] = {}
        """The jobs that have ended, with their errors."""
        self._began = clock.monotonic_ms()
        self._enough_ms: int | None = None
        """When enough jobs were done."""
        for replica in replicas:
            try:
                roots.start(replica[0], partial(self._run, replica, jobs[replica]))
            except StorageUnavailable as error:
                self._end(replica, error)

    def _run(self, replica: Replica, job: Callable[[], None]) -> None:
        error: Exception | None = None
        try:
            job()
        except Exception as raised:  # noqa: BLE001  judged by who waits
            error = raised
        self._end(replica, error)

    def _end(self, replica: Replica, error: Exception | None) -> None:
        with self._change:
            self._ended[replica] = error
            done = sum(one in self._among and error is None for one, error in self._ended.items())
            if self._enough_ms is None and done >= self._least:
                self._enough_ms = self._clock.monotonic_ms()
            if len(self._ended) == self._count:
                self._change.notify_all()

    def wait(self, moved_ms: Callable[[], int], stuck_ms: int = STUCK_MS) -> dict[Replica, Exception | None]:
        """The jobs that have ended when the rule says so, with their errors.

        moved_ms:  when any of them last made progress.
        stuck_ms:  how long they are waited for without progress, while not enough have ended.
        """
        with self._change:
            while len(self._ended) < self._count:
                now = self._clock.monotonic_ms()
                limit = min(self._limit(moved_ms() + stuck_ms), self._until_ms)
                if now >= limit:
                    break
                # When enough have ended, nobody is woken: the limit is at least this much later.
                self._change.wait(min(limit - now, GRACE_MS) / 1000)
            return dict(self._ended)

    def _limit(self, stuck_ms: int) -> float:
        if self._enough_ms is None:
            return stuck_ms
        return self._enough_ms + max(GRACE_MS, (self._enough_ms - self._began) / 2)
