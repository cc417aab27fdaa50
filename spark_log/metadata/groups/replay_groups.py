"""How records of groups change a state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from immutables import Map

from spark_log.groups.member_share import Share
from spark_log.metadata import records as r
from spark_log.metadata.state import (
    Forgotten,
    GroupPosition,
    GroupState,
    MemberSession,
    ShareMember,
    State,
    TopicKey,
    without,
)


def groups_hold(state: State, commits: Iterable[r.GroupCommit]) -> bool:
    return all(state.groups.get(c.group, GroupState()).admits(c) for c in commits)


def partition_counts(state: State, commit: r.GroupCommit) -> dict[str, int]:
    """By the id of each topic with positions in a commit; 0 if the topic is gone.

    A commit may have a position for each of 10,000 partitions: topics are looked up once.
    """
    found = {}
    for topic_id in {entry.topic_id for entry in commit.offsets}:
        topic = state.live_topic(topic_id)
        found[topic_id] = 0 if topic is None else topic.partitions
    return found


def with_positions(state: State, commits: Iterable[r.GroupCommit]) -> State:
    for commit in commits:
        group, counts = state.groups.get(commit.group, GroupState()), partition_counts(state, commit)
        new = {
            (o.topic_id, o.partition): GroupPosition(o.offset, o.metadata, state.time, state.version)
            for o in commit.offsets
            if 0 <= o.partition < counts[o.topic_id]
        }
        seen = group.seen if commit.generation == -1 else state.time
        shares = tuple(m._replace(seen=seen) if m.generation == commit.generation else m for m in group.shares)
        group = group._replace(offsets=group.offsets.update(new), seen=seen, shares=shares)
        state = replace(state, groups=state.groups.set(commit.group, group))
        if new:  # otherwise it only extends the session
            state = replace(state, forgotten=_without_again(state, commit.group, new), progressed=state.version)
    return state


def _without_again(state: State, group: str, keys: Iterable[TopicKey]) -> Map[tuple[str, str, int], Forgotten]:
    """The removals of positions that are to be remembered, without those of positions that are there again."""
    again = {(group, state.topics[topic_id].name, number) for topic_id, number in keys} if state.forgotten else ()
    return without(state.forgotten, again)


def without_positions(state: State, name: str, keys: Iterable[tuple[str, int]]) -> State:
    """Remove positions of a group, and remember the removal until the fence has passed."""
    group = state.groups[name]
    gone = [key for key in keys if key in group.offsets]
    if not gone:
        return state
    when = Forgotten(state.version, state.time)
    named = {(name, topic.name, number): when for key, number in gone if (topic := state.live_topic(key))}
    return replace(
        state,
        groups=state.groups.set(name, group._replace(offsets=without(group.offsets, gone))),
        forgotten=state.forgotten.update(named),
        progressed=state.version,
    )


def replay_commit_offsets(state: State, record: r.CommitOffsetsRecord) -> State | None:
    if not groups_hold(state, record.commits):
        return None
    return with_positions(state, record.commits)


def next_generation(state: State, group: str) -> int:
    """The generation of the next consumer of a group.

    It is higher than any that the group had before it was deleted or expired, so that older consumers stay fenced.
    """
    return state.last_generation(group) + 1


def replay_join_group(state: State, record: r.JoinGroupRecord) -> State:
    session = MemberSession(record.token, record.owner, record.timeout_ms, state.time) if record.timeout_ms else None
    before, generation = state.groups.get(record.group, GroupState()), next_generation(state, record.group)
    group = before._replace(generation=generation, member="", seen=state.time, session=None, roster=None, shares=())
    if record.of:
        group = group._replace(shares=_shares(before, record, generation, session, state.time))
    else:
        group = group._replace(member=record.member, session=session)
    return replace(state, groups=state.groups.set(record.group, group))


def _shares(
    before: GroupState, record: r.JoinGroupRecord, generation: int, session: MemberSession | None, time: int
) -> tuple[ShareMember, ...]:
    """The members after a join.  Those of another count of members leave, and so does the same query's older member."""
    share = Share(record.number, record.of)
    stay = [
        one
        for one in before.shares
        if not one.share.overlaps(share) and not (record.token and one.session.token == record.token)
    ]
    if record.member and session is not None:
        stay.append(ShareMember(share, record.member, generation, time, session))
    return tuple(sorted(stay, key=lambda one: one.share))


def replay_group_generation(state: State, record: r.GroupGenerationRecord) -> State | None:
    group, roster = state.groups.get(record.group, GroupState()), record.roster
    if roster.generation < state.last_generation(record.group):
        return None
    group = group._replace(
        generation=roster.generation, member="", seen=state.time, session=None, roster=roster, shares=()
    )
    return replace(state, groups=state.groups.set(record.group, group))


def replay_delete_offsets(state: State, record: r.DeleteOffsetsRecord) -> State | None:
    group = state.groups.get(record.group)
    if group is None:
        return None
    state = without_positions(state, record.group, record.partitions or tuple(group.offsets))
    if record.partitions:
        return state
    generations = max(state.generations, group.generation)
    return replace(state, groups=state.groups.delete(record.group), generations=generations)
