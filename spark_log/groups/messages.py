"""Requests and responses of group members, under Kafka's names, without a wire format.

The structs are tagged, so that a list of them can be sent as JSON and read back.  Metadata and assignments are bytes
that the coordinator does not interpret.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec

from spark_log.bounds import AnyLong, IntOrLess, Opaque, Text


class Code(str, Enum):
    """Kafka's error names that groups use."""

    NONE = "NONE"
    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    NOT_COORDINATOR = "NOT_COORDINATOR"
    ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
    INCONSISTENT_GROUP_PROTOCOL = "INCONSISTENT_GROUP_PROTOCOL"
    INVALID_GROUP_ID = "INVALID_GROUP_ID"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    INVALID_SESSION_TIMEOUT = "INVALID_SESSION_TIMEOUT"
    REBALANCE_IN_PROGRESS = "REBALANCE_IN_PROGRESS"
    GROUP_ID_NOT_FOUND = "GROUP_ID_NOT_FOUND"
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    GROUP_SUBSCRIBED_TO_TOPIC = "GROUP_SUBSCRIBED_TO_TOPIC"
    MEMBER_ID_REQUIRED = "MEMBER_ID_REQUIRED"
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    NON_EMPTY_GROUP = "NON_EMPTY_GROUP"
    OFFSET_METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    INVALID_COMMIT_OFFSET_SIZE = "INVALID_COMMIT_OFFSET_SIZE"
    UNSTABLE_OFFSET_COMMIT = "UNSTABLE_OFFSET_COMMIT"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    UNKNOWN_SERVER_ERROR = "UNKNOWN_SERVER_ERROR"
    NOT_ENOUGH_REPLICAS = "NOT_ENOUGH_REPLICAS"
    NOT_LEADER_OR_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"
    KAFKA_STORAGE_ERROR = "KAFKA_STORAGE_ERROR"
    REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    RECORD_LIST_TOO_LARGE = "RECORD_LIST_TOO_LARGE"
    INVALID_FETCH_SIZE = "INVALID_FETCH_SIZE"


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, and the member's metadata for it."""

    name: Text
    metadata: Opaque = b""


class JoinedMember(NamedTuple):
    """A member in the response to its leader."""

    member_id: Text
    group_instance_id: Text | None
    metadata: Opaque
    """For the selected protocol."""


class LeavingMember(NamedTuple):
    member_id: Text = ""
    """Empty: the static member of that instance id, whatever its member id is (for an administrator)."""
    group_instance_id: Text | None = None


class MemberLeft(NamedTuple):
    member_id: Text
    group_instance_id: Text | None
    error: Code


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all requests and responses."""


# ------------------------------------------------------------------------------------------------------------- requests


class JoinGroupRequest(_Message, frozen=True, kw_only=True, tag="join_group"):
    """Become a member, or rejoin for the next generation.  Answered at the end of the join phase."""

    group_id: Text
    member_id: Text = ""
    """Empty: not a member yet."""
    group_instance_id: Text | None = None
    """For a static member."""
    protocol_type: Text = "consumer"
    protocols: tuple[MemberProtocol, ...] = ()
    """In the member's order of preference."""
    session_timeout_ms: AnyLong
    rebalance_timeout_ms: AnyLong
    """How long a rebalance waits for this member to rejoin: the client's max.poll.interval.ms."""
    client_id: Text = ""
    client_host: Text = ""
    new_member_id: Text = ""
    """For a new member: drawn by the coordinator's shell, because the machine has no randomness."""
    require_known_member_id: bool = True
    """The coordinator first answers with an id (MEMBER_ID_REQUIRED), and the member joins with it."""
    supports_skipping_assignment: bool = True


class SyncGroupRequest(_Message, frozen=True, kw_only=True, tag="sync_group"):
    """Request the assignment; the leader sends all assignments.  Answered when they are durable."""

    group_id: Text
    member_id: Text
    generation_id: IntOrLess
    group_instance_id: Text | None = None
    protocol_type: Text | None = None
    """None: not checked; like `protocol_name`."""
    protocol_name: Text | None = None
    assignments: dict[Text, Opaque] = {}
    """By member id, only from the leader."""


class HeartbeatRequest(_Message, frozen=True, kw_only=True, tag="heartbeat"):
    """Extend the session, and learn whether the member must rejoin."""

    group_id: Text
    member_id: Text
    generation_id: IntOrLess
    group_instance_id: Text | None = None


class LeaveGroupRequest(_Message, frozen=True, kw_only=True, tag="leave_group"):
    group_id: Text
    members: tuple[LeavingMember, ...]


class OffsetCommitRequest(_Message, frozen=True, kw_only=True, tag="offset_commit"):
    """May the sender commit these positions?  The machine checks the sender; the caller checks the positions."""

    group_id: Text
    member_id: Text = ""
    generation_id: IntOrLess = -1
    """-1: from an administrator, or a consumer that is not a member."""
    group_instance_id: Text | None = None
    transactional: bool = False
    knows_group_id_not_found: bool = True
    """Kafka's version 9 and later; for older ones the error for an unknown group is ILLEGAL_GENERATION."""


class Journaled(_Message, frozen=True, kw_only=True, tag="journaled"):
    """From the coordinator's shell: the journal has answered for a record of a step."""

    group_id: Text
    ticket: int
    error: Code = Code.NONE
    """The journal's error; members get Kafka's translation of it."""


Request: TypeAlias = (
    JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest | OffsetCommitRequest | Journaled
)

# ------------------------------------------------------------------------------------------------------------ responses


class JoinGroupResponse(_Message, frozen=True, kw_only=True, tag="join_group_response"):
    error: Code = Code.NONE
    member_id: Text = ""
    generation_id: int = -1
    protocol_type: Text | None = None
    protocol_name: Text | None = None
    leader: Text = ""
    members: tuple[JoinedMember, ...] = ()
    """Only for the leader."""
    skip_assignment: bool = False
    """For a static leader that was replaced without a rebalance: it must not assign again."""


class SyncGroupResponse(_Message, frozen=True, kw_only=True, tag="sync_group_response"):
    error: Code = Code.NONE
    protocol_type: Text | None = None
    protocol_name: Text | None = None
    assignment: Opaque = b""


class HeartbeatResponse(_Message, frozen=True, kw_only=True, tag="heartbeat_response"):
    error: Code = Code.NONE


class LeaveGroupResponse(_Message, frozen=True, kw_only=True, tag="leave_group_response"):
    error: Code = Code.NONE
    members: tuple[MemberLeft, ...] = ()


class OffsetCommitResponse(_Message, frozen=True, kw_only=True, tag="offset_commit_response"):
    error: Code = Code.NONE


Response: TypeAlias = (
    JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse | OffsetCommitResponse
)
