"""Groups that several members share through a coordinator, as the log stores them: the roster of a generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_log.configs.settings import cluster_config
from spark_log.errors import GroupInUse
from spark_log.groups.group import RosterMember
from spark_log.groups.subscription import CONSUMER, subscribed_topics
from spark_log.metadata.state import GroupState, State, TopicKey
from spark_log.text import counted


def members_in_force(state: State, group: str) -> tuple[RosterMember, ...]:
    """The members of a group.  Without a coordinator nobody tracks members: any new consumer takes the group over."""
    roster = state.groups.get(group, GroupState()).roster
    return roster.members if roster is not None and state.coordinator.in_force else ()


def check_not_shared(state: State, group: str) -> None:
    """Raises GroupInUse if members share the group through a coordinator."""
    members = members_in_force(state, group)
    if members:
        raise group_in_use(group, [member.member_id for member in members])


def group_in_use(group: str, member_ids: Sequence[str]) -> GroupInUse:
    """The error for an external change to a group in use by these members."""
    return GroupInUse(
        f"group {group!r} is shared by {counted(len(member_ids), 'member')}, "
        f"{member_ids[0]} among them: stop them, or use another group",
        owner=member_ids[0],
    )


def check_deletable(state: State, group: str, keys: tuple[TopicKey, ...]) -> None:
    """Raises GroupInUse if members share the group, unless they read none of the topics of `keys`."""
    read = topics_read(state, group)
    if not keys or read is None or any(state.topics[key[0]].name in read for key in keys if key[0] in state.topics):
        check_not_shared(state, group)


def topics_read(state: State, group: str) -> frozenset[str] | None:
    """Topics that members of the group read; None if unknown."""
    roster = state.groups.get(group, GroupState()).roster
    if roster is None or not members_in_force(state, group):
        return frozenset()
    if roster.protocol_type != CONSUMER:
        return None
    return subscribed_topics(member.subscription for member in roster.members)


def is_expiring(state: State, group: str, now_ms: int) -> bool:
    """Whether members have to mark the group as in use before its positions expire: a quiet topic has no commits."""
    return is_aging(state, state.groups.get(group, GroupState()).seen, now_ms)


def is_aging(state: State, time_ms: int, now_ms: int) -> bool:
    """Whether a quarter of the time has passed after which what was last used then expires."""
    age_ms = cluster_config(state.configs, "offsets.retention.minutes") * 60_000
    return now_ms - time_ms > age_ms // 4


def expired_positions(state: State, name: str, limit: int) -> Iterator[TopicKey]:
    """Expired positions of a group with members: those of topics that no member reads, committed at `limit` at the
    latest."""
    read = topics_read(state, name)
    if read is not None:
        for key, position in state.groups[name].offsets.items():
            if position.time <= limit and state.topics[key[0]].name not in read:
                yield key
