"""Decisions: consumer groups: owners, generations and committed positions."""

from __future__ import annotations

from collections.abc import Sequence

from spark_log.errors import (
    GroupInUse,
    IllegalGeneration,
    InvalidRequest,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
)
from spark_log.groups.group import Roster
from spark_log.groups.member_share import MEMBERS_MAX, Share
from spark_log.groups.messages import Code
from spark_log.groups.offset_deletion import METADATA_BYTES_MAX, check_metadata
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.groups.replay_groups import next_generation, partition_counts
from spark_log.metadata.groups.shared_groups import is_aging
from spark_log.metadata.state import GroupState, State, TopicKey
from spark_log.positions import OFFSET_MAX, format_timestamp_ms
from spark_log.text import is_name, shown


def check_generation(state: State, commit: r.GroupCommit) -> None:
    """Raises IllegalGeneration if a newer consumer owns the group."""
    group = state.groups.get(commit.group, GroupState())
    if not group.admits(commit):
        raise IllegalGeneration(
            f"group {commit.group!r}: generation {commit.generation} was "
            f"replaced by {group.generation}: a newer consumer owns it, or the log was restored from a copy that does not know this one",
            current=group.generation,
        )


def check_group_name(group: object) -> None:
    """Raises InvalidRequest for what cannot name a group."""
    if not is_name(group):
        raise InvalidRequest(
            f"invalid name {shown(group)} for a group: expected text that can be printed, such as 'billing'"
        )


def check_new_group(state: State, group: str) -> None:
    """Raises InvalidRequest if there is no such group, and a group cannot have this name."""
    if group not in state.groups:
        check_group_name(group)


def check_positions(state: State, commit: r.GroupCommit) -> None:
    """Raises InvalidRequest for a number that is not an offset, or a name that no group can have;
    OffsetMetadataTooLarge for too much metadata."""
    check_new_group(state, commit.group)
    for entry in commit.offsets:
        if not 0 <= entry.offset <= OFFSET_MAX:
            raise InvalidRequest(
                f"group {commit.group!r}: invalid offset {entry.offset} for "
                f"{_partition_name(state, entry)}: expected 0 to {OFFSET_MAX}"
            )
        if entry.metadata and check_metadata(entry.metadata) is not Code.NONE:
            raise OffsetMetadataTooLarge(
                f"group {commit.group!r}: the metadata of {_partition_name(state, entry)} has "
                f"{len(entry.metadata.encode())} bytes; expected at most {METADATA_BYTES_MAX}: commit less, and "
                "keep the rest in a topic"
            )


def _partition_name(state: State, entry: r.OffsetEntry) -> str:
    topic = state.topics.get(entry.topic_id)
    return f"{entry.topic_id if topic is None else topic.name}-{entry.partition}"


def decide_commit_offsets(state: State, commits: tuple[r.GroupCommit, ...], now_ms: int) -> Decision[None]:
    """Commit positions of groups; unchanged positions are not written, unless they are expiring."""
    for commit in commits:
        check_generation(state, commit)
        check_positions(state, commit)
        counts = partition_counts(state, commit)
        for entry in commit.offsets:
            if not 0 <= entry.partition < counts[entry.topic_id]:
                raise UnknownTopicOrPartition(
                    f"partition {entry.partition} of topic id {entry.topic_id} does not exist"
                )
    if all(stands(state, commit) and not _expires(state, commit, now_ms) for commit in commits):
        return Decision((), None)
    return Decision((r.CommitOffsetsRecord(commits=commits),), None)


def stands(state: State, commit: r.GroupCommit) -> bool:
    """Whether a group already has the positions of a commit."""
    offsets = state.groups.get(commit.group, GroupState()).offsets
    return all(
        (position := offsets.get((entry.topic_id, entry.partition))) is not None
        and position[:2] == (entry.offset, entry.metadata)
        for entry in commit.offsets
    )


def _expires(state: State, commit: r.GroupCommit, now_ms: int) -> bool:
    """Whether positions of a commit expire soon unless they are written again, as in a group without members."""
    offsets = state.groups[commit.group].offsets if commit.offsets else {}
    times = [offsets[entry.topic_id, entry.partition].time for entry in commit.offsets]
    return any(is_aging(state, time_ms, now_ms) for time_ms in times)


def check_group_free(state: State, group: str, now_ms: int, token: str = "", wanted: Share | None = None) -> None:
    """Raises GroupInUse if another holder, with another token, has a live session.

    wanted:  the share of the partitions that is to be free; None: all.
    """
    held = state.groups.get(group, GroupState())
    sessions = [] if held.session is None else [(held.session, held.seen)]
    sessions += [(one.session, one.seen) for one in held.shares if wanted is None or one.share.overlaps(wanted)]
    for session, seen in sessions:
        left = seen + session.timeout_ms - now_ms
        if left > 0 and not (token and session.token == token):
            raise GroupInUse(
                f"group {group!r} is held by {session.owner} since {format_timestamp_ms(session.since)}, last "
                f"heartbeat at {format_timestamp_ms(seen)}: stop that consumer, or use another group; if it died, the "
                f"group is free in {-(-left // 1000)} s",
                owner=session.owner,
            )


def check_share(share: Share, timeout_ms: int) -> None:
    """Raises InvalidRequest for a share that does not exist, or has no session."""
    if not share.is_valid or timeout_ms <= 0:
        raise InvalidRequest(
            f"{share} is not a share of a group: expected 0 to {MEMBERS_MAX - 1} of at most {MEMBERS_MAX}, and a session"
        )


def check_member(state: State, group: str, ids: Sequence[str]) -> None:
    """Raises IllegalGeneration if a member with these ids owns nothing of the group any more."""
    held = state.groups.get(group, GroupState())
    if all(held.generation_of(member) is None for member in ids):
        raise IllegalGeneration(
            f"group {group!r}: member {ids[-1]!r} has been replaced, or was removed, and cannot join again",
            current=held.generation,
        )


def decide_join_group(
    state: State,
    group: str,
    member: str,
    *,
    token: str = "",
    owner: str = "",
    timeout_ms: int = 0,
    share: Share | None = None,
    again: bool = False,
) -> Decision[int]:
    """Take all partitions of a group, or a share.  The reply is the generation; older owners are rejected from now on.

    With a timeout the member owns them as long as it sends heartbeats (`check_group_free`).
    """
    known = state.groups.get(group, GroupState()).generation_of(member)
    if known is not None and not again:
        return Decision((), known)
    check_new_group(state, group)
    number, of = share or (0, 0)
    join = r.JoinGroupRecord(
        group=group, member=member, token=token, owner=owner, timeout_ms=timeout_ms, number=number, of=of
    )
    return Decision((join,), next_generation(state, group))


def decide_set_generation(state: State, group: str, roster: Roster) -> Decision[None]:
    """Journal a generation from the group protocol."""
    check_new_group(state, group)
    current = state.groups.get(group, GroupState())
    # A generation without a roster belongs to an embedded consumer or a stream that took the group meanwhile.
    last = state.last_generation(group)
    if roster.generation < last + (current.roster is None):
        raise IllegalGeneration(
            f"group {group!r}: generation {roster.generation} was replaced by {last}",
            current=last,
        )
    return Decision((r.GroupGenerationRecord(group=group, roster=roster),) if roster != current.roster else (), None)


def decide_delete_offsets(state: State, group: str, keys: tuple[TopicKey, ...]) -> Decision[None]:
    """Remove positions of a group; if `keys` is empty, all of them and the group."""
    known = state.groups.get(group)
    if known is None:
        return Decision((), None)
    if not keys:
        return Decision((r.DeleteOffsetsRecord(group=group),), None)
    found = any(key in known.offsets for key in keys)
    return Decision((r.DeleteOffsetsRecord(group=group, partitions=keys),) if found else (), None)
