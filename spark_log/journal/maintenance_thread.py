"""The thread in which a journal runs its maintenance, so that commits do not wait for it.

There is at most one, however slow the storage is.  It is a daemon, and the end of the process waits for it: otherwise
processes that commit a little and exit would never write a checkpoint.  A process that commits much faster than its
maintenance is slowed down: otherwise the log would take longer and longer to open.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakSet

from spark_log.errors import SparkLogError
from spark_log.log_lines import logger
from spark_log.runtime.clock import Clock
from spark_log.runtime.threads import Thread, Threads, at_exit

RETRY_MS = 10_000
"""Minimum time before a later commit retries failed maintenance."""
PASSED_MAX = 1000
"""A commit waits for maintenance that so many commits have passed,"""
PASSED_WAIT_S = 0.1
"""for this long at most: the storage may hang."""
WAIT_S = 60.0
"""Maximum time that the end of a process waits for its maintenance, of however many logs."""


class MaintenanceThread:
    """Runs `work`, one at a time.  Its errors are logged, and the work is tried again later."""

    def __init__(self, work: Callable[[], None], threads: Threads, clock: Clock, url: str) -> None:
        """Also in a forked child, which inherits no thread, and no lock in a known state."""
        self._work, self._threads, self._clock, self._url = work, threads, clock, url
        self._turn = threads.lock()
        """Held while the work runs, by the thread that runs it: a caller may be interrupted at any time (Ctrl-C)."""
        self._starting = threads.lock()
        self._thread: Thread | None = None
        self._start_from = 0.0
        """On the monotonic clock."""
        self._passed = 0
        """Calls of `start` since the work began."""

    def start(self) -> None:
        """Start the work unless it is running, or has failed a short time ago."""
        with self._starting:
            is_running = self._thread is not None and self._thread.is_alive()
            if not is_running and self._is_time():
                self._start_thread()
                return
            self._passed += 1
        if self._passed > PASSED_MAX:
            self.join(PASSED_WAIT_S)

    def _start_thread(self) -> None:
        self._passed = 0
        _running.add(self)
        try:
            self._thread = self._threads.start(self._run, "pylog-maintenance")
        except RuntimeError:  # the interpreter is ending, or the process has as many threads as it may have
            self._run()

    def run(self) -> None:
        """Does the work in the caller's thread, after the work that is running."""
        if self._is_time():
            self._run()

    def join(self, timeout: float = WAIT_S) -> None:
        """Wait until the thread has ended, if there is one."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _is_time(self) -> bool:
        return self._clock.monotonic_ms() >= self._start_from

    def _run(self) -> None:
        try:
            with self._turn:
                self._work()
        except Exception as error:
            self._start_from = self._clock.monotonic_ms() + RETRY_MS
            if isinstance(error, SparkLogError):
                logger.warning("maintenance of %s was put off: %s", self._url, error)
            else:
                logger.exception("maintenance of %s failed; a later commit retries", self._url)


_running: WeakSet[MaintenanceThread] = WeakSet()
"""Those that have started their thread."""


def _join_all() -> None:
    deadline = time.monotonic() + WAIT_S
    for maintenance in tuple(_running):
        maintenance.join(max(0, deadline - time.monotonic()))


at_exit(_join_all)
