"""Space for the records that free space: a file on a local disk that is deleted when the disk is full.

Deleting data begins with a record of the metadata log: a trim, a deletion, a fence.  On a full disk that record could
not be written, and nothing could be deleted.  So a log on a local disk keeps the file `meta/reserve`.  It is deleted
when such a record finds no space, and written again right after, as large as fits.  Data and positions of groups never
use its space; the record of a consumer that leaves its group does, because nobody else can write it.
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
"""If there is less space, the reserve is smaller by a multiple of this."""
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
"""These records allow data to be deleted.  A coordinator with a full disk releases the log to `pylog maintain`."""


def has_reserve(store: ObjectStore) -> bool:
    """Whether logs on such a store have a reserve."""
    return store.url.startswith("file:")


def makes_room(records: Iterable[r.AnyRecord]) -> bool:
    """Whether records are put to a full disk, too.  A log moves away from it by take-overs."""
    return any(map(_makes_room, records))


def _makes_room(record: r.AnyRecord) -> bool:
    match record:
        case r.TakeOverRecord():
            return record.purpose in ("moving", "moved")
        case r.JoinGroupRecord():
            return not record.member  # it leaves
        case _:
            return isinstance(record, MAKES_ROOM)


def with_reserve(op: Op) -> Steps[Any]:
    """Run an operation; on a full disk, use the reserve's space.  Raises NoSpace if that is not enough."""
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
    with suppress(StorageError):  # the change is decided, and maintenance makes the reserve again
        yield from keep_reserve()


def keep_reserve() -> Steps[None]:
    """Create or enlarge the reserve if there is space.  Its bytes are random: a file system may compress others."""
    for size in range(RESERVE_BYTES, 0, -STEP_BYTES):
        if (yield Get(RESERVE, size - 1, size)):
            return
        try:
            yield Put(RESERVE, (random.Random(size).randbytes(size),))
        except NoSpace:
            continue
        return
