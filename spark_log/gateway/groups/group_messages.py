"""The fields of requests about groups and their members, by version.

These are facts of Kafka's protocol, as those of messages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_log.gateway.codec import data, fixed, several, text
from spark_log.gateway.messages import UNKNOWN_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    key: str = text(0, 3)
    key_type: int = fixed("int8", 1)
    coordinator_keys: Sequence[str] = several("text", 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCoordinator:
    key: str = text()
    node_id: int = fixed("int32", default=-1)
    host: str = text()
    port: int = fixed("int32", default=-1)
    error_code: int = fixed("int16")
    error_message: str | None = text(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    throttle_time_ms: int = fixed("int32", 1)
    error_code: int = fixed("int16", 0, 3)
    error_message: str | None = text(1, 3, nullable=True)
    node_id: int = fixed("int32", 0, 3, default=-1)
    host: str = text(0, 3)
    port: int = fixed("int32", 0, 3, default=-1)
    coordinators: Sequence[FoundCoordinator] = several(FoundCoordinator, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedProtocol:
    name: str = text()
    metadata: bytes | None = data()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoinRequest:
    """Its name in Kafka is JoinGroup."""

    group_id: str = text()
    session_timeout_ms: int = fixed("int32")
    rebalance_timeout_ms: int = fixed("int32", 1, default=-1)
    member_id: str = text()
    group_instance_id: str | None = text(5, nullable=True)
    protocol_type: str = text()
    protocols: Sequence[OfferedProtocol] = several(OfferedProtocol)
    reason: str | None = text(8, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOfGroup:
    member_id: str = text()
    group_instance_id: str | None = text(5, nullable=True)
    metadata: bytes | None = data()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoinResponse:
    throttle_time_ms: int = fixed("int32", 2)
    error_code: int = fixed("int16")
    generation_id: int = fixed("int32", default=-1)
    protocol_type: str | None = text(7, nullable=True)
    protocol_name: str | None = text(nullable=True)
    """Only from version 7 on it may be null."""
    leader: str = text()
    skip_assignment: bool = fixed("bool", 9)
    member_id: str = text()
    members: Sequence[MemberOfGroup] = several(MemberOfGroup)


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersAssignment:
    member_id: str = text()
    assignment: bytes | None = data()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSyncRequest:
    """Its name in Kafka is SyncGroup."""

    group_id: str = text()
    generation_id: int = fixed("int32")
    member_id: str = text()
    group_instance_id: str | None = text(3, nullable=True)
    protocol_type: str | None = text(5, nullable=True)
    protocol_name: str | None = text(5, nullable=True)
    assignments: Sequence[MembersAssignment] = several(MembersAssignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSyncResponse:
    throttle_time_ms: int = fixed("int32", 1)
    error_code: int = fixed("int16")
    protocol_type: str | None = text(5, nullable=True)
    protocol_name: str | None = text(5, nullable=True)
    assignment: bytes | None = data()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeatRequest:
    """Its name in Kafka is Heartbeat."""

    group_id: str = text()
    generation_id: int = fixed("int32")
    member_id: str = text()
    group_instance_id: str | None = text(3, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeatResponse:
    throttle_time_ms: int = fixed("int32", 1)
    error_code: int = fixed("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberToLeave:
    member_id: str = text()
    group_instance_id: str | None = text(nullable=True)
    reason: str | None = text(5, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersLeaveRequest:
    """Its name in Kafka is LeaveGroup."""

    group_id: str = text()
    member_id: str = text(0, 2)
    members: Sequence[MemberToLeave] = several(MemberToLeave, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberThatLeft:
    member_id: str = text()
    group_instance_id: str | None = text(nullable=True)
    error_code: int = fixed("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersLeaveResponse:
    throttle_time_ms: int = fixed("int32", 1)
    error_code: int = fixed("int16")
    members: Sequence[MemberThatLeft] = several(MemberThatLeft, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    states_filter: Sequence[str] = several("text", 4)
    types_filter: Sequence[str] = several("text", 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str = text()
    protocol_type: str = text()
    group_state: str = text(4)
    group_type: str = text(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    throttle_time_ms: int = fixed("int32", 1)
    error_code: int = fixed("int16")
    groups: Sequence[ListedGroup] = several(ListedGroup)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    groups: Sequence[str] = several("text")
    include_authorized_operations: bool = fixed("bool", 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    member_id: str = text()
    group_instance_id: str | None = text(4, nullable=True)
    client_id: str = text()
    client_host: str = text()
    member_metadata: bytes | None = data()
    member_assignment: bytes | None = data()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    error_code: int = fixed("int16")
    error_message: str | None = text(6, nullable=True)
    group_id: str = text()
    group_state: str = text()
    protocol_type: str = text()
    protocol_data: str = text()
    members: Sequence[DescribedMember] = several(DescribedMember)
    authorized_operations: int = fixed("int32", 3, default=UNKNOWN_OPERATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    throttle_time_ms: int = fixed("int32", 1)
    groups: Sequence[DescribedGroup] = several(DescribedGroup)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    groups_names: Sequence[str] = several("text")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedGroup:
    group_id: str = text()
    error_code: int = fixed("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    throttle_time_ms: int = fixed("int32")
    results: Sequence[DeletedGroup] = several(DeletedGroup)
