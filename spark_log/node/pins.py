"""Files of the Spark data source under `meta/pin/`: what a query sees of the log, kept as long as a query may run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spark_log.journal.ops import Delete, Get, List, Op, Steps

PINS = "meta/pin/"
READ_OPS = 256


class _Pin(msgspec.Struct, frozen=True):
    """The part of a pin that says how old it is."""

    version: int


def drop_pins(fence: int) -> Steps[int]:
    """Delete the pins of versions at or below the fence; how many.  Files that are no pins stay."""
    names: list[str] = yield List(PINS)
    dropped = 0
    for at in range(0, len(names), READ_OPS):
        chunk = names[at : at + READ_OPS]
        reads: list[Op] = [Get(name) for name in chunk]
        old = _old(chunk, (yield reads), fence)
        if old:
            yield Delete(old)
        dropped += len(old)
    return dropped


def _old(names: Sequence[str], blobs: Sequence[bytes | None], fence: int) -> list[str]:
    versions = [_version(blob) for blob in blobs]
    return [name for name, version in zip(names, versions, strict=True) if version is not None and version <= fence]


def _version(blob: bytes | None) -> int | None:
    if blob is None:
        return None
    try:
        return msgspec.json.decode(blob, type=_Pin).version
    except msgspec.DecodeError:
        return None
