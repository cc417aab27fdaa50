"""Copies of what fenced brokers alone have, from their roots, as far as these answer.

A broker that was fenced by hand, or whose disk is full, can still be read.  Without this, records that were written
with acks=1 would be given up although their root is there, and replicas that lack something would wait for its return.

The root of a fenced broker may also hang.  So each broker that lacks something has a separate thread, which no round
waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from spark_log.client.admin.answering_roots import RootAnswers
from spark_log.configs.settings import cluster_config
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.replicas.replica_state import Copies
from spark_log.metadata.replicas.replicas import copies_of, epoch_of, has_active, is_active, keeps
from spark_log.metadata.state import PendingCommit, State
from spark_log.replication.copy_throttle import Pace
from spark_log.replication.copy_to_broker import WantedCopy
from spark_log.replication.missing_copies import CopyTally, copies_wanted_of_fenced, copy_objects
from spark_log.runtime.daemon_tasks import Task
from spark_log.text import counted

WAIT_S = 1.0
"""How long a round waits for copies that it has begun."""
COPY_MS = 10_000
"""How long objects of visible records are copied, before those of pending commits are looked for again."""
AGAIN_MS = 10_000
"""After this time, roots from which nothing could be copied are read again."""
ATTEMPTS = 3
"""The failed attempts to copy an object before it is given up.  They share `replica.lost.after.ms` if it is short."""
LOOKED_AT = 100
"""So many objects are looked through for one of each fenced broker."""
ANSWER_S = 10.0
"""A root that does not answer for this long is left out."""


class _Failure(NamedTuple):
    """The attempts to copy an object from any fenced broker."""

    attempts: int
    began_ms: int
    """When the last one began, on the monotonic clock."""


@dataclass(slots=True)
class _Target:
    """The memory of one broker that lacks something, under one epoch."""

    epoch: int
    task: Task[CopyTally] | None = None
    pending: frozenset[str] = frozenset()
    """The objects of pending commits that the task copies."""
    failed: dict[str, _Failure] = field(default_factory=dict)
    """By object that could not be copied from any fenced broker."""
    began_ms: int = 0
    due_ms: int = 0
    """When the next task may begin, on the monotonic clock."""


class FencedCopies:
    """Copies to the active brokers of one log.  Not thread-safe."""

    def __init__(self, journal: Journal, pace: Pace, brokers: Collection[int] | None = None) -> None:
        """brokers:  copy to these only; None: to all."""
        self._only = brokers
        self._journal, self._pace, self._clock = journal, pace, journal.context.clock
        self._targets: dict[int, _Target] = {}
        self._answers = RootAnswers(journal)
        self._silent: dict[int, int] = {}
        """By broker of `_stranded`: the rounds in a row in which its root did not answer."""
        self._said = ""

    def round(self, state: State) -> tuple[int, int]:
        """Copy, and record the copies.  Returns how many copies were made since the last round, and their bytes.

        Copies that take longer continue.
        """
        brokers, begun = _lacking_brokers(state), list[Task[CopyTally]]()
        if self._only is not None:
            brokers = [one for one in brokers if one in self._only]
        self._targets = {broker: self._target(state, broker) for broker in brokers}
        for broker, target in self._targets.items():
            if target.task is None and self._clock.monotonic_ms() >= target.due_ms:
                begun.append(self._begin(state, broker, target))
        self._look_at(set(_stranded(state)))
        until_ms = self._clock.monotonic_ms() + WAIT_S * 1000
        for task in begun:
            task.wait((until_ms - self._clock.monotonic_ms()) / 1000)
        done = [self._ended(one) for one in self._targets.values() if one.task is not None and one.task.ended]
        return sum(one.objects for one in done), sum(one.bytes for one in done)

    def have_failed(self, state: State, commit: PendingCommit, over_ms: float) -> bool:
        """Whether a pending commit can be given up: several attempts to copy its objects from fenced brokers have
        failed.

        Only objects that no active broker has count.  False while a copy is under way, because it may succeed: the root
        may have been away only for the last attempt.

        over_ms:  when the time for these attempts was over, on the monotonic clock.  The last attempt must have begun
                  later.
        """
        lacking = [(name, broker) for name in commit.objects for broker in _lacking(state, name)]
        if not lacking:  # nobody can copy it, as all replicas are fenced; its partition has others now
            return all(self._silent.get(one, 0) >= ATTEMPTS for one in _only_holders(state, commit.objects))
        return all(
            (target := self._targets.get(broker)) is not None
            and target.task is None
            and _has_failed(target, name, over_ms)
            for name, broker in lacking
        )

    def wait(self, seconds: float) -> bool:
        """Wait for copies that have begun, at most so long; whether any were made."""
        tasks = [one.task for one in self._targets.values() if one.task is not None]
        until_ms = self._clock.monotonic_ms() + seconds * 1000
        for one in tasks:
            one.wait((until_ms - self._clock.monotonic_ms()) / 1000)
        return any(one.ended and one.error is None and one.result().objects for one in tasks)

    def problems(self, state: State) -> list[str]:
        """A sentence if something waits for fenced brokers; it is logged when it is new."""
        waiting, text = [one for one in state.copies.values() if _waits(state, one)], ""
        if waiting:
            brokers = sorted({broker for one in waiting for broker in one.brokers})
            text = (
                f"{counted(sum(one.objects for one in waiting), 'object')} on fenced brokers alone "
                f"({', '.join(map(str, brokers))}), not copied from there yet"
            )
            if text != self._said:
                logger.warning("%s: %s", self._journal.metadata.url, text)
        self._said = text
        return [text] if text else []

    def _look_at(self, brokers: Collection[int]) -> None:
        """Note which of these roots answer.  Those to which this process has no access may answer another one."""
        answering = self._answers.among(brokers, WAIT_S) if brokers else ()
        silent = [one for one in brokers if one not in answering and not self._answers.was_denied(one)]
        self._silent = {one: self._silent.get(one, 0) + 1 for one in silent}

    def _target(self, state: State, broker: int) -> _Target:
        epoch, known = epoch_of(state, broker) or 0, self._targets.get(broker)
        if known is None or known.epoch != epoch:
            return _Target(epoch)
        if known.failed:  # an object that was on an active root meanwhile is tried again
            pending = _pending(state, broker)
            known.failed = {name: failure for name, failure in known.failed.items() if name in pending}
        return known

    def _begin(self, state: State, broker: int, target: _Target) -> Task[CopyTally]:
        target.pending, target.began_ms = _pending(state, broker), self._clock.monotonic_ms()
        target.task = Task(lambda: self._copy(state, broker), f"pylog-fenced-{broker}", self._journal.context.threads)
        return target.task

    def _copy(self, state: State, broker: int) -> CopyTally:
        """Copy first all that readers wait for."""
        sources = {one for copies in state.copies.values() if _waits(state, copies) for one in copies.brokers}
        answering = self._answers.among(sources, ANSWER_S, _first_names(state, broker))
        done = CopyTally()
        for pending in (True, False):
            some = _readable(copies_wanted_of_fenced(state, broker, pending=pending), answering)
            until_ms = self._clock.monotonic_ms() + COPY_MS
            one = copy_objects(self._journal, state, broker, some, self._pace, None if pending else until_ms)
            done.objects, done.bytes = done.objects + one.objects, done.bytes + one.bytes
            done.denied |= one.denied
            if pending:
                done.left = one.left
        if denied := frozenset(filter(self._answers.was_denied, sources)):
            wanted = copies_wanted_of_fenced(state, broker, pending=True)
            done.denied |= {one.name for one in wanted if any(source in denied for source, _ in one.sources)}
        return done

    def _ended(self, target: _Target) -> CopyTally:
        """The result of a task that has ended."""
        assert target.task is not None, "it has ended"
        task, target.task = target.task, None
        try:
            done = task.result()
        except Exception as error:  # noqa: BLE001  of one broker; the others continue
            logger.warning("copying from fenced brokers failed: %s", error)
            done = CopyTally(left=True)
        if not done.left:  # otherwise nothing is known about the sources
            tried = target.pending - done.denied  # a process that has access may be able to copy the others
            target.failed = {name: _again(target.failed.get(name), target.began_ms) for name in tried}
        target.due_ms = self._clock.monotonic_ms() + (0 if done.objects else self._again_ms())
        return done

    def _again_ms(self) -> int:
        after_ms = cluster_config(self._journal.newest.configs, "replica.lost.after.ms")
        return int(min(AGAIN_MS, after_ms / ATTEMPTS))


def _again(before: _Failure | None, began_ms: int) -> _Failure:
    return _Failure(1 if before is None else before.attempts + 1, began_ms)


def _has_failed(target: _Target, name: str, over_ms: float) -> bool:
    known = target.failed.get(name)
    return known is not None and known.attempts >= ATTEMPTS and known.began_ms >= over_ms


def _pending(state: State, broker: int) -> frozenset[str]:
    return frozenset(one.name for one in copies_wanted_of_fenced(state, broker, pending=True))


def _first_names(state: State, broker: int) -> dict[int, str]:
    """By fenced broker, the first object that would be copied from it, of a pending commit if there is one."""
    found: dict[int, str] = {}
    for pending in (True, False):
        for one in islice(copies_wanted_of_fenced(state, broker, pending=pending), LOOKED_AT):
            for source, _ in one.sources:
                found.setdefault(source, one.name)
    return found


def _readable(wanted: Iterator[WantedCopy], answering: Collection[int]) -> Iterator[WantedCopy]:
    """The objects of which a root that answers has a copy."""
    for one in wanted if answering else ():
        if sources := tuple(source for source in one.sources if source[0] in answering):
            yield one._replace(sources=sources)


def _waits(state: State, copies: Copies) -> bool:
    """Whether fenced brokers alone have some objects, which an active one should have."""
    replicas = state.placement_groups[copies.group].replicas
    return bool(copies.brokers) and not has_active(state, copies) and any(is_active(state, one) for one in replicas)


def _stranded(state: State) -> Iterator[int]:
    """The fenced brokers that have objects of pending commits which no active one is to have."""
    for one in state.copies.values():
        if one.pending and not has_active(state, one) and not _waits(state, one):
            yield from one.brokers


def _only_holders(state: State, names: Iterable[str]) -> Iterator[int]:
    """The fenced brokers that alone have some objects."""
    for known in (copies_of(state, state.objects[name]) for name in names):
        if known is not None and not has_active(state, known):
            yield from known.brokers


def _lacking_brokers(state: State) -> list[int]:
    """The active brokers that lack something which fenced brokers alone have."""
    groups = {copies.group for copies in state.copies.values() if _waits(state, copies)}
    replicas = {broker for number in groups for broker in state.placement_groups[number].replicas}
    return sorted(broker for broker in replicas if is_active(state, broker))


def _lacking(state: State, name: str) -> list[int]:
    """The active replicas that lack an object which fenced brokers alone have."""
    known = copies_of(state, state.objects[name])
    if known is None or not known.brokers or has_active(state, known):
        return []
    replicas = state.placement_groups[known.group].replicas
    return [broker for broker in replicas if is_active(state, broker) and keeps(state, broker, name)]
