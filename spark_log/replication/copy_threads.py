"""Copying to several brokers at the same time, with a thread for each.

Roots may hang.  So a round does not wait for those that are late, and the next round asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.replicas.replicas import epoch_of
from spark_log.metadata.state import State
from spark_log.replication.copy_throttle import Pace
from spark_log.replication.missing_copies import CopyTally, catch_up_broker
from spark_log.runtime.clock import Clock
from spark_log.runtime.daemon_tasks import Task

LATE_MS = 2_000
"""How much longer a round waits for copies that are under way."""


class Copier(Protocol):
    """Copies to brokers what they lack."""

    def copy(self, state: State, read_ms: int, brokers: Sequence[int], limit_ms: int) -> dict[int, CopyTally]:
        """Copy to brokers for about `limit_ms`.  Returns the results by broker; failures of roots are logged.

        A pass that is late has its result in a later call; it is a problem only if it has copied nothing for as long as
        this call waited.
        state:    the newest state.
        read_ms:  when it was read, on the monotonic clock.
        brokers:  the brokers that lack objects in this state.
        """


class _Progress:
    """When the last bytes of a pass were read or written."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._moved_ms, self._waits = clock, clock.monotonic_ms(), False

    def note(self, doing: str) -> None:
        """Called with the next step of some copy: "read", "wait" for the throttle, or "write"."""
        self._waits, self._moved_ms = doing == "wait", self._clock.monotonic_ms()

    def has_stopped(self, after_ms: int) -> bool:
        """Whether nothing was copied for so long, although the throttle allowed it."""
        return not self._waits and self._clock.monotonic_ms() - self._moved_ms >= after_ms


@dataclass(slots=True)
class _Copying:
    """Copying to one broker that is under way."""

    root: tuple[int, int]
    """Epoch and mount of the broker."""
    task: Task[CopyTally]
    planned: tuple[State, int]
    """The state whose objects are copied, and when it was read, on the monotonic clock."""
    began_ms: int
    """On the same clock."""
    progress: _Progress
    said_ms: int = 0
    """How long it had taken when it was last said to be late."""

    def is_worth_saying(self, now_ms: int) -> bool:
        """Whether it takes twice as long as when this was last said: a root may be slow for days."""
        took_ms = now_ms - self.began_ms
        if took_ms < 2 * self.said_ms:
            return False
        self.said_ms = took_ms
        return True


class CopyThreads:
    """Copies in threads of this process."""

    def __init__(self, journal: Journal, pace: Pace) -> None:
        """pace:  limit of all copying."""
        self._journal, self._clock, self._pace = journal, journal.context.clock, pace
        self._copying: dict[int, _Copying] = {}
        """By broker."""

    def copy(self, state: State, read_ms: int, brokers: Sequence[int], limit_ms: int) -> dict[int, CopyTally]:
        until_ms = self._clock.monotonic_ms() + limit_ms
        for broker in brokers:
            self._begin(state, read_ms, broker, until_ms)
        wait_ms = limit_ms + LATE_MS
        done = {broker: self._result(broker, until_ms + LATE_MS, wait_ms) for broker in list(self._copying)}
        failed = {broker: copied for broker, copied in done.items() if copied.problems and self._is_news(broker)}
        log_problems(self._journal, failed)
        return done

    def _begin(self, state: State, read_ms: int, broker: int, until_ms: int) -> None:
        root, known = (epoch_of(state, broker) or 0, self._journal.roots.mount(broker)), self._copying.get(broker)
        if known is not None and known.root == root:
            return  # still under way; of another root it changes nothing any more, or hangs with it
        journal, pace, progress = self._journal, self._pace, _Progress(self._clock)
        work = Task(
            lambda: catch_up_broker(journal, state, broker, pace, until_ms, progress.note),
            f"pylog-copy-{broker}",
            journal.context.threads,
        )
        self._copying[broker] = _Copying(root, work, (state, read_ms), self._clock.monotonic_ms(), progress)

    def _result(self, broker: int, until_ms: int, wait_ms: int) -> CopyTally:
        copying = self._copying[broker]
        task = copying.task
        task.wait((until_ms - self._clock.monotonic_ms()) / 1000)
        if not task.ended:
            if not copying.progress.has_stopped(wait_ms):
                return CopyTally(left=True, is_under_way=True)
            why = f"copying to broker {broker} is late: its root, or that of another copy, does not answer"
            return CopyTally(problems=[why], left=True)
        del self._copying[broker]
        try:
            return replace(task.result(), planned=copying.planned)
        except Exception as error:  # noqa: BLE001  of one broker; the others continue
            return CopyTally(problems=[f"copying to broker {broker} failed: {_text(error)}"], left=True)

    def _is_news(self, broker: int) -> bool:
        """Whether a result is logged: it is final, or late for long."""
        known = self._copying.get(broker)
        return known is None or known.is_worth_saying(self._clock.monotonic_ms())


def log_problems(journal: Journal, done: dict[int, CopyTally]) -> None:
    for copied in done.values():
        for problem in copied.problems:
            logger.warning("%s: %s", journal.metadata.url, problem)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, SparkLogError | OSError) else repr(error)
