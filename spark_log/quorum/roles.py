"""The states of a replica, and what each of them remembers.

Unattached -> Prospective -> Candidate -> Leader
Unattached, Prospective, Candidate -> Follower -> Prospective
any -> Unattached, with a higher epoch or at the end of the leader's
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from spark_log.quorum.messages import FetchRequest, Position, ReplicaKey


@dataclass(slots=True)
class Download:
    """A snapshot that is being fetched."""

    snapshot: Position
    end: int = 0
    """How many bytes there are of it."""


@dataclass(slots=True)
class Unattached:
    """Knows no leader of its epoch.  May have voted."""

    deadline_ms: int
    """A voter stands for election then; another replica asks a voter for the leader."""
    download: Download | None = None
    """The download of a replica that is not a voter, as in `Prospective`."""


@dataclass(slots=True)
class Follower:
    """Fetches from the leader."""

    leader: ReplicaKey
    deadline_ms: int
    """The fetch timeout."""
    has_fetched: bool = False
    """The leader has answered in this epoch: no pre-vote for others."""
    asked_ms: int | None = None
    """When the request that waits for an answer was sent."""
    download: Download | None = None
    confirm: int = 0
    """The last one of the leader."""


@dataclass(slots=True)
class Prospective:
    """Asks whether a majority would vote for it, without a new epoch (KIP-996)."""

    leader: ReplicaKey | None
    """To be followed again if the pre-vote is lost."""
    deadline_ms: int
    granted: set[ReplicaKey]
    download: Download | None = None
    """The download of the leader's snapshot: it continues when the leader is followed again."""
    rejected: set[ReplicaKey] = field(default_factory=set)


@dataclass(slots=True)
class Candidate:
    """Has voted for itself in a new epoch, and asks for votes."""

    deadline_ms: int
    granted: set[ReplicaKey] = field(default_factory=set)
    """Itself as soon as its vote is durable."""
    rejected: set[ReplicaKey] = field(default_factory=set)


@dataclass(slots=True)
class Progress:
    """A leader's knowledge of another replica."""

    end: int = 0
    """Everything before is durable there."""
    fetched_ms: int = 0
    """When it last fetched; for a voter that has not fetched from this leader, since when that leads."""
    has_fetched: bool = False
    caught_up_ms: int | None = None
    """When it last had everything that the leader had."""
    leader_end: int = 0
    """The end of the leader's log at the fetch before."""
    begin_ms: int = 0
    """When to say again that the epoch has begun, if the replica has not fetched until then."""
    parked: FetchRequest | None = None
    """To be answered as soon as there is something to say, and at `parked_until_ms`."""
    parked_until_ms: int = 0
    confirms: int = 0
    snapshot: Position | None = None
    """It was told to fetch this snapshot, and lacks entries from before the newest one since."""
    sent: tuple[Position, int] | None = None
    """The large answer that is under way: a part of a snapshot and where it begins, or entries behind a position."""
    sent_ms: int = 0
    """When it was sent first."""
    again_ms: int = 0
    """It is sent again at this time, if the replica still asks for the same."""
    needed_ms: int = 0
    """How long the one before was under way."""


@dataclass(slots=True)
class Leader:
    """Appends entries, and answers fetches."""

    start: int
    """Offset of the first entry of its epoch."""
    progress: dict[ReplicaKey, Progress]
    """The progress of the other voters, and of observers that fetch."""
    ends_ms: int | None = None
    """It hands over: at this time at the latest."""
    successor: ReplicaKey | None = None
    """To whom it hands over, if that was asked for."""
    reads: list[int] = field(default_factory=list)
    """Numbers of the reads that wait until a majority confirms that this replica leads."""
    confirm: int = 0
    """The last number that was given to a read."""
    older: Position | None = None
    """A snapshot from before the newest one that is still served, because a follower fetches it."""


Role: TypeAlias = Unattached | Follower | Prospective | Candidate | Leader
