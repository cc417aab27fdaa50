"""Copies of what fenced brokers alone have, from their roots, as far as these answer.

A broker that was fenced by hand, or whose disk is full, can still be read.  Without this, records that were written
with acks=1 would be given up although their root is there, and replicas that lack something would wait for its return.

The root of a fenced broker may also hang.  So each broker that lacks something has a separate thread, which no round
waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spark_log.journal.journal import Journal
from spark_log.metadata.replicas import copies_of, epoch_of, has_active, is_active
from spark_log.metadata.state import PendingCommit, State
from spark_log.node.broker_copies import Copied, copies_wanted_of_fenced, copy_objects
from spark_log.node.checked_copies import Pace
from spark_log.node.daemon_tasks import Task
from spark_log.node.object_copying import WantedCopy
from spark_log.node.root_answers import RootAnswers
from spark_log.text import counted

WAIT_S = 1.0
"""How long a round waits for copies that it has begun."""
AGAIN_MS = 10_000
"""Roots from which something could not be copied are read again this often."""
ANSWER_S = 10.0
"""A root that does not answer for so long is passed over."""

logger = logging.getLogger("spark_log")


@dataclass(slots=True)
class _Target:
    """The memory of one broker that lacks something, under one epoch."""

    epoch: int
    task: Task[Copied] | None = None
    names: Sequence[str] = ()
    """The objects that the task copies."""
    tried_ms: dict[str, int] = field(default_factory=dict)
    """Objects that could not be copied from any fenced broker, and when this was tried last."""


class FencedCopies:
    """Copies to the active brokers of one log.  Not thread-safe."""

    def __init__(self, journal: Journal, pace: Pace) -> None:
        self._journal, self._pace, self._clock = journal, pace, journal.context.clock
        self._targets: dict[int, _Target] = {}
        self._answers = RootAnswers(journal)
        self._said = ""

    def round(self, state: State) -> tuple[int, int]:
        """Copy, and record it; the number of copies that were made since the last round, and their bytes.

        Copies that take longer continue.
        """
        begun, wanted = list[_Target](), _wanted(state)
        for broker in [one for one in self._targets if one not in wanted]:
            del self._targets[broker]
        for broker, some in wanted.items():
            target = self._target(state, broker, some)
            if target.task is None and self._is_due(target, some):
                self._begin(target, broker, some)
                begun.append(target)
        until_ms = self._clock.monotonic_ms() + WAIT_S * 1000
        for target in begun:
            assert target.task is not None, "it has begun"
            target.task.wait((until_ms - self._clock.monotonic_ms()) / 1000)
        done = [self._ended(one) for one in self._targets.values() if one.task is not None and one.task.ended]
        return sum(one.objects for one in done), sum(one.bytes for one in done)

    def have_failed(self, state: State, commit: PendingCommit) -> bool:
        """Whether what no active broker has of a pending commit could not be copied: then it may be given up."""
        return all(
            (target := self._targets.get(broker)) is not None and name in target.tried_ms
            for name in commit.objects
            for broker in _lacking(state, name)
        )

    def problems(self, state: State) -> list[str]:
        """A sentence if something waits for fenced brokers; it is logged when it is new."""
        waiting = {one.name: one for some in _wanted(state).values() for one in some}
        text = ""
        if waiting:
            brokers = sorted({broker for one in waiting.values() for broker, _ in one.sources})
            text = (
                f"{counted(len(waiting), 'object')} on fenced brokers alone ({', '.join(map(str, brokers))}), whose roots "
                "cannot be copied from now"
            )
            if text != self._said:
                logger.warning("%s: %s", self._journal.metadata.url, text)
        self._said = text
        return [text] if text else []

    def _target(self, state: State, broker: int, wanted: Sequence[WantedCopy]) -> _Target:
        epoch, known = epoch_of(state, broker) or 0, self._targets.get(broker)
        if known is None or known.epoch != epoch:
            known = self._targets[broker] = _Target(epoch)
        now = {one.name for one in wanted}
        known.tried_ms = {name: at_ms for name, at_ms in known.tried_ms.items() if name in now}
        return known

    def _is_due(self, target: _Target, wanted: Sequence[WantedCopy]) -> bool:
        since_ms = self._clock.monotonic_ms() - AGAIN_MS
        return any(target.tried_ms.get(one.name, since_ms) <= since_ms for one in wanted)

    def _begin(self, target: _Target, broker: int, wanted: Sequence[WantedCopy]) -> None:
        target.names = [one.name for one in wanted]
        target.task = Task(
            lambda: copy_objects(self._journal, broker, target.epoch, self._readable(wanted), self._pace),
            f"pylog-fenced-{broker}",
            self._journal.context.threads,
        )

    def _readable(self, wanted: Sequence[WantedCopy]) -> Iterator[WantedCopy]:
        """The objects, with those sources whose roots answer."""
        answering = self._answers.among({broker for one in wanted for broker, _ in one.sources}, ANSWER_S)
        for one in wanted:
            yield one._replace(sources=tuple(source for source in one.sources if source[0] in answering))

    def _ended(self, target: _Target) -> Copied:
        """The result of a task that has ended."""
        assert target.task is not None, "it has ended"
        task, target.task = target.task, None
        try:
            done = task.result()
        except Exception as error:  # noqa: BLE001  of one broker; the others continue
            logger.warning("copying from fenced brokers failed: %s", error)
            return Copied(left=True)
        if not done.left:  # otherwise the target failed, and nothing is known about the sources
            target.tried_ms.update(dict.fromkeys(target.names, self._clock.monotonic_ms()))
        return done


def _wanted(state: State) -> dict[int, list[WantedCopy]]:
    """By active broker, what it lacks and fenced brokers alone have."""
    if all(has_active(state, copies) or not copies.brokers for copies in state.copies.values()):
        return {}
    brokers = sorted({broker for group in state.placement_groups.values() for broker in group.replicas})
    found = {one: list(copies_wanted_of_fenced(state, one)) for one in brokers if is_active(state, one)}
    return {broker: some for broker, some in found.items() if some}


def _lacking(state: State, name: str) -> list[int]:
    """The active replicas that lack an object which fenced brokers alone have."""
    known = copies_of(state, state.objects[name])
    if known is None or not known.brokers or has_active(state, known):
        return []
    return [broker for broker in state.placement_groups[known.group].replicas if is_active(state, broker)]
