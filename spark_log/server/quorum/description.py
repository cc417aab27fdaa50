"""The quorum as its leader describes it to clients.  Pure."""

from __future__ import annotations

from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.node_status import NodeStatus, ReplicaStatus
from spark_log.rpc.messages import QuorumInfo, ReplicaState


def quorum_reply(status: NodeStatus, now_ms: int, former_metadata: str = "") -> QuorumInfo:
    """
    status:           of the leader.
    former_metadata:  as in the reply.
    """
    own = _replica(status, status.key, status.log_end, now_ms, now_ms, status.forgotten)
    fetching = {one.key.id for one in status.replication}
    voters = [own, *(_other(status, one, now_ms) for one in status.replication if one.is_voter)]
    return QuorumInfo(
        leader_id=status.key.id,
        leader_epoch=status.epoch,
        high_watermark=status.high_watermark,
        voters=tuple(sorted(voters, key=lambda one: one.replica_id)),
        observers=tuple(_other(status, one, now_ms) for one in status.replication if not one.is_voter),
        nodes=status.addresses,
        copy_problem=status.copy_problem,
        former_metadata=former_metadata,
        silent={node: version for node, version in status.others_forgotten.items() if node not in fetching},
    )


def _other(status: NodeStatus, one: ReplicaStatus, now_ms: int) -> ReplicaState:
    caught_up_ms = -1 if one.caught_up_ms_ago is None else now_ms - one.caught_up_ms_ago
    end, fetched_ms = (one.log_end, now_ms - one.fetched_ms_ago) if one.has_fetched else (-1, -1)
    return _replica(status, one.key, end, fetched_ms, caught_up_ms, one.forgotten)


def _replica(
    status: NodeStatus, key: ReplicaKey, end: int, fetched_ms: int, caught_up_ms: int, forgotten: int
) -> ReplicaState:
    return ReplicaState(
        replica_id=key.id,
        replica_directory_id=key.directory,
        log_end_offset=end,
        lag=-1 if end < 0 else status.log_end - end,
        last_fetch_timestamp=fetched_ms,
        last_caught_up_timestamp=caught_up_ms,
        forgotten=forgotten,
    )
