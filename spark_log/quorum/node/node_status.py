"""The state of a node, for people and monitoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_log.quorum.machine import AWAY_MS, Machine
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
    """If it has not fetched from this leader: since the leader's epoch began."""
    caught_up_ms_ago: int | None
    """Since it last had everything that the leader had; None: not yet, in this epoch."""
    has_fetched: bool = True
    """From this leader.  Before that, nobody knows what it has."""
    forgotten: int = 0
    """The version before which the disk of the replica has nothing, as it has said."""

    @property
    def is_silent(self) -> bool:
        return self.fetched_ms_ago > AWAY_MS


def replication_of(machine: Machine, now_ms: int, forgotten: Mapping[ReplicaKey, int]) -> tuple[ReplicaStatus, ...]:
    """The status of the replicas that fetch from this one; empty if it does not lead."""
    return tuple(
        ReplicaStatus(
            key=key,
            is_voter=key in machine.voters,
            log_end=one.end,
            lag=machine.log.end - one.end,
            fetched_ms_ago=now_ms - one.fetched_ms,
            caught_up_ms_ago=None if one.caught_up_ms is None else now_ms - one.caught_up_ms,
            has_fetched=one.has_fetched,
            forgotten=forgotten.get(key, 0),
        )
        for key, one in machine.replication().items()
    )


def voter_problems(
    others: Voters, problems: Mapping[int, str | None], directories: Mapping[int, str]
) -> dict[int, str | None]:
    """The problems of connections by node, and those of voters.

    others:       the other voters.
    directories:  the directory ids of the nodes that are connected.
    """
    found = dict(problems)
    for voter in others:
        directory = directories.get(voter.id)
        if voter.id not in found:
            found[voter.id] = "its address is not known: add it to the peers of this node"
        elif directory and directory != voter.directory:
            found[voter.id] = (
                f"it runs with the directory id {directory}, and the voter has {voter.directory}: remove that voter, "
                "and add this one"
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Offsets are those of the next entry."""

    cluster_id: str
    key: ReplicaKey
    role: str
    epoch: int
    leader: ReplicaKey | None
    voters: Voters
    are_voters_committed: bool
    """False while a change of them is under way."""
    high_watermark: int
    log_start: int
    log_end: int
    durable_end: int
    """The end of what this node's disk has."""
    applied: int
    snapshot: Position
    replication: tuple[ReplicaStatus, ...]
    """Empty if this node does not lead."""
    addresses: dict[int, str]
    """The addresses of all nodes that this one knows."""
    problems: dict[int, str | None]
    """By node: why this one has no connection to it; None for a connection."""
    elections: int
    """How often the leader changed, as this node saw it."""
    writes: int
    """Number of writes to the log's disk, since the start."""
    write_ms_sum: int
    """The sum of their times, from the request to the end of the fsync."""
    write_ms_max: int
    writing_ms: int
    """Since the write that is under way began; 0: none is."""
    is_full: bool
    """The disk has no space."""
    compared: int = 0
    """The last version of the application's state at which nodes have compared theirs."""
    state_problem: str = ""
    """The result of the comparison, if states differ; empty: they do not."""
    is_state_wrong: bool = False
    """This node has another state than a majority."""
    copy_problem: str = ""
    """Why the application's copy of its state elsewhere is late; empty: it is not, or this node does not lead."""
    levels: dict[int, int] = field(default_factory=dict)
    """The levels of entries that the applications of this node and of those that are connected understand."""
    forgotten: int = 0
    """The version of the application before which this node's disk has nothing; 0: not known since it started."""
    others_forgotten: Mapping[int, int] = field(default_factory=dict)
    """By node that does not vote, and is one of the peers or has connected to this node since it started: the version
    before which its disk has nothing, as it has said; 0: that is not known."""
    application_problem: str = ""
    """Why the application does not lead, although this node may; empty: it leads, or nothing is known."""
