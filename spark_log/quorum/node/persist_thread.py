"""The thread that makes writes durable, and which of the waiting writes go to the disk together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from spark_log.errors import NoSpace
from spark_log.log_lines import logger
from spark_log.quorum.node.disk import Disk
from spark_log.quorum.ready import Persist
from spark_log.runtime.clock import Clock
from spark_log.runtime.daemon_threads import DaemonThreads

RETRY_S = 1.0
"""Between attempts to write on a full disk."""
TOGETHER_BYTES = 4 << 20
"""Bytes of data in a unit, unless one write has more."""


class PersistThread:
    """Runs on the event loop, beside the thread."""

    def __init__(
        self,
        disk: Disk,
        thread: DaemonThreads,
        clock: Clock,
        *,
        persisted: Callable[[int], None],
        full: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """
        thread:     one, for all that the disk does but snapshots.
        persisted:  called with the number of a write that is durable, with all before it.
        full:       called when the disk has no space.
        failed:     called with an error that is final.
        """
        self.thread = thread
        self.is_full = False
        self.writes = self.ms_sum = self.ms_max = 0
        self._disk, self._clock = disk, clock
        self._persisted, self._full, self._failed = persisted, full, failed
        self._waiting: deque[Persist] = deque()
        self._begun_ms: int | None = None
        self._is_closed = False

    @property
    def writing_ms(self) -> int:
        """Since the write that is under way began; 0: none is."""
        return 0 if self._begun_ms is None else self._clock.monotonic_ms() - self._begun_ms

    def write(self, persist: Persist) -> None:
        self._waiting.append(persist)
        if self._begun_ms is None:
            self._begin(take_write(self._waiting))

    def _begin(self, persist: Persist) -> None:
        if self._is_closed:
            return
        self._begun_ms = self._clock.monotonic_ms() if self._begun_ms is None else self._begun_ms
        writing = self.thread.submit(self._disk.write, persist)
        writing.add_done_callback(lambda done: self._written(persist, done))

    def _written(self, persist: Persist, done: asyncio.Future[None]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, NoSpace):
            if not self.is_full:
                logger.error("%s; this node does not lead until there is space", error)
            self.is_full = True
            self._full()
            asyncio.get_running_loop().call_later(RETRY_S, self._begin, persist)
        elif error is not None:
            self._failed(error)
        else:
            took_ms = self.writing_ms
            self.writes, self.ms_sum, self.ms_max = self.writes + 1, self.ms_sum + took_ms, max(self.ms_max, took_ms)
            self.is_full, self._begun_ms = False, None
            self._persisted(persist.number)
            if self._waiting and self._begun_ms is None:
                self._begin(take_write(self._waiting))

    def close(self) -> None:
        """A write that is under way ends; none is begun."""
        self._is_closed = True
        self._waiting.clear()
        self.thread.close()


def take_write(waiting: deque[Persist]) -> Persist:
    """Remove the first write from `waiting`, with those behind it that only add entries.

    Entries that were appended while the disk was busy then share an fsync.  A crash may leave all of them or none,
    which are states that it may leave of separate writes as well.
    """
    first = waiting.popleft()
    entries, size = list(first.entries), _size(first)
    last = first
    while waiting and _only_adds(waiting[0], first) and size + _size(waiting[0]) <= TOGETHER_BYTES:
        last = waiting.popleft()
        entries += last.entries
        size += _size(last)
    return replace(first, number=last.number, entries=tuple(entries), high_watermark=last.high_watermark)


def _size(persist: Persist) -> int:
    return sum(len(entry.data) for entry in persist.entries)


def _only_adds(persist: Persist, first: Persist) -> bool:
    """Not if there is an epoch, a vote or a chunk to write: their order counts."""
    is_plain = persist.chunk is None and persist.reset_to is None and persist.truncate_to is None
    return is_plain and (persist.epoch, persist.voted) == (first.epoch, first.voted) and first.chunk is None
