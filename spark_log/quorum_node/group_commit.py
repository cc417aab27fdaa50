"""Which of the waiting writes go to the disk together.  Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from spark_log.quorum.ready import Persist

TOGETHER_BYTES = 4 << 20
"""Bytes of data in a unit, unless one write has more."""


def take_write(waiting: deque[Persist]) -> Persist:
    """Remove the first write from `waiting`, with those behind it that only add entries.

    Entries that were appended while the disk was busy then share an fsync.  A crash may leave all of them or none,
    which are states that it may leave of separate writes as well.
    """
    first = waiting.popleft()
    entries, size = list(first.entries), _size(first)
    last = first
    while waiting and _only_adds(waiting[0], first) and size + _size(waiting[0]) <= TOGETHER_BYTES:
        last = waiting.popleft()
        entries += last.entries
        size += _size(last)
    return replace(first, number=last.number, entries=tuple(entries), high_watermark=last.high_watermark)


def _size(persist: Persist) -> int:
    return sum(len(entry.data) for entry in persist.entries)


def _only_adds(persist: Persist, first: Persist) -> bool:
    """Not if there is an epoch, a vote or a chunk to write: their order counts."""
    is_plain = persist.chunk is None and persist.reset_to is None and persist.truncate_to is None
    return is_plain and (persist.epoch, persist.voted) == (first.epoch, first.voted) and first.chunk is None
