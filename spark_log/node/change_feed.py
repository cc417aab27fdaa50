"""Which topics changed since a version: the newest versions with records of a topic, or with changes that affect all
clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from spark_log.metadata.commands import (
    AbortTransaction,
    Append,
    CommitOffsets,
    Expire,
    Fence,
    InitProducer,
    RenewSession,
    SetGeneration,
    SeveralCommands,
    Swap,
)

_QUIET = (AbortTransaction, CommitOffsets, Expire, Fence, InitProducer, SetGeneration, RenewSession, Swap)
"""Commands that do not end a wait for records."""


class ChangeFeed:
    """The changes of one coordinator: its thread notes them, other threads query them."""

    def __init__(self) -> None:
        self.version = 0
        """All versions up to this one are noted."""
        self._of_all = 0
        self._of_topics: dict[str, int] = {}
        self._undrained: deque[set[str] | None] = deque()

    def note(self, version: int, commands: Iterable[object] | None) -> None:
        """Note a version with its commands; None: unknown contents, of this version and those before it."""
        touched = None if commands is None else topics_of(commands)
        if touched is None:
            self._of_all = version
            self._of_topics = {}
        else:
            for topic_id in touched:
                self._of_topics[topic_id] = version
        self.version = version
        self._undrained.append(touched)  # last: its readers expect that the version is noted

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
            found = None if found is None or touched is None else found | touched
        return found


def topics_of(commands: Iterable[object]) -> set[str] | None:
    """Ids of the topics that get records; None if the commands change more than records."""
    found: set[str] = set()
    for command in commands:
        if isinstance(command, SeveralCommands):
            of_parts = topics_of(command.commands)
            if of_parts is None:
                return None
            found |= of_parts
        elif isinstance(command, Append):
            found.update(run.topic_id for _, run in command.commit.slices)
            found.update(topic_id for topic_id, _, _ in command.commit.pieces)
        elif not isinstance(command, _QUIET):
            return None
    return found
