"""Offsets of a stream, as Spark stores and shows them.

An offset is the next record of each partition.  Keys that begin with @, which no topic name contains, are pylog's:

    {"orders": {"0": 17, "1": 4},
     "@topics": {"orders": "<id>"},       detects a topic that was deleted and created again
     "@log": "<id>",                      detects another log, such as one that was restored from a backup
     "@history": "<id>",                  detects that this log was restored from a copy, if it was before
     "@seen": [17, 1769853600000, "<id>"],  version of the log, its time and record: detects a disk that was set back
     "@starts": {"orders": {"1": 2}},     start of the batch, if it is not the end of the previous one
     "@latest": {"orders": {"0": 90}},    end of the view of a query that begins with the latest record of each key
     "@fired": 1769853600000,             start time of the batch, if minOffsetsPerTrigger delays batches
     "@query": "<token>"}                 identifies the query that owns the group (group_publisher.py)

An offset of an older pylog lacks some of these keys.  Unknown keys are copied from one offset to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_log.metadata.restores import SeenLog
from spark_log.metadata.state import State
from spark_log.model import TopicPartition

TOPICS, LOG, STARTS, LATEST, FIRED = "@topics", "@log", "@starts", "@latest", "@fired"
HISTORY, SEEN = "@history", "@seen"

Ends = dict[TopicPartition, int]
NOTHING_SEEN = SeenLog()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A position of a stream."""

    ends: Ends
    """The next record of each partition."""
    ids: Mapping[str, str]
    """Topic ids by name."""
    log: str = ""
    """The id of the log; "" in offsets of older pylogs, and if no batch has been planned."""
    seen: SeenLog = NOTHING_SEEN
    """The log when its batch was planned."""
    starts: Ends = field(default_factory=dict)
    """Start of its batch: in new partitions, in those of topics created again, after lost records, and in all of the
    first batch."""
    latest: Ends = field(default_factory=dict)
    """Ends of the partitions in which its batch begins before them: before such an end, only the latest record of
    each key is read."""
    fired_ms: int | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)
    moved: frozenset[TopicPartition] = frozenset()
    """Partitions in which it was set back, since the log was restored.  Not stored."""

    @property
    def history(self) -> str | None:
        """The history of the log when its batch was planned; None if that is not known."""
        return self.seen.history if self.log else None

    def same_topic(self, topic: str, topic_id: str | None) -> bool:
        """Whether the topic is the one of this offset.  The oldest offsets have no ids."""
        return self.ids.get(topic, topic_id) == topic_id

    def says_as(self, other: Offset) -> bool:
        """Whether both offsets have the same position."""
        return self.ends == other.ends and all(other.same_topic(*entry) for entry in self.ids.items())

    def encode(self) -> dict[str, Any]:
        ours: dict[str, Any] = {**self.carried, TOPICS: dict(self.ids)}
        if self.log:
            ours[LOG] = self.log
        if self.seen.history:
            ours[HISTORY] = self.seen.history
        if self.seen.version:
            ours[SEEN] = list(self.seen[1:])
        if self.starts:
            ours[STARTS] = _nested(self.starts)
        if self.latest:
            ours[LATEST] = _nested(self.latest)
        if self.fired_ms is not None:
            ours[FIRED] = self.fired_ms
        return {**_nested(self.ends), **ours}


def offset_at(state: State, ends: Ends) -> Offset:
    """The offset with these ends and the current topic ids."""
    return Offset(ends=ends, ids={tp.topic: state.names[tp.topic] for tp in sorted(ends)})


def parse_offset(given: Mapping[str, Any]) -> Offset:
    """Parse an offset of a checkpoint."""
    carried = {name: kept for name, kept in given.items() if name.startswith("@")}
    ids, starts, fired_ms = carried.pop(TOPICS, {}), _flat(carried.pop(STARTS, {})), carried.pop(FIRED, None)
    log, latest = carried.pop(LOG, ""), _flat(carried.pop(LATEST, {}))
    seen = SeenLog(carried.pop(HISTORY, ""), *carried.pop(SEEN, ()))
    ends = _flat({topic: numbers for topic, numbers in given.items() if not topic.startswith("@")})
    return Offset(
        ends=ends, ids=ids, log=log, seen=seen, starts=starts, latest=latest, fired_ms=fired_ms, carried=carried
    )


def _nested(ends: Ends) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for tp, end in sorted(ends.items()):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = end
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> Ends:
    return {
        TopicPartition(topic, int(number)): end for topic, numbers in nested.items() for number, end in numbers.items()
    }
