"""Calls to the storage or a coordinator that may take longer than their caller waits.

A read from a hung bucket fails only after minutes and cannot be cancelled.  So it runs in a separate thread: a poll
that times out leaves it running, and a later poll takes its answer.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from spark_log.runtime.daemon_tasks import Task

CALLS_MAX = 8
"""The most calls of one consumer that may run after their timeout, including those whose answer is discarded."""
STOP_S = 0.02
"""How soon a wait ends after its consumer was stopped."""

Result = TypeVar("Result")


class Unfinished(Exception):
    """The call has not finished in time and is still running.  The consumer catches it."""


class Slot(Generic[Result]):
    """Holds one call, from its start until its answer is taken."""

    def __init__(self, *, direct: bool = False) -> None:
        """
        direct:  run calls in the caller's thread, because they take microseconds.
        """
        self._direct = direct
        self.call: _Call[Result] | None = None

    @property
    def is_free(self) -> bool:
        return self.call is None or self.call.pid != os.getpid()  # the parent's thread does not exist in a forked child

    def discard(self) -> None:
        """Let the call run, and ignore its answer: it began too early."""
        self.call = None

    def answer(
        self, function: Callable[[], Result], timeout_s: float, is_stopped: Callable[[], bool] | None = None
    ) -> Result:
        """The answer of the call in progress, or else of a new one.  Without time left, no new call begins.

        is_stopped:  ends the wait before the timeout.
        Raises Unfinished, or the call's exception.
        """
        if self._direct:
            return function()
        if self.is_free:
            if timeout_s <= 0:
                raise Unfinished
            self.call = _Call(function)
        call = self.call
        assert call is not None, "it has just begun, or was in progress"
        call.end_within(timeout_s, is_stopped)
        self.call = None
        return call.result()


class _Call(Task[Result]):
    """Not in a pool: Python waits for pool threads at exit."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self.pid = os.getpid()
        super().__init__(function, "pylog-read")

    @property
    def running(self) -> bool:
        return self.pid == os.getpid() and not self.ended

    def end_within(self, seconds: float, is_stopped: Callable[[], bool] | None = None) -> None:
        """Raises Unfinished."""
        until_s, most_s = time.monotonic() + seconds, threading.TIMEOUT_MAX if is_stopped is None else STOP_S
        while not self.wait(min(until_s - time.monotonic(), most_s)):
            if time.monotonic() >= until_s or (is_stopped is not None and is_stopped()):
                raise Unfinished


class Waiter:
    """Limits how long one consumer waits for its calls."""

    def __init__(self, is_stopped: Callable[[], bool] | None = None) -> None:
        """is_stopped:  whether calls in a block with a limit are not waited for any more."""
        self._is_stopped = is_stopped
        self._end = float("inf")
        self._late: list[_Call[Any]] = []
        """Calls that were still running after their timeout."""

    @contextmanager
    def within(self, milliseconds: float) -> Iterator[None]:
        """Calls in this block share this much time; `math.inf` for no limit, also inside of another block."""
        before, self._end = self._end, time.monotonic() + milliseconds / 1000
        try:
            yield
        finally:
            self._end = before

    def answer(self, slot: Slot[Result], function: Callable[[], Result]) -> Result:
        """The call's answer.  Raises Unfinished after the block's time."""
        if slot.is_free:
            self._make_room()
        try:
            is_stopped = None if self._end == math.inf else self._is_stopped
            return slot.answer(function, self._end - time.monotonic(), is_stopped)
        except Unfinished:
            if slot.call is not None and slot.call not in self._late:
                self._late.append(slot.call)
            raise

    def _make_room(self) -> None:
        """At CALLS_MAX late calls, wait for the oldest.  Raises Unfinished."""
        self._late = [call for call in self._late if call.running]
        if len(self._late) >= CALLS_MAX:
            self._late[0].end_within(self._end - time.monotonic())
