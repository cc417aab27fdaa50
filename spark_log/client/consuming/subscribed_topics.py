"""What a consumer has subscribed to: topics by name or by a pattern, and who is told of partitions that come and go."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from spark_log.errors import InvalidRequest
from spark_log.metadata.decide import refuse_progress_topic
from spark_log.metadata.state import State, TopicKey
from spark_log.model import TopicPartition

Wanted = dict[TopicPartition, TopicKey]


class SubscribedTopics:
    """One subscription, from `subscribe` on.  Raises InvalidRequest if it is not one of names and a pattern."""

    def __init__(self, topics: Iterable[str] | str, pattern: str | None, listener: object) -> None:
        self.topics = frozenset([topics] if isinstance(topics, str) else topics)
        if bool(self.topics) == (pattern is not None):
            raise InvalidRequest("subscribe: give topics or a pattern, one of them")
        for name in self.topics:
            refuse_progress_topic(name)
        self.pattern = None if pattern is None else _compiled(pattern)
        self._listener = listener
        self._seen: frozenset[TopicPartition] | None = None
        """What it was about at the last look."""
        self._appeared: frozenset[TopicPartition] = frozenset()
        """Of that, what was not there when the subscription began."""

    def wanted(self, state: State) -> Wanted:
        """All partitions that the subscription is about; it is noted which of them are new."""
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
        """Whether a partition appeared after the subscription had begun."""
        return partition in self._appeared

    def names(self, partitions: Iterable[TopicPartition]) -> frozenset[str]:
        """The topics by name, those of `partitions` where there is a pattern."""
        return self.topics if self.pattern is None else frozenset(tp.topic for tp in partitions)

    def tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """Tell the listener, if there is one that wants to know."""
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
