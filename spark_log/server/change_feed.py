"""Which topics changed since a version: the newest versions with records of a topic, or with changes that affect all
clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable


class ChangeFeed:
    """The changes of one coordinator: its thread notes them, other threads query them."""

    def __init__(self) -> None:
        self.version = 0
        """All versions up to this one are noted."""
        self._of_all = 0
        self._of_topics: dict[str, int] = {}
        self._undrained: deque[Collection[str] | None] = deque()

    def note(self, version: int, topics: Collection[str] | None) -> None:
        """Note a version with the topics that have new records, by id; None: anything may have changed."""
        if topics is None:
            self._of_all = version
            self._of_topics = {}
        else:
            for topic_id in topics:
                self._of_topics[topic_id] = version
        self.version = version
        self._undrained.append(topics)  # last: its readers expect that the version is noted

    def has_changes(self, topics: Iterable[str] | None, since: int) -> bool:
        """Whether a version after `since` has changes for these topics, by id; None: any change."""
        if topics is None or self.version <= since:
            return self.version > since
        of_topics = self._of_topics
        return self._of_all > since or any(of_topics.get(topic_id, 0) > since for topic_id in topics)

    def drain(self) -> set[str] | None:
        """Topics with new records since the last call; None: anything may have changed."""
        found: set[str] | None = set()
        while self._undrained:
            touched = self._undrained.popleft()
            found = None if found is None or touched is None else found.union(touched)
        return found
