"""Looks on the replicas for objects without any known copy.

Roots may hang, so each is searched in a separate thread, which no round waits for; it records what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.commands import Report
from spark_log.metadata.maps.column_map import rows_with_copies
from spark_log.metadata.records import Copy, HeldRecord
from spark_log.metadata.replicas.replicas import copies_of, epoch_of, is_active, keeps
from spark_log.metadata.state import ObjectRow, State
from spark_log.replication.checked_copies import is_good
from spark_log.runtime.daemon_tasks import Task

WAIT_S = 2.0
"""How long a round waits for searches that it has begun."""
AGAIN_MS = 60_000
"""Objects are looked for on a root this often."""
NAMES_MAX = 1_000
"""The most objects that a round looks for."""


class ObjectSearch:
    """Searches for the objects of one log.  Not thread-safe."""

    def __init__(self, journal: Journal, names_max: int = NAMES_MAX) -> None:
        self._journal, self._clock, self._names_max = journal, journal.context.clock, names_max
        self._tasks: dict[int, tuple[int, Task[int]]] = {}
        """By broker: its epoch, and the search that is under way."""
        self._looked: dict[tuple[str, int], tuple[int, int]] = {}
        """By object and broker: when it was looked for, and the broker's epoch."""

    def round(self, state: State) -> int:
        """How many copies were found since the last round."""
        keys = {number for number, copies in state.copies.items() if not copies.brokers}
        if not keys:
            self._looked.clear()
            return 0
        replicas = {one for number in keys for one in state.placement_groups[state.copies[number].group].replicas}
        begun = [self._begin(state, keys, one) for one in sorted(replicas) if self._is_due(state, one)]
        until_ms = self._clock.monotonic_ms() + WAIT_S * 1000
        for task in begun:
            task.wait((until_ms - self._clock.monotonic_ms()) / 1000)
        return sum(self._found(broker) for broker, (_, task) in list(self._tasks.items()) if task.ended)

    def _is_due(self, state: State, broker: int) -> bool:
        """Whether no search is under way on an active broker; one under an older epoch finds nothing any more."""
        known = self._tasks.get(broker)
        return is_active(state, broker) and (known is None or known[0] != epoch_of(state, broker))

    def _begin(self, state: State, keys: set[int], broker: int) -> Task[int]:
        epoch, threads = epoch_of(state, broker) or 0, self._journal.context.threads
        task = Task(lambda: self._search(state, keys, broker, epoch), f"pylog-search-{broker}", threads)
        self._tasks[broker] = epoch, task
        return task

    def _found(self, broker: int) -> int:
        _, task = self._tasks.pop(broker)
        try:
            return task.result()
        except SparkLogError as error:
            logger.warning("%s: objects without a known copy were not found: %s", self._journal.metadata.url, error)
            return 0

    def _search(self, state: State, keys: set[int], broker: int, epoch: int) -> int:
        now_ms = self._clock.monotonic_ms()
        found = list[Copy]()
        for name, row in islice(self._due(state, keys, broker, epoch), self._names_max):
            self._looked[name, broker] = now_ms, epoch
            if self._has_good(broker, name, row):
                found.append(Copy(name, broker, epoch))
        if found:
            self._journal.propose(Report.of(state, HeldRecord(copies=tuple(found))))
        return len(found)

    def _due(self, state: State, keys: set[int], broker: int, epoch: int) -> Iterator[tuple[str, ObjectRow]]:
        """The objects that a broker may have; those for which it was not looked for long."""
        for name, row in rows_with_copies(state.objects, keys):
            looked_ms, under = self._looked.get((name, broker), (0, -1))
            is_due = under != epoch or self._clock.monotonic_ms() - looked_ms >= AGAIN_MS
            if is_due and _may_have(state, broker, name, row):
                yield name, row

    def _has_good(self, broker: int, name: str, row: ObjectRow) -> bool:
        try:
            self._journal.roots.check(broker, again=True)
            return is_good(self._journal.roots[broker], name, row)
        except (SparkLogError, KeyError):
            return False  # not readable now


def _may_have(state: State, broker: int, name: str, row: ObjectRow) -> bool:
    copies = copies_of(state, row)
    return copies is not None and broker in state.placement_groups[copies.group].replicas and keeps(state, broker, name)
