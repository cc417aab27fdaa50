"""Rows of consumer groups: their state, their members, their committed offsets and their lag."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from spark_log.positions import format_timestamp_ms

if TYPE_CHECKING:
    from spark_log.client.admin.group_listing import GroupDescription, MemberDescription
    from spark_log.client.admin.lag import PartitionLag
    from spark_log.journal.journal import Journal
    from spark_log.model import TopicPartition


def group_rows(journal: Journal, states: Collection[str]) -> list[dict[str, Any]]:
    """A row per group that is in one of these states."""
    from spark_log.client.admin.group_listing import describe_groups
    from spark_log.client.admin.lag import lags_of

    found = {name: one for name, one in describe_groups(journal).items() if one.state in states}
    lags = lags_of(journal, [name for name in found if name in journal.state.groups])
    return [listed_group(one, lags.get(name, [])) for name, one in found.items()]


def listed_group(group: GroupDescription, lags: Sequence[PartitionLag]) -> dict[str, Any]:
    """The row of a group: its state, and the sums over its partitions."""
    return {
        "group": group.group_id,
        "state": group.state,
        "topics": len({lag.tp.topic for lag in lags}),
        "partitions": len(lags),
        **_total(lags),
        "offset": sum(lag.position.offset for lag in lags),
        "end": sum(lag.end for lag in lags),
        "generation": group.generation,
        "members": len(group.members),
        "member": _holder(group),
    }


def _holder(group: GroupDescription) -> str | None:
    """The single member that owns a group: a consumer, or a Spark query."""
    alone = [member for member in group.members if member.assignment is None]
    return (alone[0].owner or alone[0].member_id) if alone else None


def lags_of_group(journal: Journal, name: str) -> list[PartitionLag]:
    """The lag in each partition in which the group has a committed offset.  Raises GroupIdNotFound."""
    from spark_log.client.admin.lag import lags_of

    return lags_of(journal, [name])[name]


def _row(lag: PartitionLag) -> dict[str, Any]:
    return {
        **lag.tp._asdict(),
        "offset": lag.position.offset,
        "start": lag.start,
        "end": lag.end,
        "lag": lag.records,
        "lag_bytes": lag.bytes,
        "lag_ms": lag.ms,
        "trimmed": lag.trimmed,
        "committed": format_timestamp_ms(lag.position.time),
        "metadata": lag.position.metadata or None,
    }


def _total(lags: Sequence[PartitionLag]) -> dict[str, Any]:
    """None for a group that has committed nothing: then its lag is not known."""
    if not lags:
        return dict.fromkeys(("lag", "lag_bytes", "lag_ms"))
    return {
        "lag": sum(lag.records for lag in lags),
        "lag_bytes": sum(lag.bytes for lag in lags),
        "lag_ms": max(lag.ms for lag in lags),
    }


def group_parts(
    journal: Journal, found: GroupDescription
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """The fields of a group, its members and its offsets.  Raises GroupIdNotFound for a group without any."""
    name, state = found.group_id, journal.state
    lags = [] if name not in state.groups and found.members else lags_of_group(journal, name)
    seen = state.groups[name].seen if name in state.groups else 0
    fields = {
        "group": name,
        "state": found.state,
        "generation": found.generation,
        "strategy": found.protocol or None,
        "seen": format_timestamp_ms(seen) if seen else None,
    }
    if topic := _state_topic(journal, lags):
        fields["state_topic"] = topic
    members = [_member_row(member, found.leader) for member in found.members]
    return fields, members, [{**_row(lag), "member": _owner_of(found, lag.tp)} for lag in lags]


def _state_topic(journal: Journal, lags: Sequence[PartitionLag]) -> str | None:
    """The topic with the state of a flow, which its positions name; None: this is not a flow with state.

    While the topic does not exist, it is shown by its id.
    """
    from spark_log.metadata.groups.named_state import named_state
    from spark_log.metadata.renewed_ids import later_ids

    state = journal.state
    named = {named_state(lag.position.metadata)[0] for lag in lags}
    for topic_id in sorted(named - {""}):
        known = [name for name, other in state.names.items() if other in later_ids(topic_id, state.version)]
        return known[0] if known else f"{topic_id} (deleted)"
    return None


def _member_row(member: MemberDescription, leader: str) -> dict[str, Any]:
    """partitions:  by topic; None: all partitions of the group."""
    topics: dict[str, list[int]] | None = None
    if member.assignment is not None:
        topics = {}
        for tp in member.assignment:
            topics.setdefault(tp.topic, []).append(tp.partition)
    return {
        "member": member.member_id,
        "kind": member.kind,
        "owner": member.owner or None,
        "client_id": member.client_id or None,
        "host": member.host or None,
        "process": member.process,
        "instance": member.group_instance_id,
        "leader": member.member_id == leader,
        "partitions": topics,
    }


def _owner_of(group: GroupDescription, tp: TopicPartition) -> str | None:
    """The member that reads a partition."""
    for member in group.members:
        if member.assignment is None or tp in member.assignment:
            return member.member_id
    return None


def lag_rows(journal: Journal, name: str) -> list[dict[str, Any]]:
    """A row per partition in which the group has a committed offset."""
    return [_row(lag) for lag in lags_of_group(journal, name)]
