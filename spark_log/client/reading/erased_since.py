"""Whether records were erased since a read was planned: what is read after an erasure is planned again.

The plan names objects that an erasure has replaced, and that upkeep deletes days later.
"""

from __future__ import annotations

from contextlib import suppress

from spark_log.errors import ConcurrentChange, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.metadata.erasures import erased_at

LOCAL_LOOK_MS = 20
LOOK_MS = 1000
"""After this time, the log is looked at again: each look is a request."""


class ErasedSince:
    """For the reads of one plan."""

    def __init__(self, journal: Journal) -> None:
        """journal:  its state is that of the plan."""
        self._journal, self._clock = journal, journal.context.clock
        self._version = journal.state.version
        self._looked_ms = self._clock.monotonic_ms()
        is_direct = journal.metadata.local and not journal.metadata_log.is_served
        self._every_ms = LOCAL_LOOK_MS if is_direct else LOOK_MS

    def has(self, topic_id: str) -> bool:
        """Whether records of a topic were erased since.

        While the log cannot be reached, what this process knows counts: reads continue without it.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= self._every_ms:
            self._looked_ms = now_ms
            with suppress(StorageUnavailable):
                self._journal.refresh(now_ms + LOOK_MS)
        return erased_at(self._journal.state, topic_id) > self._version


def view_was_erased_from(name: str) -> ConcurrentChange:
    """The error of a view of the latest records: it is of one version, so a part of it cannot be planned again."""
    return ConcurrentChange(
        f"records were erased from topic {name!r} after the latest records of each key were planned: read them again"
    )
