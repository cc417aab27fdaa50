"""A consumer's position in each partition, and fetching records from there."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_log.client.consumer.cursor import Cursor, JointRead
from spark_log.client.consumer.membership import Membership
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import OffsetRange
from spark_log.client.reader.request_ahead import BLOCK_BYTES_MAX
from spark_log.errors import (
    CorruptObject,
    DataLoss,
    NoOffsetForPartition,
    OffsetOutOfRange,
    SparkLogError,
    UnknownTopicOrPartition,
)
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.model import Slice, TopicPartition
from spark_log.roots.read_failover import NOT_READ
from spark_log.store.bounded_waits import Unfinished, Waiter


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


class FetchPositions:
    """A consumer's position in each of its partitions.

    A partition is *active* if it may have records to return, and idle otherwise.  Active partitions are kept
    separately, in the order in which they are served next, because most partitions of a large consumer are idle.  A
    partition with no more records in one state of the log stays idle until the partition changes in a later state.
    """

    def __init__(self) -> None:
        self._all: dict[TopicPartition, FetchPosition] = {}
        self._partitions: dict[TopicKey, TopicPartition] = {}
        self._topics: list[str] | None = []
        self._active: dict[TopicPartition, FetchPosition] = {}
        self._state: State | None = None
        """The state in which the other partitions have no more records."""
        self._read: dict[TopicPartition, FetchPosition] = {}
        """Partitions with records that were read, and may not have been returned."""

    # ------------------------------------------------------------------------------------------------ all partitions

    def __getitem__(self, tp: TopicPartition) -> FetchPosition:
        return self._all[tp]

    def __contains__(self, tp: object) -> bool:
        return tp in self._all

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def get(self, tp: TopicPartition) -> FetchPosition | None:
        return self._all.get(tp)

    def items(self) -> ItemsView[TopicPartition, FetchPosition]:
        return self._all.items()

    def topics(self) -> list[str]:
        """Ids of the topics, sorted."""
        if self._topics is None:
            self._topics = sorted({topic_id for topic_id, _ in self._partitions})
        return self._topics

    def add(self, tp: TopicPartition, position: FetchPosition) -> None:
        self._all[tp] = self._active[tp] = position
        self._partitions[position.key] = tp
        self._topics = None

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            del self._partitions[self._all.pop(tp).key]
            self._active.pop(tp, None)
            self._read.pop(tp, None)
        self._topics = None

    # --------------------------------------------------------------------------------------------- active partitions

    def active(self, state: State) -> dict[TopicPartition, FetchPosition]:
        """The partitions that may have records in a state.  Visits those that changed since the last call."""
        known, self._state = self._state, state
        if state is known:
            return self._active
        changes = None if known is None else state.changes_since(known)
        if changes is None:
            idle = ((tp, at) for tp, at in self._all.items() if tp not in self._active)
            self._active.update({tp: at for tp, at in idle if not _is_idle(at, state)})
            return self._active
        for key in changes.partitions:
            tp = self._partitions.get(key)
            if tp is not None:
                self._active.setdefault(tp, self._all[tp])
        return self._active

    def set_active(self, tp: TopicPartition) -> None:
        """A partition may have records, because its position or its cursor was changed."""
        self._active.setdefault(tp, self._all[tp])

    def end_turn(self, tp: TopicPartition, state: State) -> None:
        """A partition is served last from now on; not at all if it has no more records in this state."""
        position = self._active.pop(tp)
        if state is not self._state or not _is_idle(position, state):
            self._active[tp] = position

    # ----------------------------------------------------------------------------------------------- records in memory

    def note_read(self, tp: TopicPartition) -> None:
        """Records of a partition were read."""
        self._read[tp] = self._all[tp]

    def discard_buffered(self) -> None:
        """Discard records that were read and not returned; the next poll reads them again."""
        for tp, at in self._read.items():
            if at.cursor is not None and at.cursor.at != at.position:
                at.cursor = None
                self.set_active(tp)
        self._read.clear()

    def discard_all(self) -> None:
        """Discard all records that were read."""
        for at in self._all.values():
            at.cursor = None
        self._active.update(self._all)
        self._read.clear()

    def anything_ready(self, state: State) -> bool:
        """Whether a cursor that is open has more records."""
        return any(
            at.cursor is not None and not at.paused and at.key in state.partitions and at.cursor.ready(state)
            for at in self.active(state).values()
        )

    def anything_buffered(self) -> bool:
        """Whether records were read from storage and not returned yet."""
        return any(at.cursor is not None and not at.paused and at.cursor.buffered for at in self._active.values())


def _is_idle(position: FetchPosition, state: State) -> bool:
    """Whether a partition has no more records in a state."""
    return position.cursor is not None and position.cursor.is_at_end(state)


def bytes_from(entry: Slice | Piece, position: int) -> int:
    """Approximately how many of an entry's bytes are at or after an offset."""
    size = entry.bytes if isinstance(entry, Piece) else entry.length
    return size * (entry.end - max(position, entry.start)) // (entry.end - entry.start)


def bytes_after(part: Partition, position: int, most: int) -> int:
    """Approximately how many bytes of a partition are at or after an offset; counts no further than `most`."""
    size = 0
    for entry in reversed(part.entries):
        if entry.end <= position or size >= most:
            break
        size += bytes_from(entry, position)
    return size


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
        self._rack: str = settings["client_rack"]
        self._refresh = refresh
        self._waiter = waiter
        self._failure: SparkLogError | None = None
        """The error of a partition, for the next call: this call returned records of other partitions."""
        self._shared: JointRead | None = None
        """The last joint read, whose records a call may leave for the next one."""
        self._active = 1
        """Partitions that had records at the last call."""

    def take(self, positions: FetchPositions, state: State, rows: int, size: int | None) -> list[Fetched]:
        """Records up to the ends of the partitions in `state`, taken from the partitions in round-robin order.

        An unreadable partition does not block the others.  If there is nothing else to return, its error is raised
        immediately, otherwise by the next call.

        rows:  the maximum number of records.
        size:  stop after about this many bytes; None: no limit.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        active = tuple(positions.active(state).items())
        self._active = len(active)
        for tp, fetch_position in active:
            if fetch_position.position is None and fetch_position.key in state.partitions:
                self.position(
                    state, tp, fetch_position
                )  # the position of `latest` must not depend on the order of partitions
        parts, late, joint = list[Fetched](), False, self._joint(active, state)
        for tp, fetch_position in active:
            room: int = self._settings["max_partition_fetch_bytes"]
            while rows > 0 and room > 0 and (size is None or size > 0):
                try:
                    part = self._take_from(state, tp, fetch_position, rows, joint)
                except (CorruptObject, *NOT_READ) as error:
                    self._failure = self._failure or error
                    break
                except Unfinished:
                    if not late:
                        positions.end_turn(tp, state)  # the next call begins with other partitions
                    late = True
                    break
                if part is None:
                    positions.end_turn(tp, state)
                    break
                positions.note_read(tp)
                if not part.records.num_rows:
                    self._pass_holes(parts, fetch_position, part)
                    continue
                parts.append(part)
                rows -= part.records.num_rows
                room -= part.records.nbytes
                size = None if size is None else size - part.records.nbytes
            if rows <= 0 or (size is not None and size <= 0):
                positions.end_turn(tp, state)
                break
        if self._failure is not None and not parts:
            failure, self._failure = self._failure, None
            raise failure
        return parts

    @staticmethod
    def _pass_holes(parts: list[Fetched], fetch_position: FetchPosition, holes: Fetched) -> None:
        """Continue after offsets without a record, behind those records of the partition that this call returns."""
        if (
            parts
            and parts[-1].read.topic_id == holes.read.topic_id
            and parts[-1].read.partition == holes.read.partition
        ):
            parts[-1] = parts[-1]._replace(end=holes.end)
        else:
            fetch_position.position = holes.end

    def has_bytes(self, positions: FetchPositions, state: State, wanted: int) -> bool:
        """Whether `wanted` bytes of runs follow the positions.  The first and last slice count in part."""
        for tp, fetch_position in positions.active(state).items():
            if fetch_position.paused or fetch_position.key not in state.partitions:
                continue
            position = self.position(state, tp, fetch_position)
            wanted -= bytes_after(state.partitions[fetch_position.key], position, wanted)
        return wanted <= 0

    def _joint(self, active: Sequence[tuple[TopicPartition, FetchPosition]], state: State) -> JointRead | None:
        """One read for partitions whose rest is small, as long as all of it is; None on a local disk.

        It is that of the last call as long as it has the records of the partition that comes first: a call that returns
        few records would request those of all partitions again.
        """
        if self._journal.objects.local:
            return None
        ranges, size = list[OffsetRange](), 0
        for tp, fetch_position in active:
            if fetch_position.paused or fetch_position.key not in state.partitions:
                continue
            rest = self._cursor(state, tp, fetch_position).rest(state)
            if rest is not None:
                size += bytes_after(state.partitions[fetch_position.key], rest.start, BLOCK_BYTES_MAX)
                if size > BLOCK_BYTES_MAX:
                    break
                ranges.append(rest)
        if not ranges or self._shared is None or not self._shared.has(ranges[0]):
            self._shared = JointRead(self._journal, ranges, self._rack) if len(ranges) > 1 else None
        return self._shared

    def _cursor(self, state: State, tp: TopicPartition, fetch_position: FetchPosition) -> Cursor:
        position = self.position(state, tp, fetch_position)
        if fetch_position.cursor is None:
            fetch_position.cursor = self._cursor_at(tp, fetch_position, position)
        return fetch_position.cursor

    def _cursor_at(self, tp: TopicPartition, fetch_position: FetchPosition, at: int) -> Cursor:
        return Cursor(self._journal, tp, fetch_position.key, at, self._waiter, self._rack, lambda: self._active)

    def _take_from(
        self, state: State, tp: TopicPartition, fetch_position: FetchPosition, rows: int, joint: JointRead | None
    ) -> Fetched | None:
        if fetch_position.paused or fetch_position.key not in state.partitions:
            return None
        cursor = self._cursor(state, tp, fetch_position)
        try:
            return cursor.take(state, rows, joint)
        except (DataLoss, UnknownTopicOrPartition):
            # Trimmed or deleted since the state was read: refresh it and continue from the first record that exists.
            fetch_position.cursor = self._cursor_at(tp, fetch_position, cursor.at)
            self._refresh()
            return None

    def position(self, state: State, tp: TopicPartition, fetch_position: FetchPosition) -> int:
        """The next offset to read in a partition.  If it is out of range, `auto_offset_reset` applies.

        An offset after the high watermark is not out of range: it waits for pending commits.
        """
        part = state.partitions.get(fetch_position.key)
        if part is None:
            raise UnknownTopicOrPartition(f"{tp.topic}-{tp.partition} was deleted")
        at = fetch_position.cursor.at if fetch_position.cursor is not None else fetch_position.position
        if at is None:
            at = self._committed(state, fetch_position)
        if at is not None and part.start <= at <= part.end:
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
            logger.warning("offset %d of %s-%d is out of range, it has %d to %d", at, *tp, part.start, part.end)
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
            f"offset {at} of {tp.topic}-{tp.partition} is out of range, it has {part.start} to {part.end}, and "
            "auto_offset_reset is 'none'; seek() to an offset in the range",
            start=part.start,
            end=part.end,
        )
