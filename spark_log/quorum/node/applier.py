"""Gives committed entries to the application, one after another, and makes snapshots of its state."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from spark_log.quorum.messages import Entry, Kind, Position
from spark_log.quorum.node.disk import Disk
from spark_log.runtime.daemon_threads import DaemonThreads

TURN_S = 0.02
"""How long entries are applied before the event loop has another turn."""


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

    def __init__(
        self,
        state: StateMachine,
        disk: Disk,
        threads: DaemonThreads,
        applied: Callable[[Entry], None],
        monotonic_s: Callable[[], float],
    ) -> None:
        """
        threads:  restore snapshots.
        applied:  called for each entry, also those without data.
        """
        self.end = 0
        """Offset of the next entry for the application."""
        self.bytes = 0
        """Bytes of the entries since the last snapshot."""
        self.restored: Callable[[int], None] = lambda end: None
        """Called when a snapshot replaced the state."""
        self._state = state
        self._disk = disk
        self._threads = threads
        self._applied = applied
        self._monotonic_s = monotonic_s
        self._work: deque[Work] = deque()
        self._filled = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """Offsets that have to be reached."""
        self._error: Exception | None = None
        """After `give_up`."""

    def give(self, restore: Position | None, committed: tuple[Entry, ...]) -> None:
        if restore is not None or committed:
            self._work.append(Work(restore, committed))
            self._filled.set()

    async def run(self) -> None:
        """Until it is cancelled.  Raises the errors of the application."""
        has_state = True
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._work:
                restore, committed = self._work.popleft()
                if restore is not None:
                    has_state = await self.restore(restore)
                if has_state:  # otherwise a newer snapshot follows, which has these entries
                    await self._apply_all(committed)

    async def _apply_all(self, committed: tuple[Entry, ...]) -> None:
        """After a restart there may be many: messages and timers are handled in between."""
        begun_s = self._monotonic_s()
        for entry in committed:
            self._apply(entry)
            if self._monotonic_s() - begun_s > TURN_S:
                self._notify()
                await asyncio.sleep(0)
                begun_s = self._monotonic_s()
        self._notify()

    def _apply(self, entry: Entry) -> None:
        if entry.kind is Kind.DATA:
            self._state.apply(entry.offset, entry.data)
            self.bytes += len(entry.data)
        self.end = entry.offset + 1
        self._applied(entry)

    async def restore(self, snapshot: Position) -> bool:
        """False if a newer snapshot has replaced this one meanwhile: then that one follows."""
        try:
            await self._threads.submit(self._restore, snapshot)
        except FileNotFoundError:
            return False
        self.end, self.bytes = snapshot.offset, 0
        self.restored(snapshot.offset)
        return True

    def _restore(self, snapshot: Position) -> None:
        self._state.restore(self._disk.read_state(snapshot))

    async def reached(self, end: int) -> None:
        """Wait until all entries before an offset are applied.  Raises the error of `give_up`, which may come first."""
        if self._error is not None:
            raise self._error
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, future))
        self._notify()
        await future

    def _notify(self) -> None:
        for end, future in self._waiting:
            if end <= self.end and not future.done():
                future.set_result(None)
        self._waiting = [one for one in self._waiting if not one[1].done()]

    def give_up(self, error: Exception) -> None:
        """Nothing is applied any more."""
        self._error = error
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)

    def snapshot(self) -> Iterable[bytes]:
        """The state after the entries before `end`."""
        self.bytes = 0
        return self._state.snapshot()
