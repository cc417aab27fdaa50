"""A consumer's place in its group.  Embedded it takes all partitions, and a newer consumer takes them from it.

How consumers share a group through a coordinator is in `group_member.py`; a consumer does not know which it has.

Positions are committed under the generation that was taken, so what a consumer commits that was replaced is refused.  A
member with a session (a stream) is not replaced as long as it gives signs of life, but by itself when it comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from spark_log.client.administering.admin import group_entries
from spark_log.errors import IllegalGeneration, InvalidRequest, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import UNFENCED, CommitOffsets, Committer, JoinGroup, LeaveGroup, SignOfLife
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.state import GroupState, Position, State, TopicKey
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.settings import cluster_config

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Callback = Callable[[Offsets, Exception | None], object]


class SessionWish(NamedTuple):
    """What a member says of itself that keeps its group while it is alive."""

    token: str
    """The same whenever the same query joins again."""
    owner: str
    """Who it is, for people."""
    timeout_ms: int


class _Pending(NamedTuple):
    done: Future[None]
    offsets: Offsets
    callback: Callback | None


class Membership:
    """One consumer's part in a group."""

    alone = True
    """Has all partitions, or none: who may not commit has lost them."""

    def __init__(self, journal: Journal, group: str, session: SessionWish | None = None) -> None:
        self.group = group
        self.session = session
        self.generation = UNFENCED
        self._journal = journal
        self._member = ""
        self._pending: deque[_Pending] = deque()
        self._worker: ThreadPoolExecutor | None = None

    # ----------------------------------------------------------------------------------------------- what it may read

    @property
    def joined(self) -> bool:
        return bool(self._member)

    @property
    def is_assigned(self) -> bool:
        """Whether it is known what the consumer has."""
        return True

    @property
    def round(self) -> int:
        """Another one whenever partitions were given out anew."""
        return 0

    def heed(self) -> bool:
        """The consumer is alive.  Whether there is anything new about its place in the group."""
        return False

    def await_news(self, timeout_ms: float) -> bool:
        """Wait for news of the group, if there are some to come soon; False if not."""
        return False

    def share(self, state: State, topics: frozenset[str]) -> frozenset[TopicPartition] | None:
        """What of the topics the consumer may have, as far as it is settled; None: all partitions."""
        return None

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """The consumer has these, and no others, now that its listener knows."""

    # ---------------------------------------------------------------------------------------------------- join and leave

    def join(self) -> None:
        """Take the group; whoever had it is refused from now on.  Raises GroupInUse if a member keeps it."""
        member, wish = self._journal.context.unique(), self.session or SessionWish("", "", 0)
        self._journal.refresh()  # a refusal is final: it must not come of a state that is old
        self.generation = self._journal.propose(JoinGroup(group=self.group, member=member, **wish._asdict()))
        self._member = member

    def give_sign(self) -> None:
        """Keep the group for the time of one more session.  Raises IllegalGeneration if it was taken."""
        self._journal.propose(SignOfLife(group=self.group, generation=self.generation))

    def keep(self, state: State) -> None:
        """Show that the group is in use, long before its positions would expire: a quiet topic has nothing to commit."""
        age_ms = cluster_config(state.configs, "offsets.retention.minutes") * 60_000
        seen = state.groups.get(self.group, GroupState()).seen
        if self.joined and not self.lost(state) and self._journal.context.clock.now_ms() - seen > age_ms // 4:
            self.give_sign()

    def leave(self) -> None:
        """Give the group up, if it is still this consumer's, after the commits that are on their way."""
        self.flush_commits()
        member, self._member = self._member, ""
        self._journal.propose(LeaveGroup(group=self.group, member=member))
        self.generation = UNFENCED

    def forget(self) -> None:
        """Be no member any more, after the group was taken."""
        self._member, self.generation = "", UNFENCED

    def lost(self, state: State) -> bool:
        """Whether a newer consumer has taken the group."""
        return self.joined and state.groups.get(self.group, GroupState()).member != self._member

    def replaced(self, state: State) -> SparkLogError | None:
        """The error of a consumer that lost its partitions; None: it goes on, with others."""
        current = state.groups.get(self.group, GroupState()).generation
        return IllegalGeneration(
            f"group {self.group!r}: generation {self.generation} was replaced by {current}: a newer consumer owns the "
            "partitions (embedded, one consumer owns all of them); subscribe() again to take them back",
            current=current,
        )

    # --------------------------------------------------------------------------------------------------------- positions

    def position(self, state: State, key: TopicKey) -> Position | None:
        """What the group has committed for a partition."""
        return state.groups.get(self.group, GroupState()).offsets.get(key)

    def group_commit(self, state: State, offsets: Offsets) -> GroupCommit:
        """Positions as a record has them."""
        return GroupCommit(self.group, self.generation, group_entries(state, offsets))

    def commit(self, offsets: Offsets) -> None:
        """Commit positions, after those that are on their way.

        Raises IllegalGeneration if the group was taken, CommitUnknown if the storage failed.
        """
        self.flush_commits()
        self._commit(self.group_commit(self._journal.state, offsets), self.committer())

    def committer(self) -> Committer | None:
        """As whom it commits, where a coordinator asks for that."""
        return None

    def _commit(self, commit: GroupCommit, by: Committer | None) -> None:
        """What belongs to topics that were deleted meanwhile is left out: it is forgotten with them."""
        if commit.offsets:
            self._journal.propose(CommitOffsets(commit=commit, by=by, live_only=True))

    def commit_async(self, offsets: Offsets, callback: Callback | None) -> None:
        """Commit positions in the background, in the order of the calls, under the generation of now."""
        commit = self.group_commit(self._journal.state, offsets)
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"pylog-commit-{self.group}")
        self._pending.append(_Pending(self._worker.submit(self._commit, commit, self.committer()), offsets, callback))

    def call_back(self) -> None:
        """Tell the callbacks of commits that are done."""
        while self._pending and self._pending[0].done.done():
            done, offsets, callback = self._pending.popleft()
            error = done.exception()
            if callback is not None:
                callback(offsets, error if isinstance(error, Exception) else None)

    def flush_commits(self) -> None:
        """Wait for commits that are on their way, and tell their callbacks."""
        for pending in tuple(self._pending):
            pending.done.exception()
        self.call_back()

    def close(self) -> None:
        """Settle, and end the worker."""
        self.flush_commits()
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None


def as_offsets(given: Mapping[TopicPartition, int | OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets with their notes, from numbers too.  Raises InvalidRequest."""
    found = {}
    for tp, at in given.items():
        if isinstance(at, bool) or not isinstance(at, int | OffsetAndMetadata):
            raise InvalidRequest(f"offset {at!r} of {tp} is not possible; give a number or an OffsetAndMetadata")
        found[TopicPartition(*tp)] = at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
    return found
