"""The requests of an operator's command to a node: on the port of the nodes, with their secret.

GET  /v1/quorum/status       a `NodeStatus` as JSON
GET  /metrics                the same for Prometheus
POST /v1/quorum/voters       a `VotersRequest`, on the leader; answered when the change is committed
POST /v1/quorum/hand-over    a `HandOverRequest`, on the leader; answered when this node leads no more
"""

from __future__ import annotations

import msgspec

from spark_log.quorum.messages import ReplicaKey

STATUS, METRICS, VOTERS, HAND_OVER = "/v1/quorum/status", "/metrics", "/v1/quorum/voters", "/v1/quorum/hand-over"


class VotersRequest(msgspec.Struct, kw_only=True):
    """One of the two."""

    add: ReplicaKey | None = None
    remove: ReplicaKey | None = None


class HandOverRequest(msgspec.Struct, kw_only=True):
    to: int | None = None
    """The id of a voter; None: the most up-to-date one."""
