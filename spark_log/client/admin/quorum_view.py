"""The quorum that keeps the metadata of a log, under the names of Kafka's admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import structs

from spark_log.client.representations import described
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import QuorumReplica, QuorumReply


@described
class ReplicaState(NamedTuple):
    """A replica of the metadata log."""

    replica_id: int
    """The id of its node."""
    replica_directory_id: str
    log_end_offset: int
    """Everything before is on its disk."""
    lag: int
    """Entries that the leader has, and the replica lacks."""
    last_fetch_timestamp: int
    """When it last asked the leader for entries, in milliseconds since 1970; -1: not in this epoch."""
    last_caught_up_timestamp: int
    """When it last had everything that the leader had; -1: not in this epoch."""
    forgotten: int
    """The version of the log before which its directory has nothing, since it started; 0: that is not known."""


@described
class QuorumInfo(NamedTuple):
    """The replicas of the metadata log, as their leader knows them."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    """Entries before it are on the disks of a majority."""
    voters: tuple[ReplicaState, ...]
    """The leader is among them."""
    observers: tuple[ReplicaState, ...]
    """Replicas that fetch and do not vote, such as one that is to be added."""
    nodes: Mapping[int, str]
    """Addresses for the other nodes, by node."""
    copy_problem: str
    """Why the copy of the metadata beside the records is late; empty: it is not."""
    former_metadata: str
    """Why metadata from before the log moved into the quorum keeps erasures open; empty: it does not."""
    silent: Mapping[int, int]
    """By node that neither votes nor fetches, and that the leader knows: as `ReplicaState.forgotten`."""


def describe_quorum(journal: Journal) -> QuorumInfo:
    """Raises InvalidRequest for a log whose metadata is not in a quorum, CoordinatorNotAvailable if no node leads."""
    if not isinstance(journal.link, HttpLink) or not journal.metadata_log.is_served:
        raise InvalidRequest("the metadata of this log is on its storage, not in a quorum")
    found: QuorumReply = journal.link.get(journal.state.coordinator, "/v1/quorum", QuorumReply)
    states = {"voters": _states(found.voters), "observers": _states(found.observers)}
    return QuorumInfo(**{**structs.asdict(found), **states})


def _states(replicas: Iterable[QuorumReplica]) -> tuple[ReplicaState, ...]:
    return tuple(ReplicaState(*structs.astuple(one)) for one in replicas)
