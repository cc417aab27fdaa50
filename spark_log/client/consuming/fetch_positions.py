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


def discard_buffered(positions: Iterable[FetchPosition]) -> None:
    """Discard records that were read and not returned; the next poll reads them again."""
    for fetch_position in positions:
        if fetch_position.cursor is not None and fetch_position.cursor.at != fetch_position.position:
            fetch_position.cursor = None


def anything_ready(positions: Iterable[FetchPosition], state: State) -> bool:
    """Whether a cursor that is open has more records."""
    return any(
        fetch_position.cursor is not None
        and not fetch_position.paused
        and fetch_position.key in state.partitions
        and fetch_position.cursor.ready(state)
        for fetch_position in positions
    )


def anything_buffered(positions: Iterable[FetchPosition]) -> bool:
    """Whether records were read from storage and not returned yet."""
    return any(
        fetch_position.cursor is not None and not fetch_position.paused and fetch_position.cursor.buffered
        for fetch_position in positions
    )


def _changed(positions: FetchPositions, state: State) -> list[tuple[TopicPartition, FetchPosition]]:
    """The partitions that may have records: most of many partitions are as they were when they had no more."""
    partition = state.partitions.get
    return [
        (tp, fetch_position)
        for tp, fetch_position in positions.items()
        if (cursor := fetch_position.cursor) is None or cursor.exhausted is not partition(fetch_position.key)
    ]


def bytes_from(entry: Slice | Piece, position: int) -> int:
    """Approximately how many of an entry's bytes are at or after an offset."""
    size = entry.bytes if isinstance(entry, Piece) else entry.length
    return size * (entry.end - max(position, entry.start)) // (entry.end - entry.start)


class Reading:
    """Reads from a consumer's positions.

    refresh:  called if records no longer exist; reading continues with the state it returns.
    """

    def __init__(
        self,
        journal: Journal,
        membership: Membership | None,
        settings: Mapping[str, Any],
        refresh: Callable[[], State],
        waiter: Waiter,
    ) -> None:
        self._journal = journal
        self._membership = membership
        self._settings = settings
        self._refresh = refresh
        self._waiter = waiter
        self._failure: SparkLogError | None = None
        """The error of a partition, for the next call: this call returned records of other partitions."""

    def take(self, positions: FetchPositions, state: State, rows: int, size: int | None) -> list[Fetched]:
        """Records up to the end of one state, by partition, in round-robin order.

        An unreadable partition does not block the others.  Its error is raised if there is nothing else to return, and
        by the next call otherwise.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        changed = _changed(positions, state)
        for tp, fetch_position in changed:
            if fetch_position.position is None and fetch_position.key in state.partitions:
                self.position(
                    state, tp, fetch_position
                )  # the position of `latest` must not depend on the order of partitions
        parts, late = list[Fetched](), False
        for tp, fetch_position in changed:
            room: int = self._settings["max_partition_fetch_bytes"]
            while rows > 0 and room > 0 and (size is None or size > 0):
                try:
                    part = self._take_from(state, tp, fetch_position, rows)
                except (CorruptObject, ObjectNotFound) as error:
                    self._failure = self._failure or error
                    break
                except Unfinished:
                    if not late:
                        positions[tp] = positions.pop(tp)  # the next call begins with other partitions
                    late = True
                    break
                if part is None:
                    break
                parts.append(part)
                rows -= part.records.num_rows
                room -= part.records.nbytes
                size = None if size is None else size - part.records.nbytes
            if rows <= 0 or (size is not None and size <= 0):
                positions[tp] = positions.pop(tp)
                break
        if self._failure is not None and not parts:
            failure, self._failure = self._failure, None
            raise failure
        return parts

    def has_bytes(self, positions: FetchPositions, state: State, wanted: int) -> bool:
        """Whether `wanted` bytes of runs follow the positions.  The first and last slice count in part."""
        for tp, fetch_position in positions.items():
            if fetch_position.paused or fetch_position.key not in state.partitions:
                continue
            position = self.position(state, tp, fetch_position)
            for entry in reversed(state.partitions[fetch_position.key].entries):
                if entry.end <= position or wanted <= 0:
                    break
                wanted -= bytes_from(entry, position)
        return wanted <= 0

    def _take_from(self, state: State, tp: TopicPartition, fetch_position: FetchPosition, rows: int) -> Fetched | None:
        if fetch_position.paused or fetch_position.key not in state.partitions:
            return None
        position = self.position(state, tp, fetch_position)
        if fetch_position.cursor is None:
            fetch_position.cursor = Cursor(self._journal, tp, fetch_position.key, position, self._waiter)
        try:
            return fetch_position.cursor.take(state, rows)
        except (DataLoss, UnknownTopicOrPartition):
            # Trimmed or deleted since the state was read: refresh it and continue from the first record that exists.
            fetch_position.cursor = Cursor(
                self._journal, tp, fetch_position.key, fetch_position.cursor.at, self._waiter
            )
            self._refresh()
            return None

    def position(self, state: State, tp: TopicPartition, fetch_position: FetchPosition) -> int:
        """The next offset to read in a partition: resolved, or reset by `auto_offset_reset` if it is out of range."""
        part = state.partitions.get(fetch_position.key)
        if part is None:
            raise UnknownTopicOrPartition(f"{tp.topic}-{tp.partition} was deleted")
        at = fetch_position.cursor.at if fetch_position.cursor is not None else fetch_position.position
        if at is None:
            at = self._committed(state, fetch_position)
        if at is not None and part.start <= at <= part.readable_end:
            if fetch_position.position is None:
                fetch_position.position = at
            return at
        fetch_position.position, fetch_position.cursor = self._reset(state, tp, fetch_position, at), None
        return fetch_position.position

    def _committed(self, state: State, fetch_position: FetchPosition) -> int | None:
        committed = None if self._membership is None else self._membership.position(state, fetch_position.key)
        return None if committed is None else committed.offset

    def _reset(self, state: State, tp: TopicPartition, fetch_position: FetchPosition, at: int | None) -> int:
        part, policy = state.partitions[fetch_position.key], self._settings["auto_offset_reset"]
        if at is not None:
            logger.warning(
                "offset %d of %s-%d is out of range, it has %d to %d", at, *tp, part.start, part.readable_end
            )
        if policy == "earliest" or (at is None and fetch_position.new):
            return part.start
        if policy == "latest":
            return part.readable_end
        if at is None:
            raise NoOffsetForPartition(
                f"{tp.topic}-{tp.partition}: group {self._settings['group_id']!r} has committed no offset and "
                "auto_offset_reset is 'none'; call seek() or commit one"
            )
        raise OffsetOutOfRange(
            f"offset {at} of {tp.topic}-{tp.partition} is out of range, it has {part.start} to "
            f"{part.readable_end}, and "
            "auto_offset_reset is 'none'; seek() to an offset in the range",
            start=part.start,
            end=part.readable_end,
        )
