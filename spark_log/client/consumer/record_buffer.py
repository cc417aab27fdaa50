"""Records that a consumer has read for iteration, and not returned yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from spark_log.client.consumer.cursor import Readable
from spark_log.client.consumer.fetch_positions import NOWHERE, FetchPositions
from spark_log.client.reader.erased_since import ErasedSince
from spark_log.errors import LogRestored
from spark_log.journal.journal import Journal
from spark_log.metadata.set_backs import lineage_of
from spark_log.model import ConsumerRecord
from spark_log.runtime.clock import ticks_of


class RecordBuffer:
    """Records of one poll, one after the other."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._now_s = ticks_of(journal.context.clock)
        self._parts: deque[Readable] = deque()
        """One list a partition, not begun."""
        self._rest: Iterator[tuple[ConsumerRecord, int, float]] = iter(())
        """The rest of the list in progress, with the time at which each record is taken,"""
        self._from = NOWHERE
        """and its partition."""
        self._erased = ErasedSince(journal)
        """Since these records were requested."""

    def discard(self) -> None:
        """Forget the records: they were not returned."""
        self._parts.clear()
        self._rest, self._from = iter(()), NOWHERE

    def note_request(self) -> None:
        """The records to come are requested now."""
        self._erased = ErasedSince(self._journal)

    def add(self, parts: Sequence[Readable]) -> None:
        self._parts.extend(parts)

    def take(self, positions: FetchPositions) -> ConsumerRecord | None:
        """The next record, with which its position advances.  None: read others, and discard what is left."""
        while True:
            for record, position, now_s in self._rest:
                known = self._erased
                if (now_s >= known.due_s or self._journal.view is not known.seen) and self._is_outdated():
                    return None
                self._from.position = position
                return record
            if not self._parts:
                return None
            part = self._parts.popleft()
            self._rest = zip(part.records, part.positions(), iter(self._now_s, None), strict=False)
            self._from = positions[part.tp]

    def _is_outdated(self) -> bool:
        """Whether some of these records were erased since, or the log was restored."""
        try:
            erased = self._erased.has(self._from.key[0])
        except LogRestored:
            return True
        return erased or self._erased.lineage != lineage_of(self._journal.state)
