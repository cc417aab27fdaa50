"""The messages between replicas of a quorum, under Kafka's names, and the values in them.

The structs are tagged, so a transport can encode them with msgspec.  Every message names its sender, its receiver and
the sender's epoch.  A response repeats the position that it answers: a response that arrives late or twice is
recognised by that, and needs no correlation id.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec


class ReplicaKey(NamedTuple):
    """A replica: a node and the data directory that it had when it was formatted.

    A node whose disk was replaced has a new directory id, so it is another replica, which has voted for nobody.
    """

    id: int
    directory: str


class Position(NamedTuple):
    """The end of a log, or of a part of it.  Of two logs, the one with the larger position is more up to date."""

    epoch: int
    """Epoch of the entry before `offset`; 0 if none was written."""
    offset: int
    """Offset of the next entry."""


EMPTY = Position(0, 0)
"""The end of a log without entries."""


class Kind(str, Enum):
    """The purpose of an entry."""

    DATA = "data"
    """Bytes of the application."""
    LEADER = "leader"
    """The first entry of a leader: empty."""
    VOTERS = "voters"
    """The set of voters that is in force from this entry on: see `voters.py`."""


class Entry(NamedTuple):
    offset: int
    epoch: int
    kind: Kind
    data: bytes


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all messages."""

    source: ReplicaKey
    target: ReplicaKey
    """A replica ignores messages for another directory id: they are for the disk that it had before."""
    epoch: int
    """Epoch of the sender; durable on its disk."""


# ------------------------------------------------------------------------------------------------------------- requests


class VoteRequest(_Message, frozen=True, kw_only=True, tag="vote"):
    """Asks for a vote in `epoch`, or with `pre_vote` whether the receiver would vote in the next one (KIP-996)."""

    end: Position
    """The end of the sender's log."""
    pre_vote: bool


class BeginQuorumEpoch(_Message, frozen=True, kw_only=True, tag="begin_quorum_epoch"):
    """The sender leads `epoch`: fetch from it."""


class EndQuorumEpoch(_Message, frozen=True, kw_only=True, tag="end_quorum_epoch"):
    """The sender leads `epoch` no longer, and never will again."""

    successors: tuple[ReplicaKey, ...]
    """The other voters, the most up-to-date first: the first one stands for election immediately."""


class FetchRequest(_Message, frozen=True, kw_only=True, tag="fetch"):
    """Asks for the entries behind `end`.  It acknowledges everything before `end`, which is durable at the sender."""

    end: Position
    high_watermark: int
    """That the sender knows.  The leader answers immediately if it knows a higher one."""
    confirms: int = 0
    """The last `FetchResponse.confirm` that the sender received: the leader led when it was sent."""


class FetchSnapshotRequest(_Message, frozen=True, kw_only=True, tag="fetch_snapshot"):
    """Asks for the next chunk of a snapshot."""

    snapshot: Position
    start: int
    """Position of its first byte."""


# ------------------------------------------------------------------------------------------------------------ responses


class VoteResponse(_Message, frozen=True, kw_only=True, tag="vote_response"):
    granted: bool
    pre_vote: bool
    leader: ReplicaKey | None
    """The leader of `epoch`, if the sender knows it."""


class NotLeaderResponse(_Message, frozen=True, kw_only=True, tag="not_leader_response"):
    """The receiver's request is of an earlier epoch, or the sender does not lead."""

    leader: ReplicaKey | None
    """The leader of `epoch`, if the sender knows it."""


class FetchResponse(_Message, frozen=True, kw_only=True, tag="fetch_response"):
    """Exactly one of three: entries (none, if only the high watermark changed), `diverging` or `snapshot`."""

    end: Position
    """The end in the request."""
    high_watermark: int
    entries: tuple[Entry, ...] = ()
    diverging: Position | None = None
    """The end of the largest epoch in the leader's log that is not above the request's: the receiver truncates."""
    snapshot: Position | None = None
    """The leader's log begins behind the request: the receiver has to fetch this snapshot first."""
    confirm: int = 0
    """Number of the last read that waits until the leader knows that it still leads."""


class FetchSnapshotResponse(_Message, frozen=True, kw_only=True, tag="fetch_snapshot_response"):
    snapshot: Position
    start: int
    size: int | None
    """Size of the whole snapshot in bytes; None if the leader no longer has it."""
    data: bytes
    voters: tuple[ReplicaKey, ...]
    """At the snapshot's end."""


Request: TypeAlias = VoteRequest | BeginQuorumEpoch | EndQuorumEpoch | FetchRequest | FetchSnapshotRequest
Response: TypeAlias = VoteResponse | NotLeaderResponse | FetchResponse | FetchSnapshotResponse
Message: TypeAlias = Request | Response
REQUESTS = (VoteRequest, BeginQuorumEpoch, EndQuorumEpoch, FetchRequest, FetchSnapshotRequest)
