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
from spark_log.journal.journal import Journal
from spark_log.metadata.group_commands import UNFENCED, CommitOffsets, Committer, JoinGroup, LeaveGroup, RenewSession
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.state import GroupPosition, GroupState, State, TopicKey
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.net.address import this_host
from spark_log.settings import cluster_config

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
        self._journal = journal
        self._client_id = client_id or ("consumer" if session is None else "stream")
        self._member = ""
        self._pending: deque[_Pending] = deque()
        self._worker: ThreadPoolExecutor | None = None
        self._unanswered = (-math.inf, "")
        """When a commit in the background was last not answered, on the monotonic clock, and its error."""

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
        return None

    def confirm_owned(self, partitions: Collection[TopicPartition]) -> None:
        """Confirm that the consumer now owns exactly these partitions.  Its listener has been called."""

    # --------------------------------------------------------------------------------------------------- join and leave

    def join(self) -> None:
        """Take over the group; commits of the previous owner are rejected.  Raises GroupInUse if a session keeps it."""
        origin = MemberOrigin(self._client_id, this_host(), os.getpid())
        session = self.session or SessionRequest("", "", 0)
        member = member_id(origin, self._journal.context.unique())
        self._journal.refresh()  # a rejection is final, so it must not be based on an outdated state
        self.generation = self._journal.propose(JoinGroup(group=self.group, member=member, **session._asdict()))
        self._member = member

    def renew_session(self) -> None:
        """Renew the session.  Raises IllegalGeneration if the group was taken over."""
        self._journal.propose(RenewSession(group=self.group, generation=self.generation))

    def keep_in_use(self, state: State) -> None:
        """Mark the group as in use, well before its offsets expire: with a quiet topic, there is nothing to commit."""
        age_ms = cluster_config(state.configs, "offsets.retention.minutes") * 60_000
        seen = state.groups.get(self.group, GroupState()).seen
        if self.joined and not self.lost(state) and self._journal.context.clock.now_ms() - seen > age_ms // 4:
            self.renew_session()

    def leave(self) -> None:
        """Release the group, if this consumer still owns it, after pending commits."""
        self.flush_commits()
        member, self._member = self._member, ""
        self._journal.propose(LeaveGroup(group=self.group, member=member))
        self.generation = UNFENCED

    def forget(self) -> None:
        """End the membership after the group was taken over."""
        self._member, self.generation = "", UNFENCED

    def lost(self, state: State) -> bool:
        """Whether a newer consumer has taken over the group."""
        return self.joined and state.groups.get(self.group, GroupState()).generation_of(self._member) is None

    def acknowledge_loss(self, state: State) -> SparkLogError | None:
        """The error of a consumer that lost its partitions; None if it continues with others."""
        current = state.groups.get(self.group, GroupState()).generation
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

    def commit(self, positions: Sequence[OffsetEntry]) -> None:
        """Commit positions, after pending commits.

        Raises IllegalGeneration if the group was taken over, CommitUnknown if the storage failed.
        """
        self.flush_commits()
        self._commit(self._command(positions))

    def committer(self) -> Committer | None:
        """The member that commits, if a coordinator requires one."""
        return None

    def _command(self, positions: Sequence[OffsetEntry]) -> CommitOffsets:
        """Topics that were deleted meanwhile are left out."""
        commit = self.group_commit(positions)
        return CommitOffsets(commit=commit, by=self.committer(), live_only=True, history=self.history)

    def _commit(self, command: CommitOffsets) -> None:
        if command.commit.offsets:
            self._journal.require((), (self.group,))
            self._journal.propose(command)

    def commit_async(self, positions: Sequence[OffsetEntry], callback: Callback | None) -> None:
        """Commit positions in the background, in the order of the calls, under the current generation."""
        command = self._command(positions)
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"pylog-commit-{self.group}")
        asked_ms = self._journal.context.clock.monotonic_ms()
        done = self._worker.submit(self._commit_in_turn, command, asked_ms)
        self._pending.append(_Pending(done, callback))

    def _commit_in_turn(self, command: CommitOffsets, asked_ms: float) -> None:
        """A commit that has waited for one without an answer fails with it.  Otherwise each would wait as long, and
        `close` for all of them.
        """
        when_ms, why = self._unanswered
        if asked_ms < when_ms:
            raise CoordinatorNotAvailable(f"the positions were not sent, as those before them had no answer: {why}")
        try:
            self._commit(command)
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


def as_offsets(given: Mapping[TopicPartition, int | OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets with metadata, also from plain numbers.  Raises InvalidRequest."""
    found = {}
    for tp, at in given.items():
        if isinstance(at, bool) or not isinstance(at, int | OffsetAndMetadata):
            raise InvalidRequest(f"invalid offset {at!r} for {tp}: expected a number or an OffsetAndMetadata")
        found[TopicPartition(*tp)] = at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
    return found
