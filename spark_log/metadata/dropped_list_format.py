"""A list object: names of dropped objects, so that the state need not have them.  Pure.

pylog-dropped 1\\n
frames (frames.py): names in order, one line of JSON each

It is written once.  The state has its own name until the fence has passed everything in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec

from spark_log.errors import CorruptObject
from spark_log.metadata.batch_format import check_format
from spark_log.metadata.frames import encode_end, encode_frames, read_frames

MAGIC = b"pylog-dropped"
VERSION = 1
SUFFIX = ".dropped"
KIND = "dropped"
FIRST_LINE_MAX = 64

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(str)


def encode_list(names: Iterable[str]) -> bytes:
    """The bytes of a list object."""
    frames = list(encode_frames(KIND, sorted(names), _encoder))
    total = sum(rows for rows, _ in frames)
    return b"".join(chain([b"%s %d\n" % (MAGIC, VERSION)], (data for _, data in frames), [encode_end(total)]))


def decode_list(data: bytes, name: str) -> list[str]:
    """The names in a list object; `name` is its own.

    Raises UnsupportedVersion for a newer format, CorruptObject for damaged bytes.
    """
    line, _, _ = data[:FIRST_LINE_MAX].partition(b"\n")
    magic, _, version = line.partition(b" ")
    if magic != MAGIC:
        raise CorruptObject(f"{name} is not a list of dropped objects, or damaged; it starts with {data[:16]!r}")
    check_format(version, VERSION, name)
    names: list[str] = []
    for frame in read_frames(data, len(line) + 1, name):
        names += _decoder.decode_lines(frame.lines(name))
    return names
