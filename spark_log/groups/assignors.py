"""The assignors by name, built-in ones and those of users, and their use by the leader of a group."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from spark_log.errors import InvalidRequest
from spark_log.groups.messages import JoinedMember
from spark_log.groups.racks import Cluster
from spark_log.groups.range_and_round_robin import Assigned, RangeAssignor, RoundRobinAssignor
from spark_log.groups.sticky import CooperativeStickyAssignor, StickyAssignor
from spark_log.groups.subscription import ProtocolAssignment, Subscriber, decode_subscription, encode
from spark_log.model import TopicPartition


class Assignor(Protocol):
    """The result of `make_assignor`, and the interface of a user's class.  Each member has one object."""

    name: str
    """The name by which members agree on it."""
    cooperative: bool
    """Members keep their partitions while they join, and no owned partition is assigned to another (KIP-429)."""

    def assign(self, cluster: Cluster, members: Sequence[Subscriber]) -> Assigned:
        """The partitions of each member, by member id.  Runs in the leader."""


BUILT_IN: Mapping[str, type[Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def make_assignor(strategy: str | type[Assignor]) -> Assignor:
    """An assignor by its name, as `module:Class`, or by its class.

    Raises InvalidRequest if the name is unknown, or if the class cannot be loaded or is not an assignor.
    """
    if isinstance(strategy, type):
        return _made(strategy, strategy.__name__)
    if strategy in BUILT_IN:
        return BUILT_IN[strategy]()
    if ":" in strategy:
        module, _, attribute = strategy.partition(":")
        try:
            loaded = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # A user's module may raise anything.
            raise InvalidRequest(
                f"the assignor {strategy!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return _made(loaded, strategy)
    raise InvalidRequest(
        f"unknown assignor {strategy!r}: expected {', '.join(BUILT_IN)}, or your class as 'module:Class'"
    )


def _made(kind: type[Assignor], name: str) -> Assignor:
    try:
        assignor = kind()
    except Exception as error:
        raise InvalidRequest(f"the assignor {name!r} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(assignor, "name", None), str) or not callable(getattr(assignor, "assign", None)):
        raise InvalidRequest(f"the assignor {name!r} has no name or no method assign(cluster, members)")
    if not isinstance(getattr(assignor, "cooperative", None), bool):
        raise InvalidRequest(f"the assignor {name!r} does not say whether it is cooperative (True or False)")
    return assignor


# -------------------------------------------------------------------------------------------------------- in the leader


def what_members_read(partitions: Mapping[str, int], members: Sequence[JoinedMember]) -> Cluster:
    """The topics and partition counts that the leader assigns.  If they change, the leader joins again and causes a
    rebalance.

    partitions:  partition counts of all existing topics.
    """
    read = topics_of(members)
    return Cluster({topic: count for topic, count in sorted(partitions.items()) if topic in read})


def topics_of(members: Sequence[JoinedMember]) -> set[str]:
    """The topics that members subscribe to."""
    return {topic for member in members for topic in _subscriber(member).topics}


def assign_members(
    assignor: Assignor, cluster: Cluster, members: Sequence[JoinedMember], leader: str = ""
) -> dict[str, bytes]:
    """The assignments that the leader sends with its SyncGroup.

    leader:  its member id; its assignment also says when to join again.

    A member with an unreadable subscription gets nothing.  Raises InvalidRequest for an invalid assignment: partitions
    that do not exist, that two members get, that a member does not read, or, from a cooperative assignor, that another
    member still owns.
    """
    subscribers = [_subscriber(member) for member in sorted(members)]
    assigned = assignor.assign(cluster, subscribers)
    _check(assignor, cluster, subscribers, assigned)
    told = {
        member.member_id: ProtocolAssignment(partitions=tuple(assigned.get(member.member_id, ())))
        for member in subscribers
    }
    if leader in told:
        told[leader] = ProtocolAssignment(
            partitions=told[leader].partitions,
            counts=dict(cluster.partitions),
            unsettled=assignor.cooperative and _withholds(cluster, subscribers, assigned),
        )
    return {member_id: encode(assignment) for member_id, assignment in told.items()}


def _withholds(cluster: Cluster, members: Sequence[Subscriber], assigned: Assigned) -> bool:
    """Whether members own partitions that nobody gets."""
    given = {tp for partitions in assigned.values() for tp in partitions}
    read = {topic for member in members for topic in member.topics}
    return any(tp.topic in read and cluster.has(tp) and tp not in given for member in members for tp in member.owned)


def _subscriber(member: JoinedMember) -> Subscriber:
    told = decode_subscription(member.metadata)
    if told is None:
        return Subscriber(member_id=member.member_id, topics=(), group_instance_id=member.group_instance_id)
    return Subscriber(
        member_id=member.member_id,
        topics=told.topics,
        group_instance_id=member.group_instance_id,
        owned=told.owned,
        generation=told.generation,
        rack=told.rack,
        user_data=told.user_data,
    )


def _check(assignor: Assignor, cluster: Cluster, members: Sequence[Subscriber], assigned: Assigned) -> None:
    known = {member.member_id: frozenset(member.topics) for member in members}
    had = {member.member_id: frozenset(member.owned) for member in members}
    # A zombie's claim from an older generation does not block the partition.
    newest = max((member.generation for member in members), default=-1)
    owners = {tp: member.member_id for member in members if member.generation == newest for tp in member.owned}
    given: dict[TopicPartition, str] = {}
    for member_id, partitions in assigned.items():
        for tp in partitions:
            if member_id not in known or tp.topic not in known[member_id] or not cluster.has(tp):
                wrong = f"to {member_id}, which does not read it, or there is no such partition"
            elif tp in given:
                wrong = f"to {member_id} and to {given[tp]}"
            elif assignor.cooperative and tp in owners and tp not in had[member_id]:
                wrong = f"to {member_id}, while {owners[tp]} owns it: a cooperative assignor waits until it is revoked"
            else:
                given[tp] = member_id
                continue
            raise InvalidRequest(f"the assignor {assignor.name!r} gave {tp.topic}-{tp.partition} {wrong}")
