"""Commands of consumer groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_log.bounds import Int, IntOrLess, Long, Text
from spark_log.errors import ConcurrentChange, GroupIdNotFound, OffsetOutOfRange
from spark_log.groups.group import Roster
from spark_log.groups.member_share import Share
from spark_log.metadata import records as r
from spark_log.metadata.command_base import Command, topic_names
from spark_log.metadata.decision import Decision
from spark_log.metadata.groups import decide_groups as groups
from spark_log.metadata.groups.shared_groups import check_deletable, check_not_shared
from spark_log.metadata.restores import has_read
from spark_log.metadata.set_backs import Lineage, end_since
from spark_log.metadata.state import GroupState, State

UNFENCED = -1
"""Generation of a commit by a client that is not a member: rejected while the group is in use."""


class Committer(NamedTuple):
    """A consumer of a shared group, for the coordinator to check."""

    member_id: Text
    """Empty: not a member."""
    group_instance_id: Text | None = None


class Stand(NamedTuple):
    """The position that a group is expected to have."""

    topic_id: Text
    partition: Int
    offset: Long | None
    """None: no position yet."""


class CommitOffsets(Command, frozen=True, kw_only=True, tag="commit_offsets"):
    """Commit positions of one group."""

    role = "read"
    commit: r.GroupCommit
    by: Committer | None = None
    """The member that the coordinator must find before this is decided; None: the client is not a member."""
    live_only: bool = False
    """Skip positions of deleted topics, instead of rejecting the command."""
    expected: tuple[Stand, ...] = ()
    """Rejected if the group has other positions, unless an earlier attempt of this commit set them."""
    history: Text | None = None
    """The history in which the positions were reached: those beyond a copy that was restored since are left out."""

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        commit = self._in_history(state)
        check_unfenced(state, (commit,), now_ms)
        if self.live_only:
            live = set(state.names.values())
            commit = commit._replace(offsets=tuple(entry for entry in commit.offsets if entry.topic_id in live))
        if not groups.stands(state, commit):
            self._check_expected(state, commit)
        return groups.decide_commit_offsets(state, (commit,), now_ms)

    def _in_history(self, state: State) -> r.GroupCommit:
        """The positions before which the log has the records that were read."""
        if self.history is None:
            return self.commit
        known = (
            one
            for one in self.commit.offsets
            if has_read(state, self.history, (one.topic_id, one.partition), one.offset)
        )
        return self.commit._replace(offsets=tuple(known))

    def _check_expected(self, state: State, commit: r.GroupCommit) -> None:
        known = state.groups.get(commit.group, GroupState()).offsets
        wanted = {(entry.topic_id, entry.partition) for entry in commit.offsets}
        for topic_id, partition, offset in self.expected:
            at = known.get((topic_id, partition))
            if (topic_id, partition) in wanted and offset != (None if at is None else at.offset):
                raise ConcurrentChange(
                    f"group {commit.group!r}: another run has committed since this one began, so nothing was changed; "
                    "if both are runs of a bookmark, they have read the same records: let one at a time use the name"
                )

    def topics(self, state: State) -> Sequence[str]:
        return topic_names(state, [entry.topic_id for entry in self.commit.offsets])

    def groups(self) -> Sequence[str]:
        return (self.commit.group,)


def check_read(state: State, lineage: Lineage, commit: r.GroupCommit) -> None:
    """Raises OffsetOutOfRange for a position before which the log has other records by now.

    lineage:  in which the positions were reached.
    """
    for at in commit.offsets:
        end = end_since(state, lineage, (at.topic_id, at.partition))
        if end is None or at.offset <= end.offset:
            continue
        topic = state.topics.get(at.topic_id)
        raise OffsetOutOfRange(
            f"group {commit.group!r}: {topic.name if topic else at.topic_id}-{at.partition} is not committed at offset "
            f"{at.offset}: {end.text(at.offset)}; poll() again, and process the records that it returns",
            start=0,
            end=end.offset,
        )


def check_unfenced(state: State, commits: Sequence[r.GroupCommit], now_ms: int) -> None:
    """Raises GroupInUse for positions without a generation, while a stream or members own the group."""
    for commit in commits:
        if commit.generation == UNFENCED:
            groups.check_group_free(state, commit.group, now_ms)
            check_not_shared(state, commit.group)


class GroupCommand(Command, frozen=True, kw_only=True):
    """Base of commands of one group."""

    group: Text

    def groups(self) -> Sequence[str]:
        return (self.group,)


class JoinGroup(GroupCommand, frozen=True, kw_only=True, tag="join_group"):
    """Take all partitions of a group, or a share of them, unless a live member owns one of them."""

    role = "read"
    member: Text
    token: Text = ""
    owner: Text = ""
    timeout_ms: Int = 0
    share: Share | None = None
    replaces: tuple[Text, ...] = ()
    """Former ids of the member, which has joined before.  Refused if none of them is a member any more."""

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        if self.share is not None:
            groups.check_share(self.share, self.timeout_ms)
        if self.replaces:
            groups.check_member(state, self.group, self.replaces)
        elif state.groups.get(self.group, GroupState()).generation_of(self.member) is None:
            groups.check_group_free(state, self.group, now_ms, self.token, self.share)
        check_not_shared(state, self.group)
        return groups.decide_join_group(
            state,
            self.group,
            self.member,
            token=self.token,
            owner=self.owner,
            timeout_ms=self.timeout_ms,
            share=self.share,
            again=bool(self.replaces),
        )


class LeaveGroup(GroupCommand, frozen=True, kw_only=True, tag="leave_group"):
    """Release a group, or a share, if the member still owns it."""

    role = "read"
    member: Text

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        known = state.groups.get(self.group, GroupState())
        if not self.member or known.generation_of(self.member) is None:
            return Decision((), UNFENCED)
        share = next((one.share for one in known.shares if one.member == self.member), None)
        return groups.decide_join_group(state, self.group, "", share=share)


class RenewSession(GroupCommand, frozen=True, kw_only=True, tag="sign_of_life"):
    """Extend the session of a group's owner."""

    role = "read"
    generation: IntOrLess

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        sign = r.GroupCommit(self.group, self.generation, ())
        groups.check_generation(state, sign)
        return Decision((r.CommitOffsetsRecord(commits=(sign,)),), None)


class RemoveMember(GroupCommand, frozen=True, kw_only=True, tag="remove_member"):
    """Remove a group's owner, or the members of a gateway."""

    member: Text | None = None
    """The owner at the first attempt; a newer one is kept, because that attempt may have succeeded; None: any."""

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        group = known_group(state, self.group)
        check_not_shared(state, self.group)
        if self.member not in (None, group.member):
            return Decision((), group.generation)
        has_members = group.roster is not None and bool(group.roster.members)
        return groups.decide_join_group(state, self.group, "", again=has_members)


class SetGeneration(Command, frozen=True, kw_only=True, tag="set_generation"):
    """Journal a generation of a group.  Only the coordinator of the group decides it; it is never sent."""

    group: Text
    roster: Roster

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        groups.check_group_free(state, self.group, now_ms)
        return groups.decide_set_generation(state, self.group, self.roster)


class DeleteOffsets(GroupCommand, frozen=True, kw_only=True, tag="delete_offsets"):
    """Remove positions of an unused group; without partitions, all of them and the group."""

    partitions: tuple[tuple[Text, Int], ...] = ()
    known: bool = False
    """The group existed when this was requested: a retry succeeds if it is gone."""

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        if self.known and self.group not in state.groups:
            return Decision((), None)
        known_group(state, self.group)
        groups.check_group_free(state, self.group, now_ms)
        check_deletable(state, self.group, self.partitions)
        return groups.decide_delete_offsets(state, self.group, self.partitions)

    def topics(self, state: State) -> Sequence[str]:
        return topic_names(state, [topic_id for topic_id, _ in self.partitions])


def known_group(state: State, name: str) -> GroupState:
    """Raises GroupIdNotFound."""
    group = state.groups.get(name)
    if group is None:
        raise GroupIdNotFound(f"group {name!r} is unknown: `pylog group list` lists the known ones")
    return group
