"""Messages as bytes."""

from __future__ import annotations

import msgspec

from spark_log.errors import InvalidRequest
from spark_log.quorum.messages import Message

_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_message(data: bytes) -> Message:
    """Raises InvalidRequest."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"a message of a replica is not valid: {error}") from error
