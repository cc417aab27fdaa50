"""Offsets of a stream, as Spark keeps and shows them.

An offset is the next record of each partition.  What begins with @, as no topic's name can, is ours:

    {"orders": {"0": 17, "1": 4},
     "@topics": {"orders": "<id>"},       so that a topic that was deleted and created again is another topic
     "@starts": {"orders": {"1": 2}},     where the batch that ends here begins, if not where the one before it ended
     "@fired": 1769853600000,             when that batch was let go, if minOffsetsPerTrigger holds batches back
     "@query": "<token>"}                 tells the query that holds the group (group_publisher.py)

An offset of an older pylog lacks some of these keys.  Keys of others are carried from one offset to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_log.metadata.state import State
from spark_log.model import TopicPartition

TOPICS, STARTS, FIRED = "@topics", "@starts", "@fired"

Ends = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Where a stream stands."""

    ends: Ends
    """The next record of each partition."""
    ids: Mapping[str, str]
    """Of the topics."""
    starts: Ends = field(default_factory=dict)
    """Where its batch begins: in new partitions, in those of topics created again, where records were lost, and in all of
    the first batch."""
    fired_ms: int | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)

    def same_topic(self, topic: str, topic_id: str | None) -> bool:
        """Whether the topic is the one that this offset speaks of.  The oldest offsets have no ids."""
        return self.ids.get(topic, topic_id) == topic_id

    def says_as(self, other: Offset) -> bool:
        """Whether it stands where the other does."""
        return self.ends == other.ends and all(other.same_topic(*entry) for entry in self.ids.items())

    def encode(self) -> dict[str, Any]:
        ours: dict[str, Any] = {**self.carried, TOPICS: dict(self.ids)}
        if self.starts:
            ours[STARTS] = _nested(self.starts)
        if self.fired_ms is not None:
            ours[FIRED] = self.fired_ms
        return {**_nested(self.ends), **ours}


def offset_at(state: State, ends: Ends) -> Offset:
    """The offset of these ends in the log as it is."""
    return Offset(ends=ends, ids={tp.topic: state.names[tp.topic] for tp in sorted(ends)})


def parse_offset(given: Mapping[str, Any]) -> Offset:
    """An offset out of a checkpoint."""
    carried = {name: kept for name, kept in given.items() if name.startswith("@")}
    ids, starts, fired_ms = carried.pop(TOPICS, {}), carried.pop(STARTS, {}), carried.pop(FIRED, None)
    ends = _flat({topic: numbers for topic, numbers in given.items() if not topic.startswith("@")})
    return Offset(ends=ends, ids=ids, starts=_flat(starts), fired_ms=fired_ms, carried=carried)


def _nested(ends: Ends) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for tp, end in sorted(ends.items()):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = end
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> Ends:
    return {
        TopicPartition(topic, int(number)): end for topic, numbers in nested.items() for number, end in numbers.items()
    }
