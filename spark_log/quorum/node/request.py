"""A request of an operator's command to a node of a quorum."""

from __future__ import annotations

import http.client

from spark_log.errors import (
    AuthenticationFailed,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotLeaderOrFollower,
    SparkLogError,
)
from spark_log.http.client_connection import Connection, HttpResponse, Wait, resolve
from spark_log.http.tls import ca_context
from spark_log.quorum.node.handshake import STATUS, authorization

ANSWER_S = 5.0
"""For an answer, after which a node counts as hung: longer than it waits for a change to be committed."""


def ask_node(address: str, method: str, path: str, body: bytes | None, *, secret: str, ca: str | None) -> bytes:
    """The answer of a node.

    ca:  a file with certificates that verify the node, or `system`; None: no TLS.
    Raises CoordinatorNotAvailable if it does not answer, and the errors that it answers.
    """
    tls = None if ca is None else ca_context(ca)
    try:
        connection = Connection(resolve(address)[0], tls)
        try:
            reply = connection.ask(method, path, body, authorization(secret), Wait(ANSWER_S))
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise CoordinatorNotAvailable(f"the node at {address} does not answer: {reason}") from error
    if reply.status != 200:
        raise _error(address, reply)
    return reply.data


def _error(address: str, reply: HttpResponse) -> SparkLogError:
    text = f"{address}: {reply.data.decode(errors='replace').strip() or f'status {reply.status}'}"
    if reply.status == 404:
        return InvalidRequest(
            f"{address} is the port for clients: give the port for the other nodes, listen in [quorum] of the node's "
            "`pylog serve --conf` file"
        )
    kind = next((kind for kind, status in STATUS if status == reply.status), InvalidRequest)
    if kind is AuthenticationFailed:
        return kind(f"{address}: the secret differs from that of this node: give the file with the nodes' secret")
    if kind is NotLeaderOrFollower:
        return NotLeaderOrFollower(text, leader=None, epoch=0)
    return kind(text)
