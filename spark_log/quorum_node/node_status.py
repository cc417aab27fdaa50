"""The state of a node, for people and monitoring."""

from __future__ import annotations

from dataclasses import dataclass

from spark_log.quorum.messages import Position, ReplicaKey
from spark_log.quorum.voters import Voters


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """A replica that fetches from this node, which leads."""

    key: ReplicaKey
    is_voter: bool
    log_end: int
    lag: int
    fetched_ms_ago: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Offsets are those of the next entry."""

    cluster_id: str
    key: ReplicaKey
    role: str
    epoch: int
    leader: ReplicaKey | None
    voters: Voters
    high_watermark: int
    log_start: int
    log_end: int
    durable_end: int
    """Of what this node's disk has."""
    applied: int
    snapshot: Position
    replication: tuple[ReplicaStatus, ...]
    """Empty if this node does not lead."""
    problems: dict[int, str | None]
    """By node: why this one has no connection to it; None for a connection."""
    elections: int
    """How often the leader changed, as this node saw it."""
    writes: int
    """Of the log's disk, since the start."""
    write_ms_max: int
    writing_ms: int
    """Since the write that is under way began; 0: none is."""
    is_full: bool
    """The disk has no space."""
