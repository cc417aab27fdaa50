"""Errors for objects that the newest state names, but that are missing or damaged in the storage.

An index may also be missing because a newer state uses another one instead.  So before a reader reports a missing
index, it checks the newest state.
"""

from __future__ import annotations

from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.store.object_names import INDEX

GIVE_UP = "give these offsets up by `pylog verify --repair --lose-data`"
"""The cure for an object that is lost for good."""
GIVE_UP_DAMAGED = "give these offsets up by `pylog verify --deep --repair --lose-data`"
"""The cure for an object whose bytes are damaged for good."""


def missing_object(name: str, key: str, topic: str, partition: int, start: int, end: int) -> ObjectNotFound:
    """The error for a missing object that has the records [start, end) of a partition, or their index."""
    return ObjectNotFound(
        f"{name} is missing, but has the offsets {start} to {end - 1} of topic {topic!r}, partition {partition}: "
        "`pylog verify` lists what is missing, and `pylog verify --repair-from URL` restores it from a copy of the log. "
        f"Without a copy, continue at offset {end}, or {GIVE_UP}",
        key=key,
    )


def damaged_object(name: str, topic: str, partition: int, start: int, end: int, why: object) -> CorruptObject:
    """The error for an object in which records [start, end) of a partition cannot be read."""
    return CorruptObject(
        f"{name} is damaged: offsets {start} to {end - 1} of topic {topic!r}, partition {partition} cannot be read: "
        f"{why}. Restore it from a copy of the log (`pylog verify --deep --repair-from URL`). Without a copy, continue "
        f"at offset {end}, or {GIVE_UP if name.endswith(INDEX) else GIVE_UP_DAMAGED}",
        start=start,
        end=end,
    )
