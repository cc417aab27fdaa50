"""Whether records were erased since the driver planned a task: what a task reads after an erasure is planned again.

A frame is planned once and used for days.  Its plan names objects that an erasure has replaced, and that maintenance
deletes only days later.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from pyspark_pylog.log.open_log import KEPT, KEPT_MAX, Key
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import newest_journal
from spark_log.errors import StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.metadata.erasures import erased_at
from spark_log.runtime.clock import SystemClock

LOOK_MS = 1000
"""After this time, the log is looked at again: each look is a request.  All tasks of a process share it."""
_looked_ms: dict[Key, int] = {}
"""By log: when this process last looked.  Its kept journal has the state of then, or a newer one."""


class TaskErasures:
    """The erasures that one task knows."""

    def __init__(
        self, log: PlannedLog, known: Mapping[str, int] = MappingProxyType({}), looked_ms: int | None = None
    ) -> None:
        """
        known:      by topic id, the version of the last erasure, by the pin of the query.
        looked_ms:  when the pin was made; None: the plan is the newest that is known.
        """
        self._log, self._known, self._version, self._clock = log, known, log.version, SystemClock()
        self._looked_ms = log.time_ms if looked_ms is None else looked_ms
        self._journal: Journal | None = None

    def has(self, topic_id: str) -> bool:
        """Whether records of a topic were erased since.  While the log cannot be reached, what is known counts."""
        if self._known.get(topic_id, -1) > self._version:
            return True
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._looked_ms) >= LOOK_MS:  # by clocks of two machines at first
            self._looked_ms = now_ms
            with suppress(StorageUnavailable):
                self._journal = _recent_journal(self._log, now_ms)
        return self._journal is not None and erased_at(self._journal.state, topic_id) > self._version

    def journal(self) -> Journal:
        """A journal with a state that knows the erasures that `has` has found."""
        if self._journal is None or erased_before(self._journal, self._known):
            self._journal = newest_journal(self._log)
        return self._journal

    def at(self, journal: Journal) -> TaskErasures:
        """The erasures since a plan that is made by the state of a journal."""
        new = TaskErasures(self._log, {}, self._looked_ms)
        new._version, new._journal = journal.state.version, journal
        return new


def _recent_journal(log: PlannedLog, now_ms: int) -> Journal:
    """A journal of the process, at most `LOOK_MS` old and not older than the plan."""
    key: Key = (log.url, log.token, log.roots)
    journal, looked_ms = KEPT.get(key), _looked_ms.get(key, 0)
    is_recent = abs(now_ms - looked_ms) < LOOK_MS and journal is not None and journal.cluster_id == log.cluster_id
    if journal is None or not is_recent or journal.state.version < log.version:
        journal = newest_journal(log)
        _looked_ms.pop(key, None)
        _looked_ms[key] = now_ms
        for oldest in tuple(_looked_ms)[:-KEPT_MAX]:
            _looked_ms.pop(oldest, None)
    return journal


def erased_before(journal: Journal, known: Mapping[str, int]) -> bool:
    """Whether a state is older than an erasure that is known."""
    return journal.state.version < max(known.values(), default=-1)
