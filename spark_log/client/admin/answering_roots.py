"""Which roots of brokers answer now.  A root that hangs keeps one thread, however often it is asked."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import suppress

from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.replicas.replicas import epoch_of
from spark_log.runtime.daemon_tasks import Task
from spark_log.runtime.own_failures import is_own
from spark_log.store.retry import RetryingStore


class RootAnswers:
    """Asks the roots of one log's brokers.  Thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._asked: dict[tuple[int, int, int], Task[None]] = {}
        """By broker, its epoch and mount: a root that was replaced or detached may hang for ever."""
        self._denied: dict[int, int] = {}
        """Broker and epoch of the roots whose last answer was that this process has no access, or is at its limits."""

    def among(self, brokers: Collection[int], wait_s: float, names: Mapping[int, str] | None = None) -> set[int]:
        """The brokers whose roots answer within `wait_s`, and prove to be the roots of those brokers.

        names:  by broker, an object to look at as well: the root's description may be in a cache while the disk hangs.
        """
        clock = self._journal.context.clock
        until_ms = clock.monotonic_ms() + wait_s * 1000
        asked = {broker: self._ask(broker, (names or {}).get(broker)) for broker in brokers}
        for task in asked.values():
            task.wait((until_ms - clock.monotonic_ms()) / 1000)
        return {one for one, task in asked.items() if _has_answered(one, task)}

    def was_denied(self, broker: int) -> bool:
        """Whether the last answer of the root of a broker was an error of this process: the root may be in order."""
        return self._denied.get(broker) == (epoch_of(self._journal.newest, broker) or 0)

    def _ask(self, broker: int, name: str | None) -> Task[None]:
        journal = self._journal
        key = broker, epoch_of(journal.newest, broker) or 0, journal.roots.mount(broker)

        def ask() -> None:
            try:
                self._look(broker, name)
            except Exception as error:
                if is_own(error):
                    self._denied[broker] = key[1]
                else:
                    self._denied.pop(broker, None)
                raise
            self._denied.pop(broker, None)

        with self._lock:
            task = self._asked.get(key)
            if task is None or task.ended:
                self._asked = {one: known for one, known in self._asked.items() if one[0] != broker}
                task = self._asked[key] = Task(ask, f"pylog-ask-{broker}", journal.context.threads)
        return task

    def _look(self, broker: int, name: str | None) -> None:
        self._journal.roots.check(broker, again=True)
        if name is not None:
            store = self._journal.roots[broker]
            with suppress(SparkLogError, OSError):  # one bad object says nothing about the others
                (store.inner if isinstance(store, RetryingStore) else store).get(name, 0, 1)


def _has_answered(broker: int, task: Task[None]) -> bool:
    if not task.ended:
        return False
    try:
        task.result()
    except Exception as error:  # noqa: BLE001  of one root; the others may answer
        logger.info("the root of broker %d: %s", broker, error)
        return False
    return True
