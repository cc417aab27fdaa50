"""Decisions: consumer groups: owners, generations and committed positions."""

from __future__ import annotations

from spark_log.errors import (
    GroupInUse,
    IllegalGeneration,
    InvalidRequest,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
)
from spark_log.groups.group import Roster
from spark_log.groups.messages import Code
from spark_log.groups.offset_deletion import METADATA_BYTES_MAX, check_metadata
from spark_log.metadata import records as r
from spark_log.metadata.decide.decision import Decision
from spark_log.metadata.replay import next_generation
from spark_log.metadata.state import GroupState, State, TopicKey
from spark_log.positions import format_timestamp_ms


def check_generation(state: State, commit: r.GroupCommit) -> None:
    """Raises IllegalGeneration if a newer consumer owns the group."""
    current = state.groups.get(commit.group, GroupState()).generation
    if commit.generation not in (-1, current):
        raise IllegalGeneration(
            f"group {commit.group!r}: generation {commit.generation} was "
            f"replaced by {current}: a newer consumer owns it",
            current=current,
        )


def check_positions(state: State, commit: r.GroupCommit) -> None:
    """Raises InvalidRequest for a negative offset, OffsetMetadataTooLarge for too much metadata."""
    for entry in commit.offsets:
        if entry.offset < 0:
            raise InvalidRequest(
                f"group {commit.group!r}: invalid offset {entry.offset} for "
                f"{_partition_name(state, entry)}: expected 0 or more"
            )
        if check_metadata(entry.metadata) is not Code.NONE:
            raise OffsetMetadataTooLarge(
                f"group {commit.group!r}: the metadata of {_partition_name(state, entry)} has "
                f"{len(entry.metadata.encode())} bytes; expected at most {METADATA_BYTES_MAX}: commit less, and "
                "keep the rest in a topic"
            )


def _partition_name(state: State, entry: r.OffsetEntry) -> str:
    topic = state.topics.get(entry.topic_id)
    return f"{entry.topic_id if topic is None else topic.name}-{entry.partition}"


def decide_commit_offsets(state: State, commits: tuple[r.GroupCommit, ...]) -> Decision[None]:
    """Commit positions of groups; unchanged positions are not written."""
    for commit in commits:
        check_generation(state, commit)
        check_positions(state, commit)
        for entry in commit.offsets:
            topic = state.topics.get(entry.topic_id)
            if topic is None or topic.deleted or entry.partition >= topic.partitions:
                raise UnknownTopicOrPartition(
                    f"partition {entry.partition} of topic id {entry.topic_id} does not exist"
                )
    if all(stands(state, commit) for commit in commits):
        return Decision((), None)
    return Decision((r.CommitOffsetsRecord(commits=commits),), None)


def stands(state: State, commit: r.GroupCommit) -> bool:
    """Whether a group already has the positions of a commit."""
    offsets = state.groups.get(commit.group, GroupState()).offsets
    found = [offsets.get((entry.topic_id, entry.partition)) for entry in commit.offsets]
    return all(
        position is not None and position[:2] == (entry.offset, entry.metadata)
        for position, entry in zip(found, commit.offsets, strict=True)
    )


def check_group_free(state: State, group: str, now_ms: int, token: str = "") -> None:
    """Raises GroupInUse if another holder, with another token, has a live session."""
    held = state.groups.get(group, GroupState())
    if held.session is None or (token and held.session.token == token):
        return
    left = held.seen + held.session.timeout_ms - now_ms
    if left > 0:
        raise GroupInUse(
            f"group {group!r} is held by {held.session.owner} since {format_timestamp_ms(held.session.since)}, last "
            f"heartbeat at {format_timestamp_ms(held.seen)}: stop that consumer, or use another group; if it died, the "
            f"group is free in {-(-left // 1000)} s",
            owner=held.session.owner,
        )


def decide_join_group(
    state: State, group: str, member: str, *, token: str = "", owner: str = "", timeout_ms: int = 0
) -> Decision[int]:
    """Take all partitions of a group.  The reply is the generation; consumers of older ones are rejected from now on.

    With a timeout the member owns the group as long as it sends heartbeats (`check_group_free`).
    """
    current = state.groups.get(group, GroupState())
    if current.member == member:
        return Decision((), current.generation)
    join = r.JoinGroupRecord(group=group, member=member, token=token, owner=owner, timeout_ms=timeout_ms)
    return Decision((join,), next_generation(state, group))


def decide_renew_session(state: State, group: str, generation: int) -> Decision[None]:
    """Extend the session of a group's owner."""
    sign = r.GroupCommit(group, generation, ())
    check_generation(state, sign)
    return Decision((r.CommitOffsetsRecord(commits=(sign,)),), None)


def decide_set_generation(state: State, group: str, roster: Roster) -> Decision[None]:
    """Journal a generation from the group protocol."""
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
