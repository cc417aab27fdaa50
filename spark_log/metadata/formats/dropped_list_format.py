"""A list object: names of dropped objects, so that the state need not have them.  Pure.

pylog-dropped 1 <name of the list>\\n
frames (frames.py): names in order, one line of JSON each

It is written once.  Its name in it tells it from a list of another log.  The state has its own name until the fence
has passed everything in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec

from spark_log.errors import CorruptObject
from spark_log.metadata.formats.batch_format import check_format
from spark_log.metadata.maps.frames import encode_end, encode_frames, read_frames
from spark_log.text import first_bytes

MAGIC = b"pylog-dropped"
VERSION = 1
SUFFIX = ".dropped"
KIND = "dropped"
FIRST_LINE_MAX = 128

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(str)


def encode_list(names: Iterable[str], name: str) -> bytes:
    """The bytes of a list object; `name` is its own."""
    frames = list(encode_frames(KIND, sorted(names), _encoder))
    total = sum(rows for rows, _ in frames)
    return b"".join(
        chain([b"%s %d %s\n" % (MAGIC, VERSION, name.encode())], (data for _, data in frames), [encode_end(total)])
    )


def decode_list(data: bytes, name: str) -> list[str]:
    """The names in a list object; `name` is its own.

    Raises UnsupportedVersion for a newer format, CorruptObject for damaged bytes.
    """
    line, _, _ = data[:FIRST_LINE_MAX].partition(b"\n")
    magic, version, own = (*line.split(b" "), b"", b"")[:3]
    if magic != MAGIC:
        raise CorruptObject(f"{name} is not a list of dropped objects, or damaged; {first_bytes(data)}")
    check_format(version, VERSION, name)
    if own != name.encode():
        raise CorruptObject(f"{name} is another list of dropped objects, {own.decode(errors='replace')!a}")
    names: list[str] = []
    for frame in read_frames(data, len(line) + 1, name):
        names += _decoder.decode_lines(frame.lines(name))
    return names
