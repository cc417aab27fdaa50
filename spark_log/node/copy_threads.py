"""Copying to several brokers at the same time, with a thread for each.

Roots may hang.  So a round does not wait for those that are late, and the next round asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.replicas import epoch_of
from spark_log.metadata.state import State
from spark_log.node.broker_copies import Copied, copy_to_broker
from spark_log.node.copy_throttle import Pace
from spark_log.node.daemon_tasks import Task

LATE_MS = 2_000
"""How much longer a round waits for copies that are under way."""

logger = logging.getLogger("spark_log")


class Copier(Protocol):
    """Copies to brokers what they lack."""

    def copy(self, state: State, brokers: Sequence[int], limit_ms: int) -> dict[int, Copied]:
        """Copy for about so long; the results by broker.  Failures of roots are logged.

        state:    the newest one.
        brokers:  those that lack something in it.
        """


class CopyThreads:
    """Copies in threads of this process."""

    def __init__(self, journal: Journal, pace: Pace) -> None:
        """pace:  limit of all copying."""
        self._journal, self._clock, self._pace = journal, journal.context.clock, pace
        self._tasks: dict[int, tuple[int, Task[Copied]]] = {}
        """By broker: its epoch, and the copying that is under way."""

    def copy(self, state: State, brokers: Sequence[int], limit_ms: int) -> dict[int, Copied]:
        until_ms = self._clock.monotonic_ms() + limit_ms
        for broker in brokers:
            self._begin(state, broker, until_ms)
        done = {broker: self._result(broker, until_ms + LATE_MS) for broker in list(self._tasks)}
        log_problems(self._journal, done)
        return done

    def _begin(self, state: State, broker: int, until_ms: int) -> None:
        epoch, known = epoch_of(state, broker) or 0, self._tasks.get(broker)
        if known is not None and known[0] == epoch:
            return  # still under way; under an older epoch it changes nothing any more
        journal, pace = self._journal, self._pace
        work = Task(
            lambda: copy_to_broker(journal, state, broker, pace, until_ms),
            f"pylog-copy-{broker}",
            journal.context.threads,
        )
        self._tasks[broker] = epoch, work

    def _result(self, broker: int, until_ms: int) -> Copied:
        _, task = self._tasks[broker]
        task.wait((until_ms - self._clock.monotonic_ms()) / 1000)
        if not task.ended:
            why = f"copying to broker {broker} is late: its root, or that of another copy, does not answer"
            return Copied(problems=[why], left=True)
        del self._tasks[broker]
        try:
            return task.result()
        except Exception as error:  # noqa: BLE001  of one broker; the others continue
            return Copied(problems=[f"copying to broker {broker} failed: {_text(error)}"], left=True)


def log_problems(journal: Journal, done: dict[int, Copied]) -> None:
    for copied in done.values():
        for problem in copied.problems:
            logger.warning("%s: %s", journal.metadata.url, problem)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, SparkLogError | OSError) else repr(error)
