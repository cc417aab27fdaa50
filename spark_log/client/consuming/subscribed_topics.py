"""A consumer's subscription: topics by name or pattern, and its rebalance listener."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from spark_log.errors import InvalidRequest
from spark_log.metadata.decide.topics import refuse_progress_topic
from spark_log.metadata.state import State, TopicKey
from spark_log.model import TopicPartition

Wanted = dict[TopicPartition, TopicKey]


class SubscribedTopics:
    """One subscription.  Raises InvalidRequest unless either names or a pattern are given."""

    def __init__(self, topics: Iterable[str] | str, pattern: str | None, listener: object) -> None:
        self.topics = frozenset([topics] if isinstance(topics, str) else topics)
        if bool(self.topics) == (pattern is not None):
            raise InvalidRequest("subscribe: give either topics or a pattern")
        for name in self.topics:
            refuse_progress_topic(name)
        self.pattern = None if pattern is None else _compiled(pattern)
        self._listener = listener
        self._seen: frozenset[TopicPartition] | None = None
        """The partitions at the last update."""
        self._appeared: frozenset[TopicPartition] = frozenset()
        """The partitions that were created after the subscription began."""

    def wanted(self, state: State) -> Wanted:
        """All partitions of the subscription.  Also records which of them are new."""
        wanted = {
            TopicPartition(name, number): (topic_id, number)
            for name, topic_id in state.names.items()
            if (name in self.topics if self.pattern is None else self.pattern.fullmatch(name))
            for number in range(state.topics[topic_id].partitions)
        }
        there = frozenset(wanted)
        self._appeared = frozenset() if self._seen is None else (self._appeared | (there - self._seen)) & there
        self._seen = there
        return wanted

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether a partition was created after the subscription began."""
        return partition in self._appeared

    def names(self, partitions: Iterable[TopicPartition]) -> frozenset[str]:
        """The topics by name; with a pattern, the topics of `partitions`."""
        return self.topics if self.pattern is None else frozenset(tp.topic for tp in partitions)

    def notify(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """Call the listener's method `what`, if it has one."""
        method = getattr(self._listener, what, None)
        if method is None and what == "on_partitions_lost":
            method = getattr(self._listener, "on_partitions_revoked", None)
        if method is not None:
            method(list(partitions))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRequest(f"pattern: {pattern!r} is not a regular expression: {error}") from error
