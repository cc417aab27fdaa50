"""The quorum that keeps the metadata of a log, under the names of Kafka's admin client."""

from __future__ import annotations

from spark_log.client.representations import described
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import QuorumInfo, ReplicaState

described(ReplicaState)
described(QuorumInfo)


def describe_quorum(journal: Journal) -> QuorumInfo:
    """Raises InvalidRequest for a log whose metadata is not in a quorum, CoordinatorNotAvailable if no node leads."""
    if not isinstance(journal.link, HttpLink) or not journal.metadata_log.is_served:
        raise InvalidRequest("the metadata of this log is on its storage, not in a quorum")
    found: QuorumInfo = journal.link.get(journal.state.coordinator, "/v1/quorum", QuorumInfo)
    return found
