"""Rules for deleting and expiring committed offsets of a group.

The offsets are positions in the metadata log, one for each group and partition; this module decides who may delete
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_log.groups.group import ConsumerGroupState, Group
from spark_log.groups.messages import Code
from spark_log.groups.subscription import CONSUMER, subscribed_topics
from spark_log.model import TopicPartition

METADATA_BYTES_MAX = 4_096
"""Kafka's offset.metadata.max.bytes."""


def check_metadata(metadata: str, limit: int = METADATA_BYTES_MAX) -> Code:
    """Whether the metadata that is committed with a position is short enough."""
    return Code.OFFSET_METADATA_TOO_LARGE if len(metadata.encode()) > limit else Code.NONE


def check_delete_group(group: Group | None, *, stored: bool) -> Code:
    """stored: the metadata log has the group."""
    if group is None or group.state is ConsumerGroupState.EMPTY:
        return Code.NONE if stored or group is not None else Code.GROUP_ID_NOT_FOUND
    return Code.GROUP_ID_NOT_FOUND if group.state is ConsumerGroupState.DEAD else Code.NON_EMPTY_GROUP


def check_delete_offsets(
    group: Group | None, partitions: Iterable[TopicPartition], *, stored: bool
) -> tuple[Code, Mapping[TopicPartition, Code]]:
    """Whether offsets may be deleted, and which: not those of topics that members read."""
    if group is None or group.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD):
        missing = check_delete_group(group, stored=stored)
        return missing, dict.fromkeys(partitions, Code.NONE) if missing is Code.NONE else {}
    if group.protocol_type != CONSUMER:
        return Code.NON_EMPTY_GROUP, {}
    read = topics_read(group)
    return Code.NONE, {
        tp: Code.GROUP_SUBSCRIBED_TO_TOPIC if read is None or tp.topic in read else Code.NONE for tp in partitions
    }


def may_expire(group: Group) -> bool:
    """Whether positions may expire: not while members join and sync, because their topics are not known yet."""
    return group.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.STABLE)


def topics_read(group: Group) -> frozenset[str] | None:
    """All topics that the members subscribe to; None if one is unknown, or before the first rebalance."""
    if group.protocol is None:
        return None
    return subscribed_topics(member.metadata(group.protocol) for member in group.members.values())
