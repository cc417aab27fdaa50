"""Checkpoints made by hand: their checksums are right, whatever they say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from spark_log.metadata.formats.checkpoint_format import COLUMNS, KINDS
from spark_log.metadata.maps.frames import Frame, encode_end, encode_frames, read_frames

FIRST_LINE = b"pylog-checkpoint 4\n"


def checkpoint_of(document: dict[str, Any]) -> bytes:
    """The checkpoint of a document as `state_json` gives it."""
    header = {name: value for name, value in document.items() if name not in KINDS}
    return checkpoint_of_frames(("header", [header]), *((name, document[name]) for name in KINDS))


def checkpoint_of_frames(*frames: tuple[str, Iterable[Any]]) -> bytes:
    """A checkpoint with these rows by kind, and an end frame."""
    made = [frame for kind, rows in frames for frame in encode_frames(kind, rows, msgspec.json.Encoder())]
    return FIRST_LINE + b"".join(data for _, data in made) + encode_end(sum(rows for rows, _ in made))


def frames_of(data: bytes) -> list[tuple[str, int, bytes]]:
    """Kind, number of rows and plain lines of each frame; of columns, their values."""
    return [(frame.kind, frame.rows, _plain(frame)) for frame in read_frames(data, len(FIRST_LINE), "x")]


def _plain(frame: Frame) -> bytes:
    if frame.kind in COLUMNS:
        return repr(frame.columns("x").to_pydict()).encode()
    return frame.lines("x")
