"""Positions that the readers of a topic may have, whatever became of the topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from simulation.log_sim.content import Row
from simulation.verdict import Violation
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.state import TopicKey

GROUP = "readers of again"


class Delivered:
    """How far a group was given the records of each topic, whatever the topic's name."""

    def __init__(self) -> None:
        self._upto: dict[TopicKey, int] = {}

    def note(self, rows: Mapping[TopicKey, Sequence[Row]], partition: int, offset: int, row: Row) -> None:
        """A record was delivered: its topic is the one that has it at this offset."""
        for key, known in rows.items():
            if key[1] == partition and known[offset : offset + 1] == [row]:
                self._upto[key] = max(self._upto.get(key, 0), offset + 1)

    def check(self, commits: Iterable[GroupCommit]) -> None:
        for commit in commits:
            for entry in commit.offsets if commit.group == GROUP else ():
                read = self._upto.get((entry.topic_id, entry.partition), 0)
                if entry.offset > read:
                    raise Violation(f"skipped: {GROUP} is at {entry.offset} of {entry.topic_id}, and has read {read}")
