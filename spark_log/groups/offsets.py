"""Rules of committed offsets that go with a group's life.

The offsets themselves are positions in the metadata log, one for each group and partition; here is who may delete them,
and what a transaction has asked for and not yet committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark_log.groups.group import Group, GroupState
from spark_log.groups.messages import Code
from spark_log.groups.subscription import CONSUMER, subscribed_topics
from spark_log.model import OffsetAndMetadata, TopicPartition

METADATA_BYTES_MAX = 4_096
"""Kafka's offset.metadata.max.bytes."""


def check_metadata(metadata: str, limit: int = METADATA_BYTES_MAX) -> Code:
    """Whether the note that is committed with a position is short enough."""
    return Code.OFFSET_METADATA_TOO_LARGE if len(metadata.encode()) > limit else Code.NONE


def check_delete_group(group: Group | None, *, stored: bool) -> Code:
    """stored: the metadata log has the group."""
    if group is None or group.state is GroupState.EMPTY:
        return Code.NONE if stored or group is not None else Code.GROUP_ID_NOT_FOUND
    return Code.GROUP_ID_NOT_FOUND if group.state is GroupState.DEAD else Code.NON_EMPTY_GROUP


def check_delete_offsets(
    group: Group | None, partitions: Iterable[TopicPartition], *, stored: bool
) -> tuple[Code, Mapping[TopicPartition, Code]]:
    """Whether offsets may be deleted at all, and which of them: not those of topics that members read."""
    if group is None or group.state in (GroupState.EMPTY, GroupState.DEAD):
        missing = check_delete_group(group, stored=stored)
        return missing, dict.fromkeys(partitions, Code.NONE) if missing is Code.NONE else {}
    if group.protocol_type != CONSUMER:
        return Code.NON_EMPTY_GROUP, {}
    read = topics_read(group)
    return Code.NONE, {
        tp: Code.GROUP_SUBSCRIBED_TO_TOPIC if read is None or tp.topic in read else Code.NONE for tp in partitions
    }


def may_expire(group: Group) -> bool:
    """Whether positions may expire at all: not while members join and sync, when nobody knows yet what they will read."""
    return group.state in (GroupState.EMPTY, GroupState.STABLE)


def topics_read(group: Group) -> frozenset[str] | None:
    """All topics that the members read, by their subscriptions; None if one of them does not say, or before the first round."""
    if group.protocol is None:
        return None
    return subscribed_topics(member.metadata(group.protocol) for member in group.members.values())


class Staged(NamedTuple):
    """A position that a transaction has asked for."""

    position: OffsetAndMetadata
    superseded: bool = False
    """Somebody has committed a position for the same partition since, which is newer and stays."""


Place = tuple[str, TopicPartition]
"""(group id, partition)."""


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Positions of transactions that are open.  They are not visible, and go with the transaction."""

    staged: Mapping[str | int, Mapping[Place, Staged]] = field(default_factory=dict)
    """By producer."""

    def stage(
        self, producer: str | int, group_id: str, positions: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> PendingOffsets:
        mine = {**self.staged.get(producer, {}), **{(group_id, tp): Staged(at) for tp, at in positions.items()}}
        return replace(self, staged={**self.staged, producer: mine})

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether a fetch that wants stable positions has to be told to come again (UNSTABLE_OFFSET_COMMIT)."""
        return any((group_id, partition) in mine for mine in self.staged.values())

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> PendingOffsets:
        """Positions were committed without a transaction: they are newer than those that are staged now."""
        places = {(group_id, tp) for tp in partitions}
        return replace(
            self,
            staged={
                producer: {
                    place: one._replace(superseded=one.superseded or place in places) for place, one in mine.items()
                }
                for producer, mine in self.staged.items()
            },
        )

    def without_group(self, group_id: str) -> PendingOffsets:
        """The group was deleted."""
        return replace(
            self,
            staged={
                producer: {place: one for place, one in mine.items() if place[0] != group_id}
                for producer, mine in self.staged.items()
            },
        )

    def end(self, producer: str | int) -> tuple[PendingOffsets, Mapping[Place, OffsetAndMetadata]]:
        """The transaction is over.  What its commit makes visible, or its abort forgets, in the order of asking."""
        left = {name: mine for name, mine in self.staged.items() if name != producer}
        asked = {place: one.position for place, one in self.staged.get(producer, {}).items() if not one.superseded}
        return replace(self, staged=left), asked
