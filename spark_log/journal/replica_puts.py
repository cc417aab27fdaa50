"""Puts of one object to all replicas of its placement group, in parallel.

A put that is not done one second after `min.insync.replicas` of the ISR are, or after half of the time that they took
if that is more, counts as missed.  Each put runs in a daemon thread: a root that hangs delays neither the others nor
the end of the process.  Before its first put to the root of a broker, a process checks that it is that broker's; after
each put it checks that again, and the size of the object, because a mount may have come or gone in between.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from spark_log.clock import Clock
from spark_log.errors import (
    CorruptObject,
    LeaderNotAvailable,
    NoSpace,
    ObjectNotFound,
    StorageUnavailable,
    UnsupportedVersion,
)
from spark_log.journal.broker_roots import Roots, WrongRoot
from spark_log.metadata.replica_state import OWN_BROKER, OWN_GROUP
from spark_log.metadata.replicas import Targets
from spark_log.model import Placed
from spark_log.store.base import Bytes, Chunks, ObjectStore
from spark_log.store.object_copies import copy_object

logger = logging.getLogger("spark_log")

GRACE_MS = 1000
"""A put may take this much longer than those of the first `min.insync.replicas`."""
STUCK_MS = 60_000
"""A put that sends nothing for this long is not waited for, although there are not enough others."""

Data: TypeAlias = Sequence[Bytes] | Callable[[], Iterable[Bytes]]
"""The bytes of an object, or a function that generates them for each attempt."""
Replica: TypeAlias = tuple[int, int]
"""(broker, epoch)."""


ROOT_FAILURES = (StorageUnavailable, NoSpace, WrongRoot, CorruptObject, UnsupportedVersion)
"""Errors of a root that is not well; others are the writer's: it has no right to write there."""


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
    Raises as `put_to` does.
    """
    if targets.group == OWN_GROUP:
        roots[OWN_BROKER].put(name, Chunks(chunks) if callable(chunks) else chunks)
        return Placed(OWN_GROUP)
    assert isinstance(roots, Roots), "a log with placement groups has brokers"
    return retry_missed(roots, targets, name, put_to(roots, targets, name, chunks, clock), clock)


def put_to(
    roots: Roots, targets: Targets, name: str, chunks: Data, clock: Clock, until_ms: float = math.inf
) -> Outcome:
    """Put an object to the replicas of a group with brokers, without a second try.

    until_ms:  deadline on the monotonic clock.
    Raises LeaderNotAvailable if no in-sync replica is active; the error of a replica that refuses the request, if fewer
    than `least` have the object; and the error of a replica if none has it.
    """
    if not targets.isr:
        raise LeaderNotAvailable(
            f"no in-sync replica of placement group {targets.group} is active: `pylog broker list` shows why; nothing "
            "was written"
        )
    data = _SharedData(chunks, clock)
    jobs = {one: partial(_put, roots, one[0], name, data) for one in targets.all}
    ended = _Race(targets, jobs, clock, until_ms).wait(lambda: data.moved_ms)
    outcome = _outcome(targets, ended, data.size)
    for broker, error in sorted(outcome.missed.items()):
        logger.warning("broker %d missed the put of %s: %s", broker, name, error or "it had not ended")
    _check_held(targets, name, outcome)
    return outcome


def _outcome(targets: Targets, ended: Mapping[Replica, Exception | None], size: int) -> Outcome:
    held = tuple(one for one in targets.all if one in ended and ended[one] is None)
    return Outcome(held, {one[0]: ended.get(one) for one in targets.all if one not in held}, size)


def _check_held(targets: Targets, name: str, outcome: Outcome) -> None:
    """Raises if no replica has an object, or if too few have it and one refuses the writer."""
    errors = [error for _, error in sorted(outcome.missed.items()) if error is not None]
    refusals = [error for error in errors if not isinstance(error, ROOT_FAILURES)]
    if refusals and sum(one in outcome.held for one in targets.isr) < targets.least:
        raise refusals[0]
    if not outcome.held:
        brokers = ", ".join(str(one) for one, _ in targets.all)
        raise errors[0] if errors else StorageUnavailable(f"{name}: no put to brokers {brokers} has ended")


def retry_missed(
    roots: Roots, targets: Targets, name: str, outcome: Outcome, clock: Clock, until_ms: float = math.inf
) -> Placed:
    """Try once more what failed, by copies from a replica that has the object.  Puts that have not ended go on, and
    count as missed.
    """
    failed = tuple(one for one in targets.all if outcome.missed.get(one[0]) is not None)
    if not failed:
        return Placed(targets.group, outcome.held)
    jobs = {one: partial(copy_replica, roots, outcome.held[0][0], one[0], name, outcome.size) for one in failed}
    race = _Race(targets._replace(isr=failed, joining=(), least=0), jobs, clock, until_ms)
    again = [one for one, error in race.wait(clock.monotonic_ms).items() if error is None]
    return Placed(targets.group, tuple(one for one in targets.all if one in outcome.held or one in again))


def copy_replica(roots: Roots, source: int, target: int, name: str, size: int) -> None:
    """Copy an object from the root of a broker to that of another one.

    Raises StorageError, WrongRoot; CorruptObject if the source has other bytes.
    """
    _check(roots, target)
    origin = _root(roots, source)
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
            yield chunk

    _check(roots, broker)
    _root(roots, broker).put(name, Chunks(counted))
    _check_put(roots, broker, name, sent)
    data.size = sent


def _check_put(roots: Roots, broker: int, name: str, size: int) -> None:
    """Check that what was put is on the root of the broker: a mount may have come or gone since it was checked."""
    if broker == OWN_BROKER:
        return
    _check(roots, broker, again=True)
    found = _root(roots, broker).size(name)
    if found != size:
        raise WrongRoot(
            f"{_root(roots, broker).url}/{name} has {'no' if found is None else found} bytes after {size} were put: "
            "was the disk mounted or unmounted meanwhile?"
        )


def _check(roots: Roots, broker: int, *, again: bool = False) -> None:
    try:
        roots.check(broker, again=again)
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
        self._make: Callable[[], Iterable[Bytes]] = chunks if callable(chunks) else lambda: chunks
        self._lock, self._clock = threading.Lock(), clock
        self.moved_ms = clock.monotonic_ms()
        """When a thread last took some of them."""
        self.size = 0
        """How many there are; set when one put has ended."""

    def chunks(self) -> Iterator[Bytes]:
        with self._lock:
            data = iter(self._make())
        while True:
            with self._lock:
                chunk = next(data, None)
                self.moved_ms = self._clock.monotonic_ms()
            if chunk is None:
                return
            yield chunk


class _Race:
    """Jobs for the replicas of a group, each in a thread, and the rule that says how long they are waited for."""

    def __init__(
        self, targets: Targets, jobs: Mapping[Replica, Callable[[], None]], clock: Clock, until_ms: float
    ) -> None:
        self._targets, self._clock, self._until_ms = targets, clock, until_ms
        self._change = threading.Condition()
        self._ended: dict[Replica, Exception | None] = {}
        """The jobs that have ended, with their errors."""
        self._began = clock.monotonic_ms()
        self._enough_ms: int | None = None
        """When enough in-sync replicas were done."""
        for replica, job in jobs.items():
            run = partial(self._run, replica, job)
            threading.Thread(target=run, name=f"pylog-put-{replica[0]}", daemon=True).start()

    def _run(self, replica: Replica, job: Callable[[], None]) -> None:
        error: Exception | None = None
        try:
            job()
        except Exception as raised:  # noqa: BLE001  judged by `outcome`
            error = raised
        with self._change:
            self._ended[replica] = error
            self._change.notify_all()

    def wait(self, moved_ms: Callable[[], int]) -> dict[Replica, Exception | None]:
        """The jobs that have ended when the rule says so, with their errors.

        moved_ms:  when any of them last made progress.
        """
        with self._change:
            while len(self._ended) < len(self._targets.all):
                now = self._clock.monotonic_ms()
                limit = min(self._limit(now, moved_ms()), self._until_ms)
                if now >= limit:
                    break
                self._change.wait((limit - now) / 1000)
            return dict(self._ended)

    def _limit(self, now: int, moved_ms: int) -> float:
        if self._enough_ms is None and self._done() >= min(self._targets.least, len(self._targets.isr)):
            self._enough_ms = now
        if self._enough_ms is None:
            return moved_ms + STUCK_MS
        return self._enough_ms + max(GRACE_MS, (self._enough_ms - self._began) / 2)

    def _done(self) -> int:
        return sum(self._ended.get(one, _NOT_ENDED) is None for one in self._targets.isr)


_NOT_ENDED = Exception()
