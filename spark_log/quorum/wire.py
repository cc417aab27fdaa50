"""Messages as bytes, each with the clock of its sender, and the digests of states that it knows."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import InvalidRequest
from spark_log.quorum.messages import Message, ReplicaKey


class NodeDigest(NamedTuple):
    """The digest of the state of a replica's application at a version."""

    replica: ReplicaKey
    form: int
    """Digests of different forms are not compared."""
    version: int
    digest: str


class Received(NamedTuple):
    """A message of another node, and the clock of that node when it was sent."""

    clock_ms: int
    message: Message
    digests: tuple[NodeDigest, ...] = ()
    """The digests of the sender, and of others that it has heard from, at the same version."""
    forgotten: int = 0
    """The version of the application before which the sender's disk has nothing; 0: it does not know one."""


_DECODER: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(Received)


def encode_message(message: Received) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_message(data: bytes) -> Received:
    """Raises InvalidRequest."""
    try:
        return _DECODER.decode(data)
    except UNREADABLE as error:
        raise InvalidRequest(f"a message of a replica is not valid: {error}") from error
