"""What is news to whom: the last versions that brought records of topics, or changed what clients know of all of them."""

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
    SetGeneration,
    SeveralCommands,
    SignOfLife,
    Swap,
)

_QUIET = (AbortTransaction, CommitOffsets, Expire, Fence, InitProducer, SetGeneration, SignOfLife, Swap)
"""Nobody who waits for records waits for these."""


class ChangeFeed:
    """Of one coordinator: noted by its thread, asked for by others."""

    def __init__(self) -> None:
        self.version = 0
        """All up to it is noted."""
        self._of_all = 0
        self._of_topics: dict[str, int] = {}
        self._untold: deque[set[str] | None] = deque()

    def note(self, version: int, commands: Iterable[object] | None) -> None:
        """A version that commands made; None: nobody knows what is in it, or in those before."""
        touched = None if commands is None else topics_of(commands)
        if touched is None:
            self._of_all = version
            self._of_topics = {}
        else:
            for topic_id in touched:
                self._of_topics[topic_id] = version
        self.version = version
        self._untold.append(touched)  # last: who is told of it finds that it is noted

    def there_is(self, topics: Iterable[str] | None, since: int) -> bool:
        """Whether something after version `since` is for who waits for these topics, by id; None: for anything."""
        if topics is None or self.version <= since:
            return self.version > since
        of_topics = self._of_topics
        return self._of_all > since or any(of_topics.get(topic_id, 0) > since for topic_id in topics)

    def untold(self) -> set[str] | None:
        """Topics with records that came since this was asked before; None: whatever there is may have changed."""
        found: set[str] | None = set()
        while self._untold:
            touched = self._untold.popleft()
            found = None if found is None or touched is None else found | touched
        return found


def topics_of(commands: Iterable[object]) -> set[str] | None:
    """Ids of the topics that get records; None if it is more than records that changes."""
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
