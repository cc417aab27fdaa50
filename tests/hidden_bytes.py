"""Finds a text in files, however it is written: as it is, in UTF-16, in base64, and in what is compressed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

FRAMES = {"zstd": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18"}
"""The first bytes of compressed frames: of Arrow's buffers, and of checkpoints."""


def files_with(folder: Path, text: bytes) -> list[str]:
    """The names of the files under a folder that have a text, whole or as a part of something else."""
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and has_text(path.read_bytes(), text)
    ]


def has_text(data: bytes, text: bytes) -> bool:
    """Whether bytes have a text, in any form."""
    forms = list(forms_of(text))
    return any(form in part for part in _unpacked(data) for form in forms)


def forms_of(text: bytes) -> Iterator[bytes]:
    """The bytes that a file has if a text is in it."""
    yield text
    yield text.decode().encode("utf-16-le")
    yield text.hex().encode()
    for before in range(3):  # characters that also depend on the bytes around it are cut off
        whole = base64.b64encode(bytes(before) + text + bytes(3))
        yield whole[-(-before * 8 // 6) : (before + len(text)) * 8 // 6]


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Bytes, and those of the frames in them."""
    yield data
    for codec, magic in FRAMES.items():
        at = data.find(magic)
        while at >= 0:
            yield from _unpacked(_frame(data[at:], codec))
            at = data.find(magic, at + 1)


def _frame(data: bytes, codec: str) -> bytes:
    """The content of the frame at the front; what comes before an error, if it is none."""
    found = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        try:
            while chunk := stream.read(1):
                found += chunk
        except (OSError, pa.ArrowInvalid):
            pass
    return bytes(found)
