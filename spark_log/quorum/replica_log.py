"""The log of one replica in memory: entries behind a snapshot, with the epochs and the sets of voters in them.

Nothing here knows what is durable or committed: `core.py` does.  Offsets are half-open: `end` is the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice

from spark_log.quorum.messages import Entry, Kind, Position
from spark_log.quorum.voters import Voters, decode_voters


class ReplicaLog:
    """Entries from `start` on; `snapshot` is at `start` or later and covers everything before its offset.

    Entries before the snapshot are kept for followers that lack only a few.
    """

    def __init__(self, snapshot: Position, voters: Voters) -> None:
        self.reset(snapshot, voters)

    @classmethod
    def restore(cls, snapshot: Position, voters: Voters, entries: Iterable[Entry]) -> ReplicaLog:
        """From what a disk has.  Entries that do not contain the snapshot's position are dropped: the replica died
        after it received the snapshot, and before it deleted the log that the snapshot replaces.
        """
        log, found = cls(snapshot, voters), list(entries)
        if found and found[0].offset > snapshot.offset:
            raise AssertionError(f"the log begins at {found[0].offset}, behind the end of the snapshot {snapshot}")
        before = [entry.epoch for entry in found if entry.offset == snapshot.offset - 1]
        starts_there = bool(found) and found[0].offset == snapshot.offset
        if starts_there or before == [snapshot.epoch]:
            log.append(entry for entry in found if entry.offset >= snapshot.offset)
        return log

    def reset(self, snapshot: Position, voters: Voters) -> None:
        """Replace everything by a snapshot."""
        self.start = self.snapshot = snapshot
        self._entries: list[Entry] = []
        self._epochs = [snapshot.epoch]
        """Ascending, each with the offset at which it begins in `_epoch_starts`."""
        self._epoch_starts = [snapshot.offset]
        self._voters = [(snapshot.offset - 1, voters)]
        """Offset of the entry, and the voters from there on."""

    # ---------------------------------------------------------------------------------------------------------- reading

    @property
    def end(self) -> int:
        """Offset of the next entry: the log end offset."""
        return self.start.offset + len(self._entries)

    @property
    def position(self) -> Position:
        """The end of the log, for comparisons with others."""
        return Position(self._epochs[-1], self.end)

    @property
    def voters(self) -> Voters:
        """The set that is in force: the latest in the log, whether it is committed or not (KIP-853)."""
        return self._voters[-1][1]

    @property
    def voters_end(self) -> int:
        """The set of voters is committed if the high watermark is not below this offset."""
        return self._voters[-1][0] + 1

    @property
    def voters_before(self) -> Voters:
        """The set before the latest one; none if it is not known."""
        return self._voters[-2][1] if len(self._voters) > 1 else ()

    def voters_at(self, end: int) -> Voters:
        """The set that is in force before the offset `end`."""
        return next(voters for offset, voters in reversed(self._voters) if offset < end)

    def end_of_epoch(self, epoch: int) -> Position:
        """The largest epoch of the log that is not above `epoch`, and where it ends (KIP-101)."""
        index = bisect_right(self._epochs, epoch) - 1
        if index < 0:
            return self.start
        last = index + 1 == len(self._epochs)
        return Position(self._epochs[index], self.end if last else self._epoch_starts[index + 1])

    def epoch_before(self, offset: int) -> int:
        """The epoch of the entry before `offset`."""
        return self._entries[offset - self.start.offset - 1].epoch if offset > self.start.offset else self.start.epoch

    def position_at(self, end: int) -> Position:
        """The end of the part before an offset: names a snapshot."""
        return Position(self.epoch_before(end), end)

    def read(self, start: int, end: int) -> tuple[Entry, ...]:
        """The entries of a range of offsets."""
        return tuple(self._entries[start - self.start.offset : end - self.start.offset])

    def read_bytes(self, start: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `start` on with at most so many bytes of data, but at least one entry if there is any."""
        end, size = start, 0
        while end < self.end:
            size += len(self._entries[end - self.start.offset].data)
            if size > bytes_max and end > start:
                break
            end += 1
        return self.read(start, end)

    def size_from(self, start: int) -> int:
        """Bytes of data of the entries from `start` on."""
        return sum(len(entry.data) for entry in islice(self._entries, max(0, start - self.start.offset), None))

    # --------------------------------------------------------------------------------------------------------- changing

    def append(self, entries: Iterable[Entry]) -> None:
        """Add entries that follow the last one without a gap, in ascending epochs."""
        for entry in entries:
            if entry.offset != self.end or entry.epoch < self._epochs[-1]:
                raise AssertionError(f"entry {entry.offset} of epoch {entry.epoch} does not follow {self.position}")
            if entry.epoch > self._epochs[-1]:
                self._epochs.append(entry.epoch)
                self._epoch_starts.append(entry.offset)
            if entry.kind is Kind.VOTERS:
                self._voters.append((entry.offset, decode_voters(entry.data)))
            self._entries.append(entry)

    def truncate(self, end: int) -> None:
        """Remove the entries from `end` on, and what they changed."""
        del self._entries[end - self.start.offset :]
        while len(self._epochs) > 1 and self._epoch_starts[-1] >= end:
            del self._epochs[-1], self._epoch_starts[-1]
        while self._voters[-1][0] >= end:
            del self._voters[-1]

    def compact(self, end: int, keep_from: int) -> None:
        """A snapshot covers everything before `end`: forget the entries before `keep_from`, which is at most `end`."""
        self.snapshot = self.position_at(end)
        if keep_from <= self.start.offset:
            return
        start = self.position_at(keep_from)
        voters = self.voters_at(keep_from)
        later = [pair for pair in self._voters if pair[0] >= keep_from]
        epochs = [pair for pair in zip(self._epochs, self._epoch_starts, strict=True) if pair[1] >= keep_from]
        del self._entries[: keep_from - self.start.offset]
        self.start = start
        self._voters = [(keep_from - 1, voters), *later]
        self._epochs = [start.epoch, *(epoch for epoch, _ in epochs if epoch > start.epoch)]
        self._epoch_starts = [keep_from, *(first for epoch, first in epochs if epoch > start.epoch)]
