"""The bytes that Arrow messages declare for what they become when they are decoded.

Arrow allocates what a message declares, and a message of 60 KB can declare 2 GB.  So a reader compares the declared
bytes with their bound before it decodes.  Arrow itself checks that a buffer becomes as long as was declared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from spark_log.bounds import decoded_bytes_max

_HEAD = struct.Struct("<iI")
"""The mark of a message, and the length of its metadata, which is a flatbuffer; 0 at the end of a stream."""
_MARK = -1
_DICTIONARY, _RECORDS = 2, 3
"""Types of messages with buffers."""
_LONG, _INT, _SIGNED, _SHORT = (struct.Struct(form) for form in ("<q", "<I", "<i", "<H"))
_BUFFER = struct.Struct("<qq")
"""Position in the body, and length."""
_PLAIN = -1
"""Declared by a buffer that is not compressed."""
View: TypeAlias = "memoryview[int]"


class DecodedTooLarge(pa.ArrowInvalid):  # type: ignore[misc]
    """Bytes would become more than their number allows."""


class _Message(NamedTuple):
    position: int
    end: int
    declared: int
    """Bytes of its buffers when they are decoded."""


def check_each(data: View) -> None:
    """Check each message of a stream alone: they are decoded one after another.

    Raises DecodedTooLarge, and pa.ArrowInvalid for other bytes than a stream.
    """
    for position, end, declared in _messages(data, 0):
        check_decoded(declared, end - position, f"the message after {position:,} bytes")


def check_whole(data: View, start: int = 0) -> None:
    """Check the messages of a stream together, because all of them are held.

    Raises DecodedTooLarge, and pa.ArrowInvalid for other bytes than a stream.
    """
    messages = list(_messages(data, start))
    length = messages[-1].end - start if messages else 0
    check_decoded(sum(message.declared for message in messages), length, f"the stream after {start:,} bytes")


def check_decoded(declared: int, length: int, what: str) -> None:
    """Raises DecodedTooLarge if bytes declare that they become more than their number allows."""
    if declared > (most := decoded_bytes_max(length)):
        raise DecodedTooLarge(
            f"{what} has {length:,} bytes and declares {declared:,} decoded ones: the bound is {most:,}"
        )


def _messages(data: View, start: int) -> Iterator[_Message]:
    """The messages of a stream, up to its end marker."""
    at = start
    while at < len(data):
        try:
            mark, length = _HEAD.unpack_from(data, at)
            if mark != _MARK:
                raise pa.ArrowInvalid(f"no message begins after {at:,} bytes")
            if not length:
                return
            end, declared = _sizes(data, at + _HEAD.size, length)
        except (struct.error, IndexError, OverflowError) as error:
            raise pa.ArrowInvalid(f"the message after {at:,} bytes is cut off or damaged: {error}") from error
        yield _Message(at, end, declared)
        at = end


def _sizes(data: View, at: int, length: int) -> tuple[int, int]:
    """The end of a message, and its declared bytes.  at, length: of its metadata."""
    body = at + length
    message = at + _INT.unpack_from(data, at)[0]
    kind, header, body_length = (_field(data, message, number) for number in (1, 2, 3))
    size = _LONG.unpack_from(data, body_length)[0] if body_length else 0
    if size < 0:
        raise struct.error(f"its body has {size} bytes")
    end = body + size
    if not kind or not header or data[kind] not in (_DICTIONARY, _RECORDS):
        return end, 0
    batch = _table(data, header)
    if data[kind] == _DICTIONARY:
        batch = _table(data, _field(data, batch, 1))
    return end, _declared(data, batch, body, size)


def _declared(data: View, batch: int, body: int, size: int) -> int:
    """The bytes of the buffers of a batch when they are decoded."""
    if not _field(data, batch, 3):  # not compressed: its buffers are parts of the body
        return size
    vector = _table(data, _field(data, batch, 2))
    count, total = _INT.unpack_from(data, vector)[0], 0
    first = vector + _INT.size
    for at, length in _BUFFER.iter_unpack(data[first : first + count * _BUFFER.size]):
        if length:
            declared = _LONG.unpack_from(data, body + at)[0]
            total += length if declared == _PLAIN else declared
            if declared < _PLAIN:
                raise struct.error(f"a buffer declares {declared} bytes")
    return total


def _table(data: View, at: int) -> int:
    """The position to which a flatbuffer refers at `at`."""
    return at + int(_INT.unpack_from(data, at)[0])


def _field(data: View, table: int, number: int) -> int:
    """The position of a field of a flatbuffer's table; 0: it is not there."""
    fields = table - int(_SIGNED.unpack_from(data, table)[0])
    if fields < 0:
        raise struct.error("its metadata refers to bytes before it")
    place = 4 + 2 * number
    if place >= _SHORT.unpack_from(data, fields)[0]:
        return 0
    offset = int(_SHORT.unpack_from(data, fields + place)[0])
    return table + offset if offset else 0
