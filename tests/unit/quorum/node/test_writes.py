"""Writes that wait for the disk share an fsync, if their order does not count."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from spark_log.quorum.messages import Entry, Kind, Position, ReplicaKey
from spark_log.quorum.node.persist_thread import TOGETHER_BYTES, take_write
from spark_log.quorum.ready import Persist, SnapshotPart

CHUNK = SnapshotPart(snapshot=Position(1, 9), start=0, data=b"x", voters=(), is_last=False)


def write(number: int, size: int = 1, epoch: int = 1, **fields: Any) -> Persist:
    entry = Entry(number, epoch, Kind.DATA, bytes(size))
    values = {"voted": None, "entries": (entry,), "high_watermark": number, **fields}
    return Persist(number=number, epoch=epoch, **values)


def taken(*writes: Persist) -> list[list[int]]:
    """Offsets of the entries that are written together."""
    waiting, found = deque(writes), []
    while waiting:
        found.append([entry.offset for entry in take_write(waiting).entries])
    return found


def test_entries_that_waited_are_written_together() -> None:
    """Under the number, and with the high watermark, of the last one."""
    waiting = deque([write(1, truncate_to=1), write(2), write(3)])
    together = take_write(waiting)
    assert [entry.offset for entry in together.entries] == [1, 2, 3]
    assert (together.number, together.high_watermark, together.truncate_to) == (3, 3, 1)


@pytest.mark.parametrize(
    "second",
    [
        write(2, truncate_to=1),
        write(2, reset_to=Position(1, 9)),
        write(2, chunk=CHUNK),
        write(2, epoch=2),
        write(2, voted=ReplicaKey(1, "a")),
    ],
)
def test_what_has_an_order_is_written_alone(second: Persist) -> None:
    """An epoch, a vote, a chunk, a truncation."""
    assert taken(write(1), second, write(3))[0] == [1]


def test_a_unit_has_a_limit() -> None:
    """So that the first of many appends does not wait for all."""
    assert taken(write(1, TOGETHER_BYTES - 1), write(2), write(3)) == [[1, 2], [3]]
