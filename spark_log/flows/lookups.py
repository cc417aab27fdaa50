"""Lookups of a flow: the latest records of compacted topics, as tables that the function gets beside its batch."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from spark_log.client.reader.latest import scan_latest
from spark_log.configs.settings import has_cleanup_policy
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.metadata.erasures import erased_at
from spark_log.metadata.set_backs import Lineage, lineage_of
from spark_log.metadata.state import State

PAUSE_FACTOR = 9
"""A table is read again after so many times as long as reading it took: a tenth of the time is spent on it."""


class TableStand(NamedTuple):
    """A topic, as a table has it."""

    topic_id: str
    lineage: Lineage
    erased: int
    """The version of the last erasure from it."""
    parts: tuple[tuple[int, int, int], ...]
    """Start, end and edition of each partition: records are also removed, as by a trim."""


class LookupTable:
    """The table of one topic.  Used by one thread."""

    def __init__(self, journal: Journal, topic: str, value_format: str | None) -> None:
        self._journal = journal
        self._clock = journal.context.clock
        self._topic = topic
        self._value_format = value_format
        self._table: pa.Table | None = None
        self.stand: TableStand | None = None
        """State of the topic from which the table was read; None before the first read."""
        self._due_ms = 0.0

    def table(self) -> pa.Table:
        """The table, read again if the topic has changed and it is not too soon, or records were erased from it.

        Raises UnknownTopicOrPartition, and InvalidRequest if the topic is not compacted.
        """
        stand = self._now()
        began_ms = self._clock.monotonic_ms()
        if self._table is None or (stand != self.stand and (began_ms >= self._due_ms or self._is_erased(stand))):
            table = scan_latest(self._journal, self._topic, None, "latest", None, None, self._value_format).read_all()
            self._table, self.stand = table, stand
            ended_ms = self._clock.monotonic_ms()
            self._due_ms = ended_ms + PAUSE_FACTOR * (ended_ms - began_ms)
        return self._table

    def _is_erased(self, now: TableStand | None) -> bool:
        return now is None or self.stand is None or now.erased != self.stand.erased

    def _now(self) -> TableStand | None:
        """How far the topic is, by the newest state that is known; None: it is not there."""
        state = self._journal.require([self._topic])
        topic_id = state.names.get(self._topic)
        if topic_id is None:
            return None
        _check_compacted(state, self._topic)
        parts = (state.partitions[topic_id, number] for number in range(state.topics[topic_id].partitions))
        found = tuple((part.start, part.readable_end, part.edition) for part in parts)
        return TableStand(topic_id, lineage_of(state), erased_at(state, topic_id), found)


def _check_compacted(state: State, topic: str) -> None:
    if not has_cleanup_policy(state.topics[state.names[topic]].configs, "compact"):
        raise InvalidRequest(
            f"lookup: topic {topic!r} is not compacted, so its table would take ever longer to read: "
            f"pylog topic alter {topic} -c cleanup.policy=compact"
        )
