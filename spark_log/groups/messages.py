"""What members of a group ask and what they are told, under Kafka's names, in no particular wire form.

The structs are tagged, so that a list of them can be sent as JSON and read back; metadata and assignments are bytes that
the coordinator carries and does not look into.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec


class Code(str, Enum):
    """Kafka's error names, as far as groups have them."""

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
    """An assignor that a member can work with, and what it tells the assignor."""

    name: str
    metadata: bytes = b""


class JoinedMember(NamedTuple):
    """A member as its leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes
    """For the protocol that was chosen."""


class LeavingMember(NamedTuple):
    member_id: str = ""
    """Empty: the static member of that instance id, whatever its member id is (an administrator's way)."""
    group_instance_id: str | None = None


class MemberLeft(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: Code


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all requests and responses."""


# ------------------------------------------------------------------------------------------------------------- requests


class JoinGroupRequest(_Message, frozen=True, kw_only=True, tag="join_group"):
    """Become a member, or come back for the next generation.  Answered when the round of joins is over."""

    group_id: str
    member_id: str = ""
    """Empty: not a member yet."""
    group_instance_id: str | None = None
    """Of a static member."""
    protocol_type: str = "consumer"
    protocols: tuple[MemberProtocol, ...] = ()
    """The one that the member likes best first."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """How long the others wait for this one to rejoin: the client's max.poll.interval.ms."""
    client_id: str = ""
    client_host: str = ""
    new_member_id: str = ""
    """For a new member: drawn by the coordinator's shell, since the machine draws nothing."""
    require_known_member_id: bool = True
    """The id is handed out first (MEMBER_ID_REQUIRED), and the member joins with it."""
    supports_skipping_assignment: bool = True


class SyncGroupRequest(_Message, frozen=True, kw_only=True, tag="sync_group"):
    """Ask for the assignment; the leader brings everybody's.  Answered when the assignment is durable."""

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    """None: not said, not checked; as `protocol_name`."""
    protocol_name: str | None = None
    assignments: dict[str, bytes] = {}
    """By member id, from the leader alone."""


class HeartbeatRequest(_Message, frozen=True, kw_only=True, tag="heartbeat"):
    """Say that the member is alive, and learn whether it has to rejoin."""

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None


class LeaveGroupRequest(_Message, frozen=True, kw_only=True, tag="leave_group"):
    group_id: str
    members: tuple[LeavingMember, ...]


class OffsetCommitRequest(_Message, frozen=True, kw_only=True, tag="offset_commit"):
    """May these positions be committed?  The machine judges who asks; the positions are the caller's matter."""

    group_id: str
    member_id: str = ""
    generation_id: int = -1
    """-1: by an administrator, or a consumer that is no member."""
    group_instance_id: str | None = None
    transactional: bool = False
    knows_group_id_not_found: bool = True
    """Kafka's version 9 and later: otherwise the error for an unknown group is ILLEGAL_GENERATION."""


class Journaled(_Message, frozen=True, kw_only=True, tag="journaled"):
    """From the coordinator's shell: the journal has answered for a record that a step gave."""

    group_id: str
    ticket: int
    error: Code = Code.NONE
    """What the journal says; members get Kafka's translation of it."""


Request: TypeAlias = (
    JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest | OffsetCommitRequest | Journaled
)

# ------------------------------------------------------------------------------------------------------------ responses


class JoinGroupResponse(_Message, frozen=True, kw_only=True, tag="join_group_response"):
    error: Code = Code.NONE
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """For the leader alone."""
    skip_assignment: bool = False
    """A static leader that was replaced without a rebalance: it must not assign anew."""


class SyncGroupResponse(_Message, frozen=True, kw_only=True, tag="sync_group_response"):
    error: Code = Code.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


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
