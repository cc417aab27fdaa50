"""Whether records were erased since a read was planned: what is read after an erasure is planned again.

The plan names objects that an erasure has replaced, and that maintenance deletes days later.
"""

from __future__ import annotations

from contextlib import suppress

from spark_log.errors import ConcurrentChange, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.metadata.erasures import erased_at
from spark_log.metadata.set_backs import lineage_of
from spark_log.runtime.clock import ticks_of

LOCAL_LOOK_MS = 20
LOOK_MS = 1000
"""After this time, the log is looked at again: each look is a request."""


class ErasedSince:
    """The erasures since one plan, for its reads."""

    def __init__(self, journal: Journal) -> None:
        """journal:  its state is that of the plan."""
        self._journal, self._now_s = journal, ticks_of(journal.context.clock)
        self.seen = journal.view
        """The last view in which nothing was erased since, from any topic."""
        self._version, self.lineage = self.seen.state.version, lineage_of(self.seen.state)
        """The second: of the plan."""
        is_direct = journal.metadata.local and not journal.metadata_log.is_served
        self._every_s = (LOCAL_LOOK_MS if is_direct else LOOK_MS) / 1000
        self.due_s = journal.refreshed_s + self._every_s
        """When the log is to be looked at again."""

    def has(self, topic_id: str) -> bool:
        """Whether records of a topic were erased since.  Before `due_s`, and while the journal's view is `seen`, the
        answer is no: who asks for each record compares these first.

        While the log cannot be reached, what this process knows counts: reads continue without it.
        """
        if (now_s := self._now_s()) >= self.due_s:
            self._look(now_s)
        view = self._journal.view
        if view is not self.seen and all(row.version <= self._version for row in view.state.erasures.values()):
            self.seen = view
        return view is not self.seen and erased_at(view.state, topic_id) > self._version

    def _look(self, now_s: float) -> None:
        """Unless another read of this process has just looked."""
        self.due_s = self._journal.refreshed_s + self._every_s
        if now_s >= self.due_s:
            self.due_s = now_s + self._every_s
            with suppress(StorageUnavailable):
                self._journal.refresh(int(now_s * 1000) + LOOK_MS)


def view_was_erased_from(name: str) -> ConcurrentChange:
    """The error of a view of the latest records: it is of one version, so a part of it cannot be planned again."""
    return ConcurrentChange(
        f"records were erased from topic {name!r} after the latest records of each key were planned: read them again"
    )
