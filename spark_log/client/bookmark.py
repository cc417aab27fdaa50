"""Bookmarks: a batch job that goes on where its last run ended.

The end is pinned when the block is entered, and the position is committed, as the offsets of a group that has the bookmark's
name, only when the block is left without an exception.  A run that fails is repeated from where it began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from spark_log.client.admin import group_entries
from spark_log.client.resolve import partition_of, partitions_of
from spark_log.errors import ConcurrentChange, InvalidRequest
from spark_log.metadata.decide import Decision, decide_commit_offsets
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.state import Group, State, TopicKey
from spark_log.model import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from spark_log.client.log import Log


class Bookmark:
    """A named position in topics.  The first run starts at the earliest records.

    Raises on leaving: ConcurrentChange if another run of the same name has committed meanwhile.
    """

    def __init__(self, log: Log, name: str, *topics: str) -> None:
        if not topics:
            raise InvalidRequest('bookmark: no topic is named; log.bookmark("nightly", "orders")')
        self.name = name
        self.topics = topics
        self.starts: dict[TopicPartition, int] = {}
        """Where this run reads from."""
        self.ends: dict[TopicPartition, int] = {}
        """Where it reads to, and the next run from."""
        self._journal = log.journal
        self._committed: dict[TopicKey, int | None] = {}

    def __enter__(self) -> Bookmark:
        state = self._journal.refresh()
        self.starts, self.ends, self._committed = {}, {}, {}
        for tp in [tp for topic in self.topics for tp in partitions_of(state, topic)]:
            key, part = partition_of(state, tp)
            committed = self._committed[key] = _committed(state, self.name, key)
            self.starts[tp] = part.start if committed is None else min(max(committed, part.start), part.end)
            self.ends[tp] = part.end
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._commit()

    @property
    def options(self) -> dict[str, str]:
        """Options of Spark's reader for exactly the records of this run."""
        return {
            "subscribe": ",".join(self.topics),
            "startingOffsets": _json(self.starts),
            "endingOffsets": _json(self.ends),
        }

    def _commit(self) -> None:
        state = self._journal.state
        entries = group_entries(state, {tp: OffsetAndMetadata(end) for tp, end in self.ends.items()})
        commit = GroupCommit(self.name, -1, entries)

        def decide(state: State, now_ms: int) -> Decision[None]:
            for key, committed in self._committed.items():
                if _committed(state, self.name, key) != committed:
                    raise ConcurrentChange(
                        f"bookmark {self.name!r}: another run has committed since this one began, so the same records "
                        "were read twice; let one run at a time use the name"
                    )
            return decide_commit_offsets(state, (commit,))

        self._journal.propose(decide)


def _committed(state: State, name: str, key: TopicKey) -> int | None:
    position = state.groups.get(name, Group()).offsets.get(key)
    return None if position is None else position.offset


def _json(offsets: Mapping[TopicPartition, int]) -> str:
    """`{"orders": {"0": 5}}`, as Kafka's connector has it."""
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(topics)
