"""A consumer's position in each partition, and fetching records from there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_log.client.consuming.cursor import Cursor
from spark_log.client.consuming.membership import Membership
from spark_log.client.reading.fetch import Fetched
from spark_log.errors import (
    CorruptObject,
    DataLoss,
    NoOffsetForPartition,
    ObjectNotFound,
    OffsetOutOfRange,
    SparkLogError,
    UnknownTopicOrPartition,
)
from spark_log.journal.journal import Journal
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice, TopicPartition
from spark_log.store.bounded_waits import Unfinished, Waiter

logger = logging.getLogger("spark_log")


@dataclass(slots=True)
class FetchPosition:
    """The consumer's position in one partition."""

    key: TopicKey
    position: int | None = None
    """None: not resolved yet."""
    new: bool = False
    """The partition appeared after the subscription: it is read from its start."""
    paused: bool = False
    cursor: Cursor | None = None


NOWHERE = FetchPosition(("", -1))
FetchPositions = dict[TopicPartition, FetchPosition]
"""In the order in which they are served next."""


def forget_ahead(spots: Iterable[FetchPosition]) -> None:
    """Discard records that were read and not returned; the next poll reads them again."""
    for spot in spots:
        if spot.cursor is not None and spot.cursor.at != spot.position:
            spot.cursor = None


def anything_ready(spots: Iterable[FetchPosition], state: State) -> bool:
    """Whether a cursor that is open has more records."""
    return any(
        spot.cursor is not None and not spot.paused and spot.key in state.partitions and spot.cursor.ready(state)
        for spot in spots
    )


def anything_buffered(spots: Iterable[FetchPosition]) -> bool:
    """Whether records were read from storage and not returned yet."""
    return any(spot.cursor is not None and not spot.paused and spot.cursor.buffered for spot in spots)


def bytes_from(entry: Slice | Piece, position: int) -> int:
    """Approximately how many of an entry's bytes are at or after an offset."""
    size = entry.bytes if isinstance(entry, Piece) else entry.length
    return size * (entry.end - max(position, entry.start)) // (entry.end - entry.start)


class Reading:
    """Reads from a consumer's positions.

    look_again:  called if records no longer exist; reading continues with the state it returns.
    """

    def __init__(
        self,
        journal: Journal,
        membership: Membership | None,
        settings: Mapping[str, Any],
        look_again: Callable[[], State],
        waiter: Waiter,
    ) -> None:
        self._journal = journal
        self._membership = membership
        self._settings = settings
        self._look_again = look_again
        self._waiter = waiter
        self._failure: SparkLogError | None = None
        """The error of a partition, for the next call: this call returned records of other partitions."""

    def take(self, spots: FetchPositions, state: State, rows: int, size: int | None) -> list[Fetched]:
        """Records up to the end of one state, by partition, in round-robin order.

        An unreadable partition does not block the others.  Its error is raised if there is nothing else to return, and
        by the next call otherwise.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        for tp, spot in spots.items():
            if spot.position is None and spot.key in state.partitions:
                self.position(state, tp, spot)  # the position of `latest` must not depend on the order of partitions
        parts: list[Fetched] = []
        for tp in tuple(spots):
            room: int = self._settings["max_partition_fetch_bytes"]
            while rows > 0 and room > 0 and (size is None or size > 0):
                try:
                    part = self._take_from(state, tp, spots[tp], rows)
                except (CorruptObject, ObjectNotFound) as error:
                    self._failure = self._failure or error
                    break
                except Unfinished:
                    break
                if part is None:
                    break
                parts.append(part)
                rows -= part.records.num_rows
                room -= part.records.nbytes
                size = None if size is None else size - part.records.nbytes
            if rows <= 0 or (size is not None and size <= 0):
                spots[tp] = spots.pop(tp)
                break
        if self._failure is not None and not parts:
            failure, self._failure = self._failure, None
            raise failure
        return parts

    def has_bytes(self, spots: FetchPositions, state: State, wanted: int) -> bool:
        """Whether `wanted` bytes of runs follow the positions.  The first and last slice count in part."""
        for tp, spot in spots.items():
            if spot.paused or spot.key not in state.partitions:
                continue
            position = self.position(state, tp, spot)
            for entry in reversed(state.partitions[spot.key].entries):
                if entry.end <= position or wanted <= 0:
                    break
                wanted -= bytes_from(entry, position)
        return wanted <= 0

    def _take_from(self, state: State, tp: TopicPartition, spot: FetchPosition, rows: int) -> Fetched | None:
        if spot.paused or spot.key not in state.partitions:
            return None
        position = self.position(state, tp, spot)
        if spot.cursor is None:
            spot.cursor = Cursor(self._journal, tp, spot.key, position, self._waiter)
        try:
            return spot.cursor.take(state, rows)
        except (DataLoss, UnknownTopicOrPartition):
            # Trimmed or deleted since the state was read: refresh it and continue from the first record that exists.
            spot.cursor = Cursor(self._journal, tp, spot.key, spot.cursor.at, self._waiter)
            self._look_again()
            return None

    def position(self, state: State, tp: TopicPartition, spot: FetchPosition) -> int:
        """The next offset to read in a partition: resolved, or reset by `auto_offset_reset` if it is out of range."""
        part = state.partitions.get(spot.key)
        if part is None:
            raise UnknownTopicOrPartition(f"{tp.topic}-{tp.partition} was deleted")
        at = spot.cursor.at if spot.cursor is not None else spot.position
        if at is None:
            at = self._committed(state, spot)
        if at is not None and part.start <= at <= part.readable_end:
            if spot.position is None:
                spot.position = at
            return at
        spot.position, spot.cursor = self._reset(state, tp, spot, at), None
        return spot.position

    def _committed(self, state: State, spot: FetchPosition) -> int | None:
        committed = None if self._membership is None else self._membership.position(state, spot.key)
        return None if committed is None else committed.offset

    def _reset(self, state: State, tp: TopicPartition, spot: FetchPosition, at: int | None) -> int:
        part, policy = state.partitions[spot.key], self._settings["auto_offset_reset"]
        if at is not None:
            logger.warning(
                "offset %d of %s-%d is out of range, it has %d to %d", at, *tp, part.start, part.readable_end
            )
        if policy == "earliest" or (at is None and spot.new):
            return part.start
        if policy == "latest":
            return part.readable_end
        if at is None:
            raise NoOffsetForPartition(
                f"{tp.topic}-{tp.partition}: group {self._settings['group_id']!r} has committed no offset and "
                "auto_offset_reset is 'none'; call seek() or commit one"
            )
        raise OffsetOutOfRange(
            f"offset {at} of {tp.topic}-{tp.partition} is out of range, it has {part.start} to {part.readable_end}, and "
            "auto_offset_reset is 'none'; seek() to an offset in the range",
            start=part.start,
            end=part.readable_end,
        )
