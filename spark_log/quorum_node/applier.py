"""Gives committed entries to the application, one after another, and makes snapshots of its state."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from spark_log.quorum.messages import Entry, Kind, Position
from spark_log.quorum_node.disk import Disk


class StateMachine(Protocol):
    """The application.  All nodes call `apply` with the same entries in the same order."""

    def apply(self, index: int, data: bytes) -> None:
        """An entry is final.  Called on the event loop: it must not wait.  An error stops the node."""

    def snapshot(self) -> Iterable[bytes]:
        """The present state, in pieces of any size.  Called on the event loop; the pieces are made in another thread
        while entries are applied, so they must not change.
        """

    def restore(self, pieces: Iterator[bytes]) -> None:
        """Replace the state by that of a snapshot.  Called in another thread while nothing is applied."""


class Work(NamedTuple):
    """In this order."""

    restore: Position | None
    committed: tuple[Entry, ...]


class Applier:
    """Runs in a task.  A snapshot that is being restored delays entries, and not the replica."""

    def __init__(self, state: StateMachine, disk: Disk, applied: Callable[[Entry], None]) -> None:
        """
        applied:  called for each entry, also those without data.
        """
        self.end = 0
        """Offset of the next entry for the application."""
        self.bytes = 0
        """Of the entries since the last snapshot."""
        self.restored: Callable[[int], None] = lambda end: None
        """Called when a snapshot replaced the state."""
        self._state = state
        self._disk = disk
        self._applied = applied
        self._work: deque[Work] = deque()
        self._filled = asyncio.Event()
        self._changed = asyncio.Condition()

    def give(self, restore: Position | None, committed: tuple[Entry, ...]) -> None:
        if restore is not None or committed:
            self._work.append(Work(restore, committed))
            self._filled.set()

    async def run(self) -> None:
        """Until it is cancelled.  Raises the errors of the application."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._work:
                restore, committed = self._work.popleft()
                if restore is not None:
                    await self.restore(restore)
                for entry in committed:
                    self._apply(entry)
                async with self._changed:
                    self._changed.notify_all()

    def _apply(self, entry: Entry) -> None:
        if entry.kind is Kind.DATA:
            self._state.apply(entry.offset, entry.data)
            self.bytes += len(entry.data)
        self.end = entry.offset + 1
        self._applied(entry)

    async def restore(self, snapshot: Position) -> None:
        """Nothing, if a newer snapshot has replaced this one meanwhile: then that one follows."""
        try:
            await asyncio.to_thread(lambda: self._state.restore(self._disk.read_state(snapshot)))
        except FileNotFoundError:
            return
        self.end, self.bytes = snapshot.offset, 0
        self.restored(snapshot.offset)

    async def reached(self, end: int) -> None:
        """Wait until all entries before an offset are applied."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.end >= end)

    def snapshot(self) -> Iterable[bytes]:
        """The state after the entries before `end`."""
        self.bytes = 0
        return self._state.snapshot()
