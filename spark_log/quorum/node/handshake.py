"""The headers with which one node of a quorum opens a connection to another, and the checks of them.  Pure.

A connection is a WebSocket: the request of its HTTP upgrade has the headers, so a node that is refused gets a status
and a reason.  The messages then go one way, from the node that opened the connection.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from spark_log.bounds import INT_MAX
from spark_log.errors import (
    AuthenticationFailed,
    InconsistentClusterId,
    InvalidRequest,
    NotLeaderOrFollower,
    RequestTimedOut,
    SparkLogError,
)
from spark_log.http.address import parse_address
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.voters import Voters, key_text, maybe_node_id

PATH = "/v1/quorum"
SECRET_MIN = 16
"""Characters, at least."""
CLUSTER, SOURCE, TARGET, ADDRESS, PROCESS, VOTERS, LEVEL, REFUSED = (
    f"X-Pylog-{name}" for name in ("Cluster", "Source", "Target", "Address", "Process", "Voters", "Level", "Refused")
)
STATUS: tuple[tuple[type[SparkLogError], int], ...] = (
    (AuthenticationFailed, 401),
    (InconsistentClusterId, 409),
    (RequestTimedOut, 408),
    (NotLeaderOrFollower, 421),
)
"""The HTTP status of refusals; another one has 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """A node, as it introduces itself."""

    cluster_id: str
    key: ReplicaKey
    address: str
    """For connections to it."""
    process: str
    """A random id: another process with the same key uses a copy of the directory."""
    level: int = 0
    """The highest level of entries that its application understands; 0: it does not say so."""


def check_secret(secret: str) -> None:
    """That a header can carry it unchanged.  Raises InvalidRequest, without the secret."""
    other = next((at for at, one in enumerate(secret, 1) if not "!" <= one <= "~"), None)
    if other is not None:
        cure = "remove the newline at its end" if secret.endswith("\n") else f"replace the character {other}"
        raise InvalidRequest(f"the secret of the nodes is not printable ASCII without spaces: {cure}")
    if len(secret) < SECRET_MIN:
        raise InvalidRequest(f"the secret of the nodes has {len(secret)} characters: expected {SECRET_MIN} at least")


def authorization(secret: str) -> dict[str, str]:
    """The header with which a tool asks a node."""
    return {"Authorization": f"Bearer {secret}"}


def request_headers(me: NodeIdentity, target: int, secret: str) -> dict[str, str]:
    """The headers of the node that opens a connection."""
    return {
        **authorization(secret),
        CLUSTER: me.cluster_id,
        SOURCE: key_text(me.key),
        TARGET: str(target),
        ADDRESS: me.address,
        PROCESS: me.process,
    }


def check_request(headers: Mapping[str, str], me: NodeIdentity, secret: str) -> NodeIdentity:
    """The node that opens a connection to this one.

    Raises AuthenticationFailed, InconsistentClusterId, or InvalidRequest for another node's address.
    """
    check_authorization(headers, secret)
    if headers.get(CLUSTER) != me.cluster_id:
        raise InconsistentClusterId(
            f"this node belongs to the cluster {me.cluster_id}, not to {headers.get(CLUSTER) or '(none given)'}"
        )
    if headers.get(TARGET) != str(me.key.id):
        raise InvalidRequest(f"this is node {me.key.id}, not node {headers.get(TARGET)}: check the addresses of nodes")
    key = parse_key(headers.get(SOURCE, ""))
    if key.id == me.key.id:
        raise InvalidRequest(f"this is node {key.id} as well: check the ids and the addresses of nodes")
    return NodeIdentity(
        cluster_id=me.cluster_id,
        key=key,
        address=parse_address(headers.get(ADDRESS, ""), ADDRESS),
        process=headers.get(PROCESS, ""),
    )


def check_authorization(headers: Mapping[str, str], secret: str) -> None:
    """Raises AuthenticationFailed."""
    kind, _, given = headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(_digest(given.strip()), _digest(secret)):
        raise AuthenticationFailed("the secret differs from that of this node: all nodes need the same")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


def reply_headers(me: NodeIdentity, voters: Voters) -> dict[str, str]:
    """The headers of the node that accepts a connection."""
    return {SOURCE: key_text(me.key), VOTERS: ",".join(map(key_text, voters)), LEVEL: str(me.level)}


def level_of(headers: Mapping[str, str]) -> int:
    """The level of the node that accepts a connection; 0: it does not say so."""
    text = headers.get(LEVEL, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def voters_of(headers: Mapping[str, str]) -> Voters:
    """That the other node knows; none if it has just begun."""
    text = headers.get(VOTERS, "")
    return tuple(map(parse_key, text.split(","))) if text else ()


def parse_key(text: str) -> ReplicaKey:
    """Raises InvalidRequest."""
    node, _, directory = text.partition("@")
    node_id = maybe_node_id(node)
    if node_id is None or not directory:
        raise InvalidRequest(f"{text[:100]!r} is not a node id up to {INT_MAX} and a directory id, as in 1@{'x' * 8}")
    return ReplicaKey(node_id, directory)
