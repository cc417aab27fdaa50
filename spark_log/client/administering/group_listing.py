"""Who has groups, and what they have: from the log, and from the coordinator what it alone knows.

The log has the last generation of a group that members share.  That they are about to share it out anew, and who has come since,
the coordinator knows.  Who asks while it does not answer is told what the log says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from spark_log.errors import AuthenticationFailed, CoordinatorNotAvailable, NotCoordinator
from spark_log.groups.group import GroupState, Roster, RosterMember
from spark_log.groups.subscription import CONSUMER, decode_assignment
from spark_log.journal.journal import Journal
from spark_log.metadata.shared_groups import members_in_force
from spark_log.metadata.state import State
from spark_log.model import TopicPartition
from spark_log.net.client import HttpLink
from spark_log.net.messages import GroupView


class MemberDescription(NamedTuple):
    """A consumer or a stream that has a group, or its part of one."""

    member_id: str
    kind: str
    """consumer, or stream for a Spark query."""
    owner: str
    """Who that is, for people: what a stream says of itself, or where a member is; empty: it did not say."""
    client_id: str = ""
    host: str = ""
    group_instance_id: str | None = None
    assignment: tuple[TopicPartition, ...] | None = None
    """What it was assigned last; None: all partitions, it does not share them."""


class GroupDescription(NamedTuple):
    """A group: embedded, at most one member, which owns all partitions; through a coordinator, those who share them."""

    group_id: str
    state: str
    """Kafka's: Stable, Empty, PreparingRebalance, CompletingRebalance; Dead for a group that is not known.  Of a consumer that
    owns all partitions: Stable until it closes, also if it died."""
    generation: int
    members: list[MemberDescription]
    protocol: str = ""
    """The assignor of members that share the group."""
    leader: str = ""
    """The member that assigned."""


def describe_groups(journal: Journal, names: Iterable[str] | None = None) -> dict[str, GroupDescription]:
    """Groups by name; None: all that there are."""
    state, shared = journal.refresh(), shared_now(journal)
    wanted = sorted({*state.groups, *shared}) if names is None else names
    return {name: describe_group(state, name, shared.get(name)) for name in wanted}


def shared_now(journal: Journal) -> dict[str, GroupView]:
    """What the coordinator says of groups; nothing if there is none, or it does not answer."""
    holder = journal.state.coordinator
    if not isinstance(journal.link, HttpLink) or not holder.address:
        return {}
    try:
        return journal.link.groups(holder)
    except (CoordinatorNotAvailable, NotCoordinator, AuthenticationFailed):
        return {}


def describe_group(state: State, name: str, shared: GroupView | None = None) -> GroupDescription:
    """Who has a group.

    shared:  what the coordinator says of it, which is newer than the log.
    """
    if shared is not None:
        return _shared(name, shared.state, shared.roster)
    group = state.groups.get(name)
    if group is None:
        return GroupDescription(name, GroupState.DEAD.value, 0, [])
    if group.roster is not None and members_in_force(state, name):
        return _shared(name, GroupState.STABLE.value, group.roster)
    members = []
    if group.session is not None:
        members = [MemberDescription(group.member, "stream", group.session.owner)]
    elif group.member:
        members = [MemberDescription(group.member, "consumer", "")]
    return GroupDescription(name, (GroupState.STABLE if members else GroupState.EMPTY).value, group.generation, members)


def _shared(name: str, state: str, roster: Roster) -> GroupDescription:
    members = [_member(member, _assigned(roster, member)) for member in roster.members]
    return GroupDescription(name, state, roster.generation, members, roster.protocol or "", roster.leader or "")


def _assigned(roster: Roster, member: RosterMember) -> tuple[TopicPartition, ...]:
    """Nothing for a client of another kind, whose assignments are its own affair."""
    if roster.protocol_type != CONSUMER:
        return ()
    try:
        return tuple(sorted(decode_assignment(member.assignment).partitions))
    except msgspec.DecodeError:
        return ()


def _member(member: RosterMember, assigned: tuple[TopicPartition, ...]) -> MemberDescription:
    where = f"{member.client_id or 'consumer'} on {member.client_host}" if member.client_host else member.client_id
    return MemberDescription(
        member.member_id, "consumer", where, member.client_id, member.client_host, member.group_instance_id, assigned
    )
