"""The disk of a replica: what survives a crash, and what waits for an fsync."""

from __future__ import annotations

from collections import deque
from random import Random

from spark_log.quorum.messages import EMPTY, Entry, Position, ReplicaKey
from spark_log.quorum.ready import Kept, Persist, Restored
from spark_log.quorum.voters import Voters

PARTS = 5
"""Parts of a write, each atomic: epoch and vote, chunk, reset, truncation, entries with the high watermark."""


class Disk:
    """Everything but `pending` is durable."""

    def __init__(self, key: ReplicaKey, voters: Voters) -> None:
        self.key = key
        self.epoch = 0
        self.voted: ReplicaKey | None = None
        self.snapshot, self.voters = EMPTY, voters
        self.snapshots = {EMPTY: b""}
        """The newest one, and an older one that is kept."""
        self.log: list[Entry] = []
        self.high_watermark = 0
        self.received = bytearray()
        """Bytes of a snapshot that is being fetched."""
        self.pending: deque[Persist] = deque()

    def restored(self) -> Restored:
        return Restored(
            epoch=self.epoch,
            voted=self.voted,
            snapshot=self.snapshot,
            voters=self.voters,
            entries=tuple(self.log),
            high_watermark=self.high_watermark,
        )

    @property
    def snapshot_data(self) -> bytes:
        return self.snapshots[self.snapshot]

    @property
    def position(self) -> Position:
        """The end of what is durable."""
        last = Position(self.log[-1].epoch, self.log[-1].offset + 1) if self.log else self.snapshot
        return last if last.offset >= self.snapshot.offset else self.snapshot

    def has(self, epoch: int, end: int) -> bool:
        """Whether everything before `end` is durable here, in a log whose last entry before it is of this epoch."""
        if self.snapshot.offset >= end:
            return True
        index = end - 1 - self.log[0].offset if self.log else -1
        return 0 <= index < len(self.log) and self.log[index].epoch == epoch

    # --------------------------------------------------------------------------------------------------------- changing

    def sync(self) -> int:
        """Make the first of the pending writes durable; its number."""
        persist = self.pending.popleft()
        for part in range(PARTS):
            self._apply(persist, part)
        return persist.number

    def crash(self, rng: Random) -> None:
        """The first pending writes may have survived, and some parts of the next."""
        for _ in range(rng.randint(0, len(self.pending))):
            self.sync()
        if self.pending:
            torn = self.pending.popleft()
            for part in range(rng.randrange(PARTS)):
                self._apply(torn, part)
        self.pending.clear()
        self.received.clear()

    def _apply(self, persist: Persist, part: int) -> None:
        if part == 0:
            self.epoch, self.voted = persist.epoch, persist.voted
        elif part == 1 and persist.chunk is not None:
            chunk = persist.chunk
            self.received[chunk.start :] = chunk.data
            if chunk.is_last and chunk.snapshot.offset > self.snapshot.offset:
                self.snapshot, self.voters = chunk.snapshot, chunk.voters
                self.snapshots = {chunk.snapshot: bytes(self.received)}
        elif part == 2 and persist.reset_to is not None:
            self.log.clear()
        elif part == 3 and persist.truncate_to is not None:
            end = persist.truncate_to
            self.log = [entry for entry in self.log if entry.offset < end]
        elif part == 4 and persist.entries:
            first, end = persist.entries[0].offset, self.log[-1].offset + 1 if self.log else self.snapshot.offset
            # A snapshot may cover entries that are not written yet.
            assert first == end or (not self.log and first < end), f"entry {first} is written at {end}"
            self.log += persist.entries
            self.high_watermark = persist.high_watermark

    def take_snapshot(self, snapshot: Position, data: bytes, voters: Voters) -> None:
        """The application's snapshot is durable.  `drop` follows."""
        self.snapshot, self.voters = snapshot, voters
        self.snapshots[snapshot] = data

    def drop(self, kept: Kept) -> None:
        """Delete older snapshots and entries, but for those that are kept."""
        self.snapshots = {one: data for one, data in self.snapshots.items() if one in (self.snapshot, kept.older)}
        self.log = [entry for entry in self.log if entry.offset >= kept.keep_from]
