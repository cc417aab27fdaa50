"""Bookmarks: a batch job that continues where its last run ended.

The end is pinned on entering the block.  The position is committed on leaving the block without an exception, as the
offset of a group that has the bookmark's name.  A failed run is repeated from the same start.  Positions belong to
topic ids: a topic that is deleted meanwhile is left out, and a topic that is recreated starts from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import TracebackType

from spark_log.client.arguments import refuses_odd_arguments
from spark_log.client.reader.positions_to_offsets import partition_of, partitions_of
from spark_log.client.representations import brief, log_facts, one_line
from spark_log.configs.topic_names import check_topic_name
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.metadata.groups.decide_groups import check_group_free, check_group_name
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets, Stand, check_read
from spark_log.metadata.groups.shared_groups import check_not_shared
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.set_backs import BEGINNING, lineage_of
from spark_log.metadata.state import GroupPosition, GroupState, TopicKey
from spark_log.model import TopicPartition
from spark_log.text import counted


@refuses_odd_arguments()
class Bookmark:
    """A named set of positions: each run reads from the end of the last run.  The first run starts at the earliest
    records.

    Raises GroupInUse, on entering and on leaving, if a Spark stream publishes its progress to the group of this name,
    or if the group has members that joined through a coordinator.
    Raises ConcurrentChange on leaving if another run with the same name has committed meanwhile, or the log was set
    back to an older copy; OffsetOutOfRange if it was restored from a copy that ended before the end of this run.
    """

    def __init__(self, journal: Journal, name: str, *topics: str) -> None:
        if not topics:
            raise InvalidRequest('bookmark: no topic is given; expected log.bookmark("nightly", "orders")')
        check_group_name(name)
        for topic in topics:
            check_topic_name(topic)
        self.name = name
        self.topics = topics
        self.starts: dict[TopicPartition, int] = {}
        """Start of this run: the end of the last one, even if records after it have been trimmed since; reading those
        then fails."""
        self.ends: dict[TopicPartition, int] = {}
        """End of this run, and start of the next one."""
        self._journal = journal
        self._keys: dict[TopicPartition, TopicKey] = {}
        self._committed: dict[TopicKey, GroupPosition | None] = {}
        self._run, self._read_in = "", BEGINNING

    def __repr__(self) -> str:
        return one_line(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.name)
        yield from log_facts(self._journal)
        yield f"topics {brief(self.topics)}"
        unread = sum(end - self.starts[tp] for tp, end in self.ends.items())
        yield f"{counted(unread, 'record')} in this run" if self._run else "not begun"

    def __enter__(self) -> Bookmark:
        state = self._journal.refresh()
        check_group_free(state, self.name, self._journal.context.clock.now_ms())
        check_not_shared(state, self.name)
        self.starts, self.ends, self._keys, self._committed = {}, {}, {}, {}
        self._run = f"run {self._journal.context.unique()}"
        self._read_in = lineage_of(state)
        for tp in [tp for topic in self.topics for tp in partitions_of(state, topic)]:
            key, part = partition_of(state, tp)
            committed = self._committed[key] = state.groups.get(self.name, GroupState()).offsets.get(key)
            self.starts[tp] = part.start if committed is None else min(committed.offset, part.readable_end)
            self.ends[tp] = part.readable_end
            self._keys[tp] = key
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._commit()

    @property
    def options(self) -> dict[str, str]:
        """Options for Spark's reader that select exactly the records of this run."""
        return {
            "assign": json.dumps({t: [tp.partition for tp in self.ends if tp.topic == t] for t in self.topics}),
            "startingOffsets": _json(self.starts),
            "endingOffsets": _json(self.ends),
        }

    def _commit(self) -> None:
        entries = tuple(OffsetEntry(*key, self.ends[tp], self._note(tp)) for tp, key in self._keys.items())
        expected = tuple(
            Stand(*key, None if committed is None else committed.offset) for key, committed in self._committed.items()
        )
        commit = GroupCommit(self.name, UNFENCED, entries)
        command = CommitOffsets(commit=commit, live_only=True, expected=expected, history=self._read_in.history)
        self._journal.propose(command, set_back=self._read_in.set_back)
        check_read(self._journal.state, self._read_in, commit)

    def _note(self, tp: TopicPartition) -> str:
        """Metadata that identifies this run's commit.  After a lost reply, it tells whether this run committed."""
        committed = self._committed[self._keys[tp]]
        if committed is None or committed.offset != self.ends[tp]:
            return self._run
        return committed.metadata


def _json(offsets: Mapping[TopicPartition, int]) -> str:
    """`{"orders": {"0": 5}}`, as in Kafka's connector."""
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(topics)
