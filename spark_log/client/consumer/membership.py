"""A consumer's membership in its group.  Embedded, it owns all partitions, and a newer consumer takes them over.

`group_member.py` has the membership in a group that members share through a coordinator.  A consumer uses both alike.

Positions are committed under the consumer's generation, so the commits of a replaced consumer are rejected.  A member
with a session (a stream) cannot be replaced while its session is alive, except by the same member after a restart.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from immutables import Map

from spark_log.errors import (
    CommitUnknown,
    CoordinatorNotAvailable,
    IllegalGeneration,
    InvalidRequest,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.groups.member_id import MemberOrigin, member_id
from spark_log.groups.member_share import Share
from spark_log.http.address import this_host
from spark_log.journal.journal import Journal
from spark_log.metadata.groups.group_commands import (
    UNFENCED,
    CommitOffsets,
    Committer,
    JoinGroup,
    LeaveGroup,
    RenewSession,
    check_read,
)
from spark_log.metadata.groups.shared_groups import is_expiring
from spark_log.metadata.maintenance.accepted_loss import RAISED
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.set_backs import Lineage, lineage_of
from spark_log.metadata.state import GroupPosition, GroupState, State, Topic, TopicKey
from spark_log.model import OffsetAndMetadata, TopicPartition

Callback = Callable[[Exception | None], object]


class SessionRequest(NamedTuple):
    """Identity and session of a member that keeps its group while it is alive."""

    token: str
    """A query has the same token each time it joins."""
    owner: str
    """Readable name."""
    timeout_ms: int
    share: Share | None = None
    """The share of the partitions that it owns; None: all."""
    member: str = ""
    """Its id; empty: a new one for each join."""
    replaces: tuple[str, ...] = ()
    """Its ids in former joins: it must not take over what a newer member has taken from them."""


class _Pending(NamedTuple):
    done: Future[None]
    callback: Callback | None


class Membership:
    """One consumer's membership in a group."""

    alone = True
    """It owns all partitions or none: a consumer that may not commit has lost them."""

    def __init__(
        self, journal: Journal, group: str, session: SessionRequest | None = None, client_id: str = ""
    ) -> None:
        self.group = group
        self.session = session
        self.generation = UNFENCED
        self.history: str | None = None
        """The history of the log in which the positions to commit were reached; None: not known."""
        self.set_back: str | None = None
        """The `Lineage.set_back` in which they were reached."""
        self._journal = journal
        self._client_id = client_id or ("consumer" if session is None else "stream")
        self._member = ""
        self._joined_in: tuple[Lineage, int] = Lineage("", ""), 0
        """The log at the join, and its time."""
        self._pending: deque[_Pending] = deque()
        self._worker: ThreadPoolExecutor | None = None
        self._unanswered = (-math.inf, "")
        """When a commit in the background was last not answered, on the monotonic clock, and its error."""
        self._shared: tuple[Map[str, Topic], frozenset[str], frozenset[TopicPartition]] | None = None
        """The last result of `assigned_partitions`, with the topics of the state and the names that it is of."""

    # ----------------------------------------------------------------------------------------------- what it may read

    @property
    def joined(self) -> bool:
        return bool(self._member)

    @property
    def is_assigned(self) -> bool:
        """Whether the consumer's assignment is known."""
        return True

    @property
    def rebalances(self) -> int:
        """Changes with each rebalance."""
        return 0

    def report_alive(self) -> bool:
        """Report that the consumer is alive.  Returns whether its membership has changed."""
        return False

    def await_change(self, timeout_ms: float) -> bool:
        """Wait for a change of the membership, if one is expected soon; False otherwise."""
        return False

    def assigned_partitions(self, state: State, topics: frozenset[str]) -> frozenset[TopicPartition] | None:
        """The assignment among these topics, as far as it is known; None: all partitions."""
        share = None if self.session is None else self.session.share
        if share is None:
            return None
        known = self._shared
        if known is None or known[0] is not state.topics or known[1] != topics:
            there = [(name, state.topics[state.names[name]]) for name in topics if name in state.names]
            owned = (
                TopicPartition(name, number)
                for name, topic in there
                for number in range(topic.partitions)
                if share.owns(number)
            )
            self._shared = known = state.topics, topics, frozenset(owned)
        return known[2]

    def confirm_owned(self, partitions: Collection[TopicPartition]) -> None:
        """Confirm that the consumer now owns exactly these partitions.  Its listener has been called."""

    # --------------------------------------------------------------------------------------------------- join and leave

    def join(self) -> None:
        """Take over the group; commits of the previous owner are rejected.  Raises GroupInUse if a session keeps it."""
        session = self.session or SessionRequest("", "", 0)
        if not session.member:
            session = session._replace(member=new_member(self._journal, self._client_id))
        self._journal.refresh()  # a rejection is final, so it must not be based on an outdated state
        self.generation = self._journal.propose(JoinGroup(group=self.group, **session._asdict()))
        self._member = session.member
        state = self._journal.state
        self._joined_in = lineage_of(state), state.time

    def renew_session(self) -> None:
        """Renew the session.  Raises IllegalGeneration if the group was taken over."""
        self._journal.propose(RenewSession(group=self.group, generation=self.generation))

    def keep_in_use(self, state: State) -> None:
        """Mark the group as in use before its offsets expire."""
        now_ms = self._journal.context.clock.now_ms()
        if self.joined and not self.lost(state) and is_expiring(state, self.group, now_ms):
            self.renew_session()

    def leave(self) -> None:
        """Release the group, if this consumer still owns it, after pending commits, also if these fail."""
        try:
            self.flush_commits()
        finally:
            member, self._member = self._member, ""
            self._journal.propose(LeaveGroup(group=self.group, member=member))
            self.generation = UNFENCED

    def forget(self) -> None:
        """End the membership after the group was taken over."""
        self._member, self.generation = "", UNFENCED

    def lost(self, state: State) -> bool:
        """Whether a newer consumer has taken over the group."""
        return self.joined and state.groups.get(self.group, GroupState()).generation_of(self._member) is None

    def lost_by_restore(self, state: State) -> bool:
        """Whether the group was lost because an older copy of the log lacks the join: `join` again.

        False if another consumer has used the group since.
        """
        lineage, joined_ms = self._joined_in
        if not self.alone or not self.lost(state) or lineage_of(state) == lineage:
            return False
        group = state.groups.get(self.group, GroupState())
        return self.session is not None or not group.member or group.seen <= joined_ms

    def check_owner(self) -> None:
        """Raises the error of a consumer that has lost the group: it has no positions to commit."""
        if self.lost(state := self._journal.state) and (error := self.acknowledge_loss(state)) is not None:
            raise error

    def acknowledge_loss(self, state: State) -> SparkLogError | None:
        """The error of a consumer that lost its partitions; None if it continues with others."""
        current = state.groups.get(self.group, GroupState()).generation
        if self.lost_by_restore(state):
            return IllegalGeneration(
                f"group {self.group!r}: the log was replaced by an older copy, from before this consumer joined the "
                "group; poll() joins it again, and continues at the group's positions",
                current=current,
            )
        if self.group not in state.groups:
            return IllegalGeneration(
                f"group {self.group!r} was deleted, and its positions with it; subscribe() again to start where "
                "auto_offset_reset says",
                current=current,
            )
        if current - self.generation >= RAISED:
            return IllegalGeneration(
                f"group {self.group!r}: its members were removed when `pylog repair --accept-loss` gave up lost records, "
                "whose offsets other records get. subscribe() again, or restart, to continue at the group's positions, "
                "which may be before what was read",
                current=current,
                accepted_loss=True,
            )
        return IllegalGeneration(
            f"group {self.group!r}: generation {self.generation} was replaced by {current}: a newer consumer owns the "
            "partitions (embedded, one consumer owns all of them); subscribe() again to take them back",
            current=current,
        )

    # -------------------------------------------------------------------------------------------------------- positions

    def position(self, state: State, key: TopicKey) -> GroupPosition | None:
        """The committed position of the group in a partition."""
        return state.groups.get(self.group, GroupState()).offsets.get(key)

    def group_commit(self, positions: Sequence[OffsetEntry]) -> GroupCommit:
        """Positions in the form of a record."""
        return GroupCommit(self.group, self.generation, tuple(positions))

    def checked_commit(self, positions: Sequence[OffsetEntry]) -> GroupCommit:
        """Positions in the form of a record, for a transaction.

        Raises IllegalGeneration if there are none because the group was taken over, OffsetOutOfRange if the log has
        other records before a position by now.
        """
        commit = self.group_commit(positions)
        if not positions:
            self.check_owner()
        if self.history is not None:
            check_read(self._journal.state, Lineage(self.history, self.set_back), commit)
        return commit

    def commit(self, positions: Sequence[OffsetEntry]) -> None:
        """Commit positions, after pending commits.

        Raises IllegalGeneration if the group was taken over, CommitUnknown if the storage failed, OffsetOutOfRange if
        the log has other records before a position, because it was restored; the other positions are committed.
        """
        self.flush_commits()
        self._commit(self._command(positions), self.set_back)

    def committer(self) -> Committer | None:
        """The member that commits, if a coordinator requires one."""
        return None

    def _command(self, positions: Sequence[OffsetEntry]) -> CommitOffsets:
        """Topics that were deleted meanwhile are left out."""
        commit = self.group_commit(positions)
        return CommitOffsets(commit=commit, by=self.committer(), live_only=True, history=self.history)

    def _commit(self, command: CommitOffsets, set_back: str | None) -> None:
        if not command.commit.offsets:
            self.check_owner()
            return
        self._journal.require((), (self.group,))
        self._journal.propose(command, set_back=set_back)
        if command.history is not None:
            check_read(self._journal.state, Lineage(command.history, set_back), command.commit)

    def commit_async(self, positions: Sequence[OffsetEntry], callback: Callback | None) -> None:
        """Commit positions in the background, in the order of the calls, under the current generation."""
        command = self._command(positions)
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"pylog-commit-{self.group}")
        asked_ms = self._journal.context.clock.monotonic_ms()
        done = self._worker.submit(self._commit_in_turn, command, self.set_back, asked_ms)
        self._pending.append(_Pending(done, callback))

    def _commit_in_turn(self, command: CommitOffsets, set_back: str | None, asked_ms: float) -> None:
        """A commit that has waited for one without an answer fails with it.  Otherwise each would wait as long, and
        `close` for all of them.
        """
        when_ms, why = self._unanswered
        if asked_ms < when_ms:
            raise CoordinatorNotAvailable(f"the positions were not sent, as those before them had no answer: {why}")
        try:
            self._commit(command, set_back)
        except (CoordinatorNotAvailable, CommitUnknown, StorageUnavailable) as error:
            self._unanswered = self._journal.context.clock.monotonic_ms(), str(error)
            raise

    def call_back(self) -> None:
        """Run the callbacks of finished commits."""
        while self._pending and self._pending[0].done.done():
            done, callback = self._pending.popleft()
            error = done.exception()
            if callback is not None:
                callback(error if isinstance(error, Exception) else None)

    def flush_commits(self) -> None:
        """Wait for pending commits and run their callbacks."""
        for pending in tuple(self._pending):
            pending.done.exception()
        self.call_back()

    def close(self) -> None:
        """Flush pending commits, then stop the worker."""
        self.flush_commits()
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None


def new_member(journal: Journal, client_id: str) -> str:
    """The id of a member of this process."""
    return member_id(MemberOrigin(client_id, this_host(), os.getpid()), journal.context.unique())


def as_offsets(given: Mapping[TopicPartition, int | OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets with metadata, also from plain numbers.  Raises InvalidRequest."""
    found = {}
    for tp, at in given.items():
        if isinstance(at, bool) or not isinstance(at, int | OffsetAndMetadata):
            raise InvalidRequest(f"invalid offset {at!r} for {tp}: expected a number or an OffsetAndMetadata")
        found[TopicPartition(*tp)] = at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
    return found
