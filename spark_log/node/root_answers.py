"""Which roots of brokers answer now.  A root that hangs keeps one thread, however often it is asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from spark_log.journal.journal import Journal
from spark_log.metadata.replica_state import OWN_BROKER
from spark_log.node.daemon_tasks import Task

logger = logging.getLogger("spark_log")


class RootAnswers:
    """Asks the roots of one log's brokers.  Thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._asked: dict[int, Task[None]] = {}

    def among(self, brokers: Collection[int], wait_s: float) -> set[int]:
        """Those of some brokers whose roots are theirs, and say so within this time.

        Broker 0 is one of them: a process that changes the log has just read its root.
        """
        clock = self._journal.context.clock
        until_ms = clock.monotonic_ms() + wait_s * 1000
        asked = {broker: self._ask(broker) for broker in brokers if broker != OWN_BROKER}
        for task in asked.values():
            task.wait((until_ms - clock.monotonic_ms()) / 1000)
        return {OWN_BROKER}.intersection(brokers) | {one for one, task in asked.items() if _has_answered(one, task)}

    def _ask(self, broker: int) -> Task[None]:
        journal = self._journal
        with self._lock:
            task = self._asked.get(broker)
            if task is None or task.ended:
                task = self._asked[broker] = Task(
                    lambda: journal.roots.check(broker, again=True), f"pylog-ask-{broker}", journal.context.threads
                )
        return task


def _has_answered(broker: int, task: Task[None]) -> bool:
    if not task.ended:
        return False
    try:
        task.result()
    except Exception as error:  # noqa: BLE001  of one root; the others may answer
        logger.info("the root of broker %d: %s", broker, error)
        return False
    return True
