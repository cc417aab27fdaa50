"""A snapshot of the application's state as bytes of a file: frames, each with a checksum.

    bytes 0-3    b"PQS1"
    bytes 4-7    length of the body, unsigned, little-endian
    bytes 8-11   CRC-32 of bytes 4-7 and of the body
    then         the body: a letter, and a payload

The first frame has the letter H and, as MessagePack, the position up to which the snapshot goes and the voters there.
Frames with the letter D have the state, in pieces.  The last frame has the letter F and the number of bytes of the
state.  A follower fetches a snapshot frame by frame, so each chunk can be checked before it is written.

Nothing here opens a file: functions get one that reads `(start, length)`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from spark_log.errors import CorruptObject
from spark_log.quorum.messages import Position
from spark_log.quorum.voters import Voters

MAGIC = b"PQS1"
PIECE_BYTES = 1 << 20
"""Bytes of the state in a frame, at most."""
_HEAD = struct.Struct("<4sII")
Read: TypeAlias = Callable[[int, int], bytes]


class SnapshotHeader(NamedTuple):
    """The first frame."""

    snapshot: Position
    voters: Voters


_HEADER = msgspec.msgpack.Decoder(SnapshotHeader)


def encode_snapshot(snapshot: Position, voters: Voters, state: Iterable[bytes]) -> Iterator[bytes]:
    """The frames of a file.  The pieces of `state` may have any size."""
    yield _frame(b"H", msgspec.msgpack.encode(SnapshotHeader(snapshot, voters)))
    size = 0
    for piece in state:
        size += len(piece)
        for start in range(0, len(piece), PIECE_BYTES):
            yield _frame(b"D", piece[start : start + PIECE_BYTES])
    yield _frame(b"F", size.to_bytes(8, "little"))


def _frame(letter: bytes, payload: bytes) -> bytes:
    body = letter + payload
    length = len(body).to_bytes(4, "little")
    return _HEAD.pack(MAGIC, len(body), zlib.crc32(body, zlib.crc32(length))) + body


def is_frame(data: bytes) -> bool:
    """Whether these bytes are one whole frame."""
    if len(data) < _HEAD.size:
        return False
    magic, length, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    return magic == MAGIC and len(body) == length > 0 and zlib.crc32(body, zlib.crc32(data[4:8])) == crc


def frame_at(read: Read, start: int, name: str) -> bytes:
    """The frame that begins at a position.  Raises CorruptObject."""
    head = read(start, _HEAD.size)
    length = _HEAD.unpack(head)[1] if len(head) == _HEAD.size else 0
    data = head + read(start + _HEAD.size, min(length, PIECE_BYTES + 1))
    if not is_frame(data):
        raise CorruptObject(f"{name} is damaged at position {start}: restore this replica's disk, or replace it")
    return data


def read_header(read: Read, name: str) -> SnapshotHeader:
    """Raises CorruptObject."""
    frame = frame_at(read, 0, name)
    if frame[_HEAD.size : _HEAD.size + 1] != b"H":
        raise CorruptObject(f"{name} does not begin with the header of a snapshot")
    return _HEADER.decode(frame[_HEAD.size + 1 :])


def read_state(read: Read, size: int, name: str) -> Iterator[bytes]:
    """The pieces of the state, from a file of `size` bytes.  Raises CorruptObject, at the end if the file is not whole.

    A consumer has to read all pieces before it relies on them.
    """
    read_header(read, name)
    start, found, letter = len(frame_at(read, 0, name)), 0, b""
    while start < size and letter != b"F":
        frame = frame_at(read, start, name)
        letter, payload = frame[_HEAD.size : _HEAD.size + 1], frame[_HEAD.size + 1 :]
        start += len(frame)
        if letter == b"D":
            found += len(payload)
            yield payload
        elif letter != b"F" or int.from_bytes(payload, "little") != found:
            raise CorruptObject(f"{name} has a frame that does not belong before position {start}")
    if letter != b"F" or start != size:
        raise CorruptObject(f"{name} is damaged at position {start}: its end is missing, or bytes follow it")
