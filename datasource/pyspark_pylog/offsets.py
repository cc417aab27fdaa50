"""A stream's offset as Spark keeps it: the next record of each partition, with the topics' ids.

    {"orders": {"0": 17, "1": 4}, "@topics": {"orders": "<id>"}}

The ids tell a topic that was deleted and created again, which is another topic.  No topic's name has an `@`: what does is
about the offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_log.metadata.state import State
from spark_log.model import TopicPartition

MARK = "@"
TOPICS = "@topics"

Ends = dict[TopicPartition, int]


def encode(state: State, ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """An offset as Spark keeps it."""
    offset: dict[str, Any] = {}
    for tp, end in sorted(ends.items()):
        offset.setdefault(tp.topic, {})[str(tp.partition)] = end
    return {**offset, TOPICS: {topic: state.names[topic] for topic in offset}}


def decode(offset: Mapping[str, Any]) -> Ends:
    """The positions of an offset."""
    return {
        TopicPartition(topic, int(number)): end
        for topic, numbers in offset.items()
        if not topic.startswith(MARK)
        for number, end in numbers.items()
    }
