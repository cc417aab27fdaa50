"""A consumer's subscription: topics by name or pattern, and its rebalance listener."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from immutables import Map

from spark_log.errors import InvalidRequest
from spark_log.metadata.decide.topics import refuse_progress_topic
from spark_log.metadata.state import State, Topic, TopicKey
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
        self._maps: tuple[Map[str, str], Map[str, Topic]] | None = None
        """The names and topics of the state that `_wanted` is of."""
        self._wanted: Wanted = {}
        self._names: frozenset[str] = frozenset()
        self._share: frozenset[TopicPartition] | None = None
        self._owned: Wanted = {}
        self._seen: frozenset[TopicPartition] | None = None
        """The partitions at the last update."""
        self._appeared: frozenset[TopicPartition] = frozenset()
        """The partitions that were created after the subscription began."""

    def wanted(self, state: State) -> Wanted:
        """All partitions of the subscription, the same object until topics change.  Also records which are new."""
        if self._maps is None or self._maps[0] is not state.names or self._maps[1] is not state.topics:
            self._maps, self._share = (state.names, state.topics), None
            self._wanted = self._updated(state)
            self._names = frozenset(tp.topic for tp in self._wanted)
        return self._wanted

    def owned(self, state: State, share: frozenset[TopicPartition] | None) -> Wanted:
        """The partitions of the subscription that are in `share`, the same object until one of them changes.

        share:  None: all of them.
        """
        wanted = self.wanted(state)
        if share is None:
            return wanted
        if self._share is None or share != self._share:
            self._share = share
            self._owned = {tp: wanted[tp] for tp in share if tp in wanted}
        return self._owned

    def _updated(self, state: State) -> Wanted:
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
        if self.pattern is not None and partitions is self._wanted:
            return self._names
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
