"""Room for the records that make room: a file on a local disk, which is given up when the disk is full.

Deleting data begins with a record of the metadata log: a trim, a deletion, a fence.  On a disk without any space left there would
be none for it, and nothing could be deleted.  So a log on a local disk keeps the file `meta/reserve`.  It is deleted when such a
record finds no space, and made again right after, as large as fits.  Data and positions of groups never take its room.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from spark_log.errors import NoSpace, StorageError
from spark_log.journal.store_operations import Delete, Get, Op, Put, Steps
from spark_log.metadata import records as r
from spark_log.store.base import ObjectStore

RESERVE = "meta/reserve"
RESERVE_BYTES = 1 << 20
STEP_BYTES = 1 << 16
"""If there is less room, the reserve is smaller by so much, or by a multiple of it."""
MAKES_ROOM = (
    *(
        r.TrimRecord,
        r.DeleteTopicRecord,
        r.SetConfigsRecord,
        r.SwapRecord,
        r.FenceRecord,
        r.DeleteOffsetsRecord,
        r.ExpireProducersRecord,
    ),
    *(r.ResetClockRecord, r.ReleaseRecord),
)
"""With these data can be deleted, now or later.  A coordinator whose disk is full releases the log to `pylog maintain`."""


def has_reserve(store: ObjectStore) -> bool:
    """Whether logs on a store like this have one."""
    return store.url.startswith("file:")


def makes_room(records: Iterable[r.AnyRecord]) -> bool:
    return any(isinstance(record, MAKES_ROOM) for record in records)


def with_reserve(op: Op) -> Steps[Any]:
    """The answer to an operation, which has the reserve's room if there is no other.  Raises NoSpace if that is not enough."""
    try:
        return (yield op)
    except NoSpace:
        yield Delete([RESERVE])
    try:
        answer = yield op
    except StorageError:
        yield from _remake()
        raise
    yield from _remake()
    return answer


def _remake() -> Steps[None]:
    with suppress(StorageError):  # the change is decided, and upkeep makes the reserve again
        yield from keep_reserve()


def keep_reserve() -> Steps[None]:
    """Make the reserve, or make it larger, if there is room.  Its bytes are random: a file system may compress others away."""
    for size in range(RESERVE_BYTES, 0, -STEP_BYTES):
        if (yield Get(RESERVE, size - 1, size)):
            return
        try:
            yield Put(RESERVE, (random.Random(size).randbytes(size),))
        except NoSpace:
            continue
        return
