"""A consumer's subscription: topics by name or pattern, and its rebalance listener."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from spark_log.client.representations import brief
from spark_log.configs.topic_names import not_text
from spark_log.errors import InvalidRequest
from spark_log.metadata.projection import Projected
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.topics.decide_topics import refuse_progress_topic
from spark_log.model import TopicPartition
from spark_log.text import shown

Wanted = dict[TopicPartition, TopicKey]

LATER = "this consumer reads it as soon as it is created"


class _Selection:
    """Partitions of a subscription: another object after each change."""

    def __init__(self) -> None:
        self.now: Wanted = {}
        self._before: Wanted | None = None
        self._differing: set[TopicPartition] = set()

    def replace(self, partitions: Wanted) -> None:
        self.now, self._before, self._differing = partitions, None, set()

    def change(self, gone: Iterable[TopicPartition], there: Wanted) -> set[TopicPartition]:
        """Remove partitions and add others; returns those that differ afterwards."""
        differing = {tp for tp in (*gone, *there) if self.now.get(tp) != there.get(tp)}
        if differing:
            now = self.now.copy()
            for tp in differing:
                now.pop(tp, None)
            now.update((tp, there[tp]) for tp in differing if tp in there)
            self.now, self._before, self._differing = now, self.now, differing
        return differing

    def differing(self, before: Wanted | None) -> set[TopicPartition] | None:
        """The partitions in which it differs from an earlier object of it; None if that is not known any more."""
        return self._differing if before is not None and before is self._before else None


class SubscribedTopics:
    """One subscription.  Raises InvalidRequest unless either names or a pattern are given."""

    def __init__(self, topics: Iterable[str] | str, pattern: str | None, listener: object) -> None:
        self.topics = frozenset([topics] if isinstance(topics, str) else topics)
        if bool(self.topics) == (pattern is not None):
            raise InvalidRequest("subscribe: give either topics or a pattern")
        for name in self.topics:
            if not isinstance(name, str):
                raise not_text(name)
            refuse_progress_topic(name)
        self.pattern = None if pattern is None else _compiled(pattern)
        self._listener = listener
        self._state: State | None = None
        """The state that `_all` is of."""
        self._topics: dict[str, tuple[str, int]] = {}
        """Name and number of partitions of each topic in `_all`, by id."""
        self._all = _Selection()
        self._names: frozenset[str] = frozenset()
        self._owned = _Selection()
        self._owned_of: Wanted | None = None
        """The partitions of which `_owned` is a part."""
        self._share: frozenset[TopicPartition] | None = None
        self._appeared: set[TopicPartition] = set()
        """The partitions that were created after the subscription began."""
        self._reported: frozenset[str] | None = None
        """The names that `missing` was last called for."""
        self._missing: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return brief(sorted(self.topics)) if self.pattern is None else f"topics like {self.pattern.pattern!r}"

    @property
    def required(self) -> frozenset[str] | None:
        """The topics that a state must have for this subscription; None: all."""
        return self.topics if self.pattern is None else None

    def wanted(self, state: State) -> Wanted:
        """All partitions of the subscription.  Returns the same object until one of them changes.

        Also notes which partitions are new.  Visits only topics that changed since the last call.
        """
        known, self._state = self._state, state
        if known is None or known.names is not state.names or known.topics is not state.topics:
            changes = None if known is None else state.changes_since(known)
            topic_ids = {*self._topics, *self._candidates(state)} if changes is None else changes.topics
            self._update(state, topic_ids, is_first=known is None)
        return self._all.now

    def _candidates(self, state: State) -> Iterable[str]:
        """Ids of the topics that may be of this subscription."""
        if self.required is None:
            return state.names.values()
        return [state.names[name] for name in self.required if name in state.names]

    def _update(self, state: State, topic_ids: Iterable[str], *, is_first: bool) -> None:
        gone: list[TopicPartition] = []
        there: Wanted = {}
        for topic_id in topic_ids:
            before, after = self._topics.pop(topic_id, None), self._matched(state, topic_id)
            if after is not None:
                self._topics[topic_id] = after
            if before != after:
                gone += () if before is None else _partitions(*before)
                there |= {} if after is None else {tp: (topic_id, tp.partition) for tp in _partitions(*after)}
        differing = self._all.change(gone, there)
        if differing:
            self._names = frozenset(name for name, _ in self._topics.values())
            self._appeared -= differing - there.keys()
            if not is_first:
                self._appeared |= differing & there.keys()

    def _matched(self, state: State, topic_id: str) -> tuple[str, int] | None:
        """Name and number of partitions of a topic; None if it is not of this subscription, or was deleted."""
        topic = state.topics.get(topic_id)
        if topic is None or topic.deleted:
            return None
        matches = topic.name in self.topics if self.pattern is None else self.pattern.fullmatch(topic.name)
        return (topic.name, topic.partitions) if matches else None

    def owned(self, state: State, share: frozenset[TopicPartition] | None) -> Wanted:
        """The partitions of the subscription that are in `share`.  Returns the same object until one of them changes.

        share:  None: all partitions.
        """
        wanted = self.wanted(state)
        if share is None:
            return wanted
        differing = self._all.differing(self._owned_of)
        if self._share is None or (share is not self._share and share != self._share):
            self._owned.replace({tp: wanted[tp] for tp in share if tp in wanted})
        elif self._owned_of is not wanted:
            touched = share if differing is None else differing & share
            self._owned.change(touched, {tp: wanted[tp] for tp in touched if tp in wanted})
        self._share, self._owned_of = share, wanted
        return self._owned.now

    def differing(self, before: Wanted | None, now: Wanted) -> set[TopicPartition] | None:
        """Where a result of `wanted` or `owned` differs from the one before; None if that is not known."""
        return next((one.differing(before) for one in (self._all, self._owned) if one.now is now), None)

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether a partition was created, or created again with its topic, after the subscription began."""
        return partition in self._appeared

    def names(self, partitions: Iterable[TopicPartition]) -> frozenset[str]:
        """The topics by name; with a pattern, the topics of `partitions`."""
        if self.pattern is not None and partitions is self._all.now:
            return self._names
        return self.topics if self.pattern is None else frozenset(tp.topic for tp in partitions)

    def missing(self, state: State) -> list[str]:
        """Sentences about topics that do not exist, or were deleted; each once, until the topic exists again."""
        if self._names is self._reported:
            return []
        self._reported, before = self._names, self._missing
        if self.pattern is not None:
            return [] if self._names else [f"no topic matches {self.pattern.pattern!r} yet; {LATER}"]
        self._missing = self.topics - self._names
        return [
            f"topic {name!r} does not exist{_nearest(name, state)}; {LATER}" for name in sorted(self._missing - before)
        ]

    def notify(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """Call the listener's method `what`, if it has one."""
        method = getattr(self._listener, what, None)
        if method is None and what == "on_partitions_lost":
            method = getattr(self._listener, "on_partitions_revoked", None)
        if method is not None:
            method(list(partitions))


def _nearest(name: str, state: State) -> str:
    """A client of a coordinator may know the names of its topics only."""
    known = () if isinstance(state.names, Projected) else tuple(state.names)
    near = get_close_matches(name, known, n=1)
    return f" (the nearest name is {near[0]!r})" if near else ""


def _partitions(name: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(name, number) for number in range(count)]


def _compiled(pattern: str) -> re.Pattern[str]:
    if not pattern:
        raise InvalidRequest("pattern: it is empty, and no topic has an empty name; '.*' matches all topics")
    try:
        return re.compile(pattern)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"pattern: {shown(pattern)} is not a regular expression: {error}") from error
