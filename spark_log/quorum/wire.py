"""Messages as bytes, each with the clock of its sender."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from spark_log.errors import InvalidRequest
from spark_log.quorum.messages import Message


class Received(NamedTuple):
    """A message of another node, and the clock of that node when it was sent."""

    clock_ms: int
    message: Message


_DECODER: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(Received)


def encode_message(message: Message, clock_ms: int) -> bytes:
    return msgspec.msgpack.encode(Received(clock_ms, message))


def decode_message(data: bytes) -> Received:
    """Raises InvalidRequest."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"a message of a replica is not valid: {error}") from error
