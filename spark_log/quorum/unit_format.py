"""The log of a replica as bytes of files: units, each of which is one write.

    bytes 0-3    b"PQU1"
    bytes 4-7    length of the body, unsigned, little-endian
    bytes 8-11   CRC-32 of bytes 4-7 and of the body
    then         the body: MessagePack of [high watermark, truncate to or nil, entries], an entry as [offset, epoch,
                 kind, data]

Each unit is written after the one before it is durable.  So a crash can damage the last unit of the last file only: it
was not reported, and is cut.  Any other damage is an error, because entries that were acknowledged may be in it.  A
write that was not finished is shorter than its length says, or lacks whole sectors, which read as zeros.  So a byte
that changes later in the last unit is an error as well, unless it is one of the length.

Nothing here opens a file.  A reader gives the files' bytes in order, and truncates the last file to `end`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import msgspec

from spark_log.errors import CorruptObject
from spark_log.quorum.messages import Entry

MAGIC = b"PQU1"
SECTOR = 512
"""Bytes that a disk writes as a whole."""
_HEAD = struct.Struct("<4sII")


class Unit(NamedTuple):
    """A write of the log."""

    high_watermark: int
    truncate_to: int | None
    """Remove the entries from this offset on, first."""
    entries: tuple[Entry, ...]


_DECODER = msgspec.msgpack.Decoder(Unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """The content of a log's files."""

    entries: tuple[Entry, ...]
    high_watermark: int
    end: int
    """Length of the last file without a damaged last unit."""
    file_ends: tuple[int, ...]
    """For each file, the offset behind the last of its entries that were not removed later; 0 if it has none."""


def encode_unit(high_watermark: int, truncate_to: int | None, entries: tuple[Entry, ...]) -> bytes:
    """A write of the log; empty if it changes nothing."""
    if not entries and truncate_to is None:
        return b""
    body = msgspec.msgpack.encode(Unit(high_watermark, truncate_to, entries))
    length = len(body).to_bytes(4, "little")
    return _HEAD.pack(MAGIC, len(body), zlib.crc32(body, zlib.crc32(length))) + body


def decode_log(files: Iterable[tuple[str, bytes]]) -> LogContent:
    """The content of files, given as (name, bytes) from the oldest on.

    Raises CorruptObject, with file and position, for damage that a crash cannot have caused.
    """
    entries: list[Entry] = []
    ends: list[int] = []
    high_watermark = end = 0
    damaged = ""
    for name, data in files:
        if damaged:
            raise CorruptObject(f"{damaged}, and {name} follows: restore this replica's disk, or replace it")
        end = 0
        ends.append(0)
        for unit, end in units_of(name, data):
            _apply(entries, unit, name, end)
            ends = ends if unit.truncate_to is None else [min(one, unit.truncate_to) for one in ends]
            ends[-1] = entries[-1].offset + 1 if unit.entries else ends[-1]
            high_watermark = max(high_watermark, unit.high_watermark)
        damaged = f"{name} is damaged at position {end}" if end < len(data) else ""
    return LogContent(entries=tuple(entries), high_watermark=high_watermark, end=end, file_ends=tuple(ends))


def units_of(name: str, data: bytes) -> Iterator[tuple[Unit, int]]:
    """The units of a file, each with the position behind it, up to a last one that is not whole.

    Raises CorruptObject for damage that a crash has not caused: a whole unit follows, or nothing is missing.
    """
    end = 0
    while end < len(data) and (found := _unit_at(data, end)) is not None:
        unit, end = found
        yield unit, end
    if end == len(data):
        return
    later = _later_unit(data, end)
    if later is not None or not _is_torn(data, end):
        reason = "its checksum differs" if later is None else f"a unit follows at {later}"
        raise CorruptObject(
            f"{name} is damaged at position {end}, and {reason}: restore this replica's disk, or replace it"
        )


def _unit_at(data: bytes, start: int) -> tuple[Unit, int] | None:
    """The unit at a position and the position behind it; None if it is damaged or not whole."""
    if len(data) - start < _HEAD.size:
        return None
    magic, length, crc = _HEAD.unpack_from(data, start)
    body = data[start + _HEAD.size : start + _HEAD.size + length]
    if magic != MAGIC or len(body) < length or zlib.crc32(body, zlib.crc32(data[start + 4 : start + 8])) != crc:
        return None
    return _DECODER.decode(body), start + _HEAD.size + length


def _is_torn(data: bytes, start: int) -> bool:
    """Whether a crash may have left this as the last unit: it is too short, or a sector was not written."""
    if len(data) - start < _HEAD.size:
        return True
    magic, length, _ = _HEAD.unpack_from(data, start)
    if magic == MAGIC and len(data) - start < _HEAD.size + length:
        return True
    bounds = [start, *range(start - start % SECTOR + SECTOR, len(data), SECTOR), len(data)]
    return any(not any(data[begin:end]) for begin, end in pairwise(bounds))


def _later_unit(data: bytes, start: int) -> int | None:
    """Where a whole unit begins behind a damaged one."""
    found = data.find(MAGIC, start + 1)
    while found >= 0:
        if _unit_at(data, found) is not None:
            return found
        found = data.find(MAGIC, found + 1)
    return None


def _apply(entries: list[Entry], unit: Unit, name: str, end: int) -> None:
    if unit.truncate_to is not None:
        while entries and entries[-1].offset >= unit.truncate_to:
            entries.pop()
    if entries and unit.entries and unit.entries[0].offset != entries[-1].offset + 1:
        raise CorruptObject(
            f"{name} has entry {unit.entries[0].offset} after entry {entries[-1].offset}, before position {end}: "
            "a file is missing"
        )
    entries += unit.entries
