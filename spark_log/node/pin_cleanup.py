"""Files of the Spark data source under `meta/pin/`: what a query sees of the log, kept as long as a query may run.

They go when the fence has passed their version, and by their own time in a log in which nothing moves the fence.
"""

from __future__ import annotations

import msgspec

from spark_log.journal.object_names import PINS
from spark_log.journal.store_operations import Delete, Get, List, Op, Steps

READ_OPS = 256


class _Pin(msgspec.Struct, frozen=True):
    """The part of a pin that says how old it is."""

    version: int
    made_ms: int = 0
    """When it was put; 0: by a pylog that did not say."""


def drop_pins(fence: int, before_ms: int) -> Steps[int]:
    """Delete the pins of versions at or below the fence, and those made before a time; how many.  Files that are no pins stay."""
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
