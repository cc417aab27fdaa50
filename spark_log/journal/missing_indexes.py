"""Errors and warnings for objects that the newest state names, but that are missing or damaged in the storage.

An index may also be missing because a newer state uses another one instead.  So before a reader reports a missing
index, it checks the newest state.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping

from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.journal.store_operations import Refresh, Steps
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice

logger = logging.getLogger("spark_log")


def missing_object(name: str, key: str, topic: str, partition: int, start: int, end: int) -> ObjectNotFound:
    """The error for a missing object that has the records [start, end) of a partition, or their index."""
    return ObjectNotFound(
        f"{name} is missing, but has the offsets {start} to {end - 1} of topic {topic!r}, partition {partition}: "
        "`pylog verify` lists what is missing, and `pylog verify --repair-from URL` restores it from a copy of the log. "
        f"Without a copy, continue at offset {end}",
        key=key,
    )


def damaged_object(name: str, topic: str, partition: int, start: int, end: int, why: object) -> CorruptObject:
    """The error for an object in which records [start, end) of a partition cannot be read."""
    return CorruptObject(
        f"{name} is damaged: offsets {start} to {end - 1} of topic {topic!r}, partition {partition} cannot be read: "
        f"{why}. Restore it from a copy of the log (`pylog verify --deep --repair-from URL`), continue at offset {end}, or "
        f"remove the records before it: `pylog topic trim {topic} -p {partition} --to {end}`",
        start=start,
        end=end,
    )


def without_index(
    wanted: Mapping[TopicKey, Iterable[Slice | Piece]], found: Container[Piece]
) -> Steps[frozenset[TopicKey]]:
    """Partitions with a piece whose index was not found.  Upkeep skips them.

    An index that the newest state still names is logged as a warning.
    """
    gone = {key: [e for e in entries if isinstance(e, Piece) and e not in found] for key, entries in wanted.items()}
    gone = {key: pieces for key, pieces in gone.items() if pieces}
    if gone:
        state: State = yield Refresh()
        for key, pieces in gone.items():
            part = state.partitions.get(key)
            for piece in pieces:
                if part is not None and piece in part.entries:
                    name = state.topics[key[0]].name
                    lost = missing_object(piece.object, piece.object, name, key[1], piece.start, piece.end)
                    logger.warning("upkeep skips a partition: %s", lost)
    return frozenset(gone)
