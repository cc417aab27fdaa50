"""Replies to requests for changes, each encoded once for all clients that ask for the same."""

from __future__ import annotations

from spark_log.metadata.projection import Holdings
from spark_log.metadata.state import State
from spark_log.rpc.messages import ChangesReply, ChangesRequest, CommandsRequest, batches_as_text, encode
from spark_log.server.service import Service

CHANGES_BYTES_MAX = 128 << 10
"""The limit in a reply to a long poll.  Thousands are sent at a time, so each must be cheap."""
READ_BYTES_MAX = 4 << 20
"""The limit in a reply to a client that reads the log through the coordinator.  One that lacks more gets a snapshot."""
DELTAS_MAX, DELTAS_BYTES_MAX = 100, 8 << 20
"""Replies to clients of topics that are kept: the clients of one topic that wait ask for the same."""


class ChangeReplies:
    """Encodes the replies of one coordinator, and keeps the last ones."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body: tuple[object, bytes] = (None, b"")
        """The last reply to a request for changes, and what it depends on."""
        self._deltas: tuple[State | None, dict[bytes, bytes]] = (None, {})
        """Replies about a state, by what the clients have."""

    def delta(self, key: bytes, held: Holdings) -> bytes:
        """Created once for all requests of clients that have the same."""
        newest = self._service.published
        if self._deltas[0] is not newest:
            self._deltas = (newest, {})
        bodies = self._deltas[1]
        if key not in bodies:
            if len(bodies) == DELTAS_MAX or sum(map(len, bodies.values())) > DELTAS_BYTES_MAX:
                bodies.clear()
            bodies[key] = encode(self._service.delta(held))
        return bodies[key]

    def changes(self, asked: ChangesRequest, affected: bool, limit: int = CHANGES_BYTES_MAX) -> bytes:
        """Created once for all requests that wait at the same record.

        affected:  the changes affect the requester.  Otherwise they are left out if they do not fit into one reply.
        limit:     bytes of the changes.
        """
        since, version = asked.since, self._service.state.version
        found = self._service.head(since)
        another = bool(asked.head) and bool(found) and found != asked.head
        behind = version < since and self._service.leading
        kind = (since, asked.head, found, version, affected, behind, limit)
        if self._body[0] != kind:
            batches = self.batches(asked, version, limit)
            reached = version if affected or batches else since
            reply = ChangesReply(version=reached, batches=batches, lacks_head=another or behind)
            self._body = (kind, encode(reply))
        return self._body[1]

    def batches(self, asked: ChangesRequest | CommandsRequest, version: int, limit: int) -> tuple[str, ...]:
        """The objects that follow the client's last record; empty if they exceed `limit` bytes, or if this coordinator
        does not know that they follow it."""
        if asked.head and asked.head != self._service.head(asked.since):
            return ()
        return batches_as_text(self._service.after(asked.since, version, limit))
