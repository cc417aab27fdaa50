"""Messages between coordinators and clients: typed, as JSON.

    GET  /health                                Health, without a token; status 503 while the storage fails
    GET  /alive                                 the same, always with status 200
    GET  /v1/cluster                            ClusterInfo
    POST /v1/commands   CommandsRequest         CommandsReply
    POST /v1/changes    ChangesRequest          ChangesReply; waits until the log has changed, `wait_ms` at most
    POST /v1/topics     TopicsRequest           Delta: the same for a client that holds some topics
    POST /v1/objects    ObjectsRequest          ObjectsReply
    POST /v1/snapshot   SnapshotRequest         a line with a SnapshotChunk, and its bytes (`snapshots.py`)
    POST /v1/claim      ClaimRequest            ClaimReply
    GET  /v1/status?cluster_id=                 StatusReply
    GET  /v1/groups?cluster_id=                 GroupsReply: current members and assignments of shared groups
    POST /v1/group/join|sync|heartbeat|leave       GroupAsked, GroupAnswered; join and sync wait for the other members

A rejected request gets a status of 4xx or 5xx and a `Failure`.  A rejected command does not affect the other commands
of its request: its outcome has the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from spark_log.bounds import UNREADABLE, Long, Wait
from spark_log.errors import InvalidRequest
from spark_log.groups.group import Roster
from spark_log.groups.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.http.failures import Failure
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.projection import Delta, Holdings
from spark_log.runtime.collector_pause import collector_paused

PROTOCOL = 4
"""2: requests for changes have a body.  3: appends name the topics of records without a key."""
WAIT_MS_MAX = 60_000
"""Longest wait of a request for changes."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all messages.  Unknown fields are ignored: they belong to newer versions."""


SERVED = "served"
"""Where clients read the metadata log: a coordinator sends it.  Otherwise they may read it on the storage."""


class ClusterInfo(Message, frozen=True, kw_only=True):
    """A coordinator and its log."""

    pylog: int
    """Version of the protocol."""
    cluster_id: str
    storage: str
    """URL of the log's storage, where clients read and write objects directly."""
    leading: bool
    """False for a standby."""
    address: str
    """Address of the leader, as far as this coordinator knows."""
    epoch: int
    version: int
    """Version of the newest record that this coordinator has read."""
    metadata: str = ""
    """`SERVED`: clients must not use `meta/` on the storage; empty: they may read it there."""
    principal: str = ""
    """Name of the token of the request; empty if there are no tokens."""


class Health(Message, frozen=True, kw_only=True):
    """The state of a coordinator."""

    cluster_id: str
    leading: bool
    epoch: int
    version: int
    healthy: bool = True
    reason: str = ""
    """If it is not healthy."""
    storage_age_ms: int = 0
    """Since a write to the storage was last completed and read back."""
    stepped_down: int = 0
    """The last epoch in which it stepped down because writes to its storage did not complete."""
    set_aside: int = 0
    """Objects that its maintenance could not read, and has set aside."""


class CommandsRequest(Message, frozen=True, kw_only=True):
    cluster_id: str
    since: Long
    """The version that the client has."""
    head: str = ""
    """First line of the record of that version; empty if the client does not know it."""
    commands: tuple[AnyCommand, ...]
    held: Holdings | None = None
    """The contents of the client's state, if that has only some topics."""


class CommandOutcome(Message, frozen=True, kw_only=True):
    """The outcome of one command: a reply, or an error."""

    reply: Any = None
    failure: Failure | None = None


class CommandsReply(Message, frozen=True, kw_only=True):
    outcomes: tuple[CommandOutcome, ...]
    batches: tuple[str, ...] = ()
    """Objects of the log after `since`.  Empty if they are too large, or if the coordinator does not know that `head`
    precedes them: then the client reads them from storage."""
    delta: Delta | None = None
    """Replaces the batches for a client that holds only some topics."""


class ChangesRequest(Message, frozen=True, kw_only=True):
    """Wait for changes of the log."""

    cluster_id: str
    since: Long
    """The version that the client has."""
    head: str = ""
    """First line of the record of that version, as in CommandsRequest."""
    wait_ms: Wait
    topics: tuple[str, ...] | None = None
    """Topic ids: wait for records of these topics, and for changes other than records; None: for any change."""
    group: str = ""
    """A rebalance of this group ends the wait too."""
    standby: bool = False
    """A standby may answer, which follows the log with a delay."""
    confirmed: bool = False
    """Read the log up to its end first, and do not wait."""


class ChangesReply(Message, frozen=True, kw_only=True):
    version: int
    batches: tuple[str, ...] = ()
    """Objects of the log after `since`, as in CommandsReply."""
    lacks_head: bool = False
    """The coordinator has another record at version `since`, or leads and has none."""


class TopicsRequest(Message, frozen=True, kw_only=True):
    """The changes of some topics, after a wait as for `ChangesRequest`."""

    cluster_id: str
    held: msgspec.Raw
    """`Holdings`: the contents of the client's state."""
    confirmed: bool = False
    """Read the log up to its end first, and do not wait."""
    wait_ms: Wait = 0
    topics: tuple[str, ...] | None = None
    group: str = ""
    standby: bool = False


class ObjectsRequest(Message, frozen=True, kw_only=True):
    """Objects whose slices are in indexes, for a client that reads them."""

    cluster_id: str
    names: tuple[str, ...]
    standby: bool = False


class ObjectsReply(Message, frozen=True, kw_only=True):
    rows: dict[str, tuple[int, int, int]]
    """Size, index position and key of the copies; objects that are gone are left out."""


class SnapshotRequest(Message, frozen=True, kw_only=True):
    """One chunk of the whole state."""

    cluster_id: str
    snapshot: str = ""
    """Its id, from an earlier reply; empty for the first request."""
    at: Long = 0
    """Position of the chunk."""
    version: Long | None = None
    """The version of the state; None: a recent one, whose changes the coordinator knows."""
    at_least: Long = 0
    """A recent one has this version or a newer one, unless the log of the leader is shorter."""
    standby: bool = False


class SnapshotChunk(Message, frozen=True, kw_only=True):
    """The first line of the reply to a SnapshotRequest; the bytes of the chunk follow it."""

    snapshot: str
    """If it is not the id of the request, the coordinator has no such snapshot any more, and this is the first chunk of
    another one."""
    version: int
    head: str
    """First line of the record of that version; empty if not known."""
    size: int
    """Bytes of the whole snapshot, which is a checkpoint of the state (`checkpoint_format.py`).

    0: the version cannot be rebuilt any more.
    """
    at: int
    crc: int
    """CRC-32C of the bytes of this chunk."""


class ClaimRequest(Message, frozen=True, kw_only=True):
    """Claim a value, or look for a claim."""

    cluster_id: str
    name: str
    value: str | None = None
    """JSON with a field `version`; None: look for a claim."""
    wait_ms: Wait = 0
    """How long to wait for another client that is making the claim."""


class ClaimReply(Message, frozen=True, kw_only=True):
    value: str | None = None
    """The value that was claimed first; None: there is none, and the client that gets this answer makes it."""


class StatusReply(Message, frozen=True, kw_only=True):
    checkpoint: int
    """Version of the newest checkpoint."""


class ReplicaState(Message, frozen=True, kw_only=True):
    """A replica of the metadata log, under the names of Kafka's admin client."""

    replica_id: int
    """The id of its node."""
    replica_directory_id: str
    log_end_offset: int
    """Everything before is on its disk; -1: it has not fetched in this epoch."""
    lag: int
    """Entries that the leader has, and the replica lacks; -1: it has not fetched in this epoch."""
    last_fetch_timestamp: int
    """When it last asked the leader for entries, in milliseconds since 1970; -1: not in this epoch."""
    last_caught_up_timestamp: int
    """When it last had everything that the leader had; -1: not in this epoch."""
    forgotten: int
    """The version of the log before which its directory has nothing, since it started; 0: that is not known."""


class QuorumInfo(Message, frozen=True, kw_only=True):
    """The replicas of the metadata log, as their leader knows them."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    """Entries before it are on the disks of a majority."""
    voters: tuple[ReplicaState, ...]
    """The leader is among them."""
    observers: tuple[ReplicaState, ...]
    """Replicas that fetch and do not vote, such as one that is to be added."""
    nodes: dict[int, str]
    """Addresses for the other nodes, by node."""
    copy_problem: str
    """Why the copy of the metadata beside the records is late; empty: it is not."""
    former_metadata: str
    """Why metadata from before the log moved into the quorum keeps erasures open; empty: it does not."""
    silent: dict[int, int]
    """By node that neither votes nor fetches, and is one of the leader's peers, or has connected to it: as
    `ReplicaState.forgotten`."""


MemberRequest: TypeAlias = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
MemberResponse: TypeAlias = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse
GROUP_PATHS: Mapping[str, type[MemberRequest]] = {
    "/v1/group/join": JoinGroupRequest,
    "/v1/group/sync": SyncGroupRequest,
    "/v1/group/heartbeat": HeartbeatRequest,
    "/v1/group/leave": LeaveGroupRequest,
}


class GroupAsked(Message, frozen=True, kw_only=True):
    """A request of a member of a group, or of a client that joins."""

    cluster_id: str
    request: MemberRequest
    wait_ms: Wait = 0
    """How long a heartbeat may wait for a change."""


class GroupAnswered(Message, frozen=True, kw_only=True):
    response: MemberResponse


class GroupView(Message, frozen=True, kw_only=True):
    """A shared group, including one whose members are joining."""

    group_id: str
    state: str
    """Kafka's: PreparingRebalance, CompletingRebalance, Stable, Empty."""
    roster: Roster
    """Members and their last assignments."""


class GroupsReply(Message, frozen=True, kw_only=True):
    groups: tuple[GroupView, ...]


encode = msgspec.json.Encoder().encode


_DECODERS: Mapping[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        ClusterInfo,
        Health,
        CommandsRequest,
        CommandsReply,
        ChangesRequest,
        ChangesReply,
        TopicsRequest,
        ObjectsRequest,
        ObjectsReply,
        SnapshotRequest,
        SnapshotChunk,
        ClaimRequest,
        ClaimReply,
        StatusReply,
        QuorumInfo,
        Holdings,
        Delta,
        GroupAsked,
        GroupAnswered,
        GroupsReply,
        Failure,
    )
}
"""Created once: creating a decoder of such a union takes longer than decoding a message."""


def decode(data: bytes | msgspec.Raw, kind: type[msgspec.Struct], what: str) -> Any:
    """A message of a type.  Raises InvalidRequest with the invalid field."""
    try:
        with collector_paused():  # a commit may have a million slices
            return _DECODERS[kind].decode(data)
    except UNREADABLE as error:
        raise InvalidRequest(f"{what} is not valid: {error}") from error


def batches_as_text(batches: Sequence[bytes]) -> tuple[str, ...]:
    """Objects of the log in JSON: they are text."""
    return tuple(data.decode() for data in batches)
