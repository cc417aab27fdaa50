"""Pins of the Spark data source under `meta/pin/`: the version that a query reads, kept while the query may run.

They are deleted once the fence has passed their version, or by age if nothing advances the fence.
"""

from __future__ import annotations

import msgspec

from spark_log.journal.object_names import PINS
from spark_log.journal.store_operations import Delete, Get, List, Op, Steps

READ_OPS = 256


class _Pin(msgspec.Struct, frozen=True):
    """The part of a pin that contains its age."""

    version: int
    made_ms: int = 0
    """When it was written; 0: by a version of pylog without this field."""


def drop_pins(fence: int, before_ms: int) -> Steps[int]:
    """Delete pins of versions at or below the fence, and pins made before a time; returns their number.  Ignores other
    files."""
    names: list[str] = yield List(PINS)
    dropped = 0
    for at in range(0, len(names), READ_OPS):
        chunk = names[at : at + READ_OPS]
        reads: list[Op] = [Get(name) for name in chunk]
        old = [name for name, blob in zip(chunk, (yield reads), strict=True) if _is_old(blob, fence, before_ms)]
        if old:
            yield Delete(old)
        dropped += len(old)
    return dropped


def _is_old(blob: bytes | None, fence: int, before_ms: int) -> bool:
    if blob is None:
        return False
    try:
        pin = msgspec.json.decode(blob, type=_Pin)
    except msgspec.DecodeError:
        return False
    return pin.version <= fence or 0 < pin.made_ms < before_ms
