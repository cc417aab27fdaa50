"""Members and assignments of groups: from the log, and from the coordinator.

The log has the last generation of a shared group.  Only the coordinator knows about a rebalance in progress and about
members that have joined since.  If the coordinator does not answer, the description is based on the log alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_log.bounds import UNREADABLE
from spark_log.client.representations import described
from spark_log.errors import AuthenticationFailed, CoordinatorNotAvailable, LogMoved, NotCoordinator
from spark_log.groups.group import ConsumerGroupState, Roster, RosterMember
from spark_log.groups.member_id import origin_of
from spark_log.groups.subscription import CONSUMER, decode_assignment
from spark_log.journal.journal import Journal
from spark_log.metadata.groups.shared_groups import members_in_force
from spark_log.metadata.state import GroupState as StoredGroup
from spark_log.metadata.state import ShareMember, State
from spark_log.model import TopicPartition
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import GroupView


@described
class MemberDescription(NamedTuple):
    """A consumer or stream that owns a group, or some of its partitions."""

    member_id: str
    kind: str
    """"consumer", or "stream" for a Spark query."""
    owner: str
    """Readable name: the name a stream gives, or the host of a member; empty if not given."""
    client_id: str = ""
    host: str = ""
    """Name of its machine, or its address as the coordinator sees it."""
    group_instance_id: str | None = None
    assignment: tuple[TopicPartition, ...] | None = None
    """Its last assignment, or the partitions of its share that have positions; None: all, it does not share them."""
    process: int | None = None
    """Process id on its host, if it is known."""


@described
class GroupDescription(NamedTuple):
    """A group.  Embedded, at most one member owns all partitions; through a coordinator, the members share them."""

    group_id: str
    state: str
    """Kafka's: Stable, Empty, PreparingRebalance, CompletingRebalance, Unknown; Dead for a group that does not exist.

    A group whose one consumer owns all partitions is Stable until the consumer closes, even if its process has died.
    Unknown: the log has members that joined through a gateway, or through a coordinator that was stopped.
    """
    generation: int
    members: list[MemberDescription]
    protocol: str = ""
    """The assignor, if members share the group."""
    leader: str = ""
    """The member that computed the assignment."""


def describe_groups(journal: Journal, names: Iterable[str] | None = None) -> dict[str, GroupDescription]:
    """Descriptions of groups, by name.

    names:  None: all groups.  An unknown group has the state Dead.
    """
    state, shared = journal.refresh(), shared_now(journal)
    wanted = sorted({*state.groups, *shared}) if names is None else names
    return {name: describe_group(state, name, shared.get(name)) for name in wanted}


def shared_now(journal: Journal) -> dict[str, GroupView]:
    """The coordinator's view of the groups; empty if there is no coordinator or it does not answer."""
    holder = journal.state.coordinator
    if not isinstance(journal.link, HttpLink) or not holder.address:
        return {}
    try:
        return journal.link.groups(holder)
    except (CoordinatorNotAvailable, NotCoordinator, AuthenticationFailed, LogMoved):
        return {}


def describe_group(state: State, name: str, shared: GroupView | None = None) -> GroupDescription:
    """Describe one group.

    shared:  the coordinator's view of the group, which is newer than the log.
    """
    if shared is not None:
        return _shared(name, shared.state, shared.roster)
    group = state.groups.get(name)
    if group is None:
        return GroupDescription(name, ConsumerGroupState.DEAD.value, 0, [])
    if group.roster is not None and group.roster.members:
        known = ConsumerGroupState.STABLE if members_in_force(state, name) else ConsumerGroupState.UNKNOWN
        return _shared(name, known.value, group.roster)
    members = [_share_member(state, group, member) for member in group.shares]
    if group.member:
        client_id, host, process = origin_of(group.member)
        kind, owner = ("consumer", "") if group.session is None else ("stream", group.session.owner)
        members = [MemberDescription(group.member, kind, owner, client_id, host, process=process)]
    return GroupDescription(
        name, (ConsumerGroupState.STABLE if members else ConsumerGroupState.EMPTY).value, group.generation, members
    )


def _share_member(state: State, group: StoredGroup, member: ShareMember) -> MemberDescription:
    """With the partitions of its share in which the group has positions: the log does not know its topics."""
    client_id, host, process = origin_of(member.member)
    owned = sorted(
        TopicPartition(state.topics[topic_id].name, number)
        for topic_id, number in group.offsets
        if member.share.owns(number)
    )
    return MemberDescription(
        member.member, "stream", member.session.owner, client_id, host, None, tuple(owned), process=process
    )


def _shared(name: str, state: str, roster: Roster) -> GroupDescription:
    members = [_member(member, _assigned(roster, member)) for member in roster.members]
    return GroupDescription(name, state, roster.generation, members, roster.protocol or "", roster.leader or "")


def _assigned(roster: Roster, member: RosterMember) -> tuple[TopicPartition, ...]:
    """Empty for clients of another protocol type: their assignments cannot be decoded here."""
    if roster.protocol_type != CONSUMER:
        return ()
    try:
        return tuple(sorted(decode_assignment(member.assignment).partitions))
    except UNREADABLE:
        return ()


def _member(member: RosterMember, assigned: tuple[TopicPartition, ...]) -> MemberDescription:
    where = f"{member.client_id or 'consumer'} on {member.client_host}" if member.client_host else member.client_id
    return MemberDescription(
        member.member_id, "consumer", where, member.client_id, member.client_host, member.group_instance_id, assigned
    )
