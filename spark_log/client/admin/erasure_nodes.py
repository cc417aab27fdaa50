"""The nodes of a quorum that keep an erasure open: their directories may have statistics of erased records."""

from __future__ import annotations

from spark_log.client.admin.descriptions import describe_quorum
from spark_log.errors import CoordinatorNotAvailable, InvalidRequest, NotCoordinator
from spark_log.journal.journal import Journal
from spark_log.metadata.erasures import METADATA
from spark_log.metadata.state import State
from spark_log.quorum.machine import AWAY_MS
from spark_log.rpc.messages import QuorumInfo, ReplicaState


def quorum_to_erase(journal: Journal, state: State) -> QuorumInfo | None:
    """The quorum of a log, if its metadata keeps an erasure open; None as well if no node leads."""
    if not any(METADATA in one.roots for row in state.erasures.values() for one in row.unfinished):
        return None
    try:
        return describe_quorum(journal)
    except (InvalidRequest, CoordinatorNotAvailable, NotCoordinator):
        return None


def nodes_with_statistics(quorum: QuorumInfo, version: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sentences about what has statistics of before a version: all, and those that somebody has to act on."""
    replicas = (*quorum.voters, *quorum.observers)
    now_ms = max(one.last_fetch_timestamp for one in replicas)  # the leader's own is the present time
    behind = [one for one in replicas if one.forgotten < version]
    silent = [one for one in behind if now_ms - one.last_fetch_timestamp > AWAY_MS]
    texts = [_silent_text(quorum, one) for one in silent]
    texts += [_spare_text(node) for node, forgotten in sorted(quorum.silent.items()) if forgotten < version]
    unreached = tuple(filter(None, [quorum.former_metadata, *texts]))
    running = [str(one.replica_id) for one in behind if one not in silent]
    what = f"node {running[0]}" if len(running) == 1 else f"nodes {', '.join(running)}"
    names = [f"the metadata of {what} of the quorum, which has statistics of columns,"] if running else []
    return (*names, *unreached), unreached


def _silent_text(quorum: QuorumInfo, one: ReplicaState) -> str:
    key = f"{one.replica_id}@{one.replica_directory_id}"
    may_have = f"node {key} of the quorum may have statistics of columns in its directory, and does not answer"
    if one in quorum.voters:
        return f"{may_have}: start it; if it is lost, run `pylog quorum remove-voter {key}`, and destroy its disk"
    if any(one.replica_id == other.replica_id for other in (*quorum.voters, *quorum.observers) if other != one):
        return (
            f"{may_have}: if it was removed, destroy its disk, and the leader forgets it after 5 minutes; else start it"
        )
    return _spare_text(one.replica_id)


def _spare_text(node: int) -> str:
    return (
        f"node {node}, which does not vote in the quorum, may have statistics of columns in its directory, and does not "
        "fetch from the leader: start it; if it is not needed any more, destroy its disk, remove it from `peers` of the "
        "other nodes, and restart them one after another"
    )
