"""The fields of requests about committed offsets, by version.

These are facts of Kafka's protocol, as those of messages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_log.gateway.codec import fixed, several, text


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionToCommit:
    partition_index: int = fixed("int32")
    committed_offset: int = fixed("int64")
    committed_leader_epoch: int = fixed("int32", 6, default=-1)
    committed_metadata: str | None = text(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsOfTopic:
    name: str = text()
    partitions: Sequence[PositionToCommit] = several(PositionToCommit)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPositionsRequest:
    """Its name in Kafka is OffsetCommit."""

    group_id: str = text()
    generation_id: int = fixed("int32", default=-1)
    member_id: str = text()
    group_instance_id: str | None = text(7, nullable=True)
    retention_time_ms: int = fixed("int64", 2, 4, default=-1)
    topics: Sequence[PositionsOfTopic] = several(PositionsOfTopic)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_index: int = fixed("int32")
    error_code: int = fixed("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResults:
    name: str = text()
    partitions: Sequence[PartitionResult] = several(PartitionResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPositionsResponse:
    throttle_time_ms: int = fixed("int32", 3)
    topics: Sequence[PartitionResults] = several(PartitionResults)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsAsked:
    name: str = text()
    partition_indexes: Sequence[int] = several("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPositionsAsked:
    group_id: str = text()
    member_id: str | None = text(9, nullable=True)
    member_epoch: int = fixed("int32", 9, default=-1)
    topics: Sequence[PositionsAsked] | None = several(PositionsAsked, nullable=True)
    """None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPositionsRequest:
    """Its name in Kafka is OffsetFetch."""

    group_id: str = text(0, 7)
    topics: Sequence[PositionsAsked] | None = several(PositionsAsked, 0, 7, nullable=True)
    groups: Sequence[GroupPositionsAsked] = several(GroupPositionsAsked, 8)
    require_stable: bool = fixed("bool", 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPosition:
    partition_index: int = fixed("int32")
    committed_offset: int = fixed("int64", default=-1)
    committed_leader_epoch: int = fixed("int32", 5, default=-1)
    metadata: str | None = text(nullable=True)
    error_code: int = fixed("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPositions:
    name: str = text()
    partitions: Sequence[CommittedPosition] = several(CommittedPosition)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOfGroup:
    group_id: str = text()
    topics: Sequence[CommittedPositions] = several(CommittedPositions)
    error_code: int = fixed("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPositionsResponse:
    throttle_time_ms: int = fixed("int32", 3)
    topics: Sequence[CommittedPositions] = several(CommittedPositions, 0, 7)
    error_code: int = fixed("int16", 2, 7)
    groups: Sequence[CommittedOfGroup] = several(CommittedOfGroup, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionToDelete:
    partition_index: int = fixed("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsToDelete:
    name: str = text()
    partitions: Sequence[PartitionToDelete] = several(PartitionToDelete)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePositionsRequest:
    """Its name in Kafka is OffsetDelete."""

    group_id: str = text()
    topics: Sequence[PositionsToDelete] = several(PositionsToDelete)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePositionsResponse:
    error_code: int = fixed("int16")
    throttle_time_ms: int = fixed("int32")
    topics: Sequence[PartitionResults] = several(PartitionResults)
