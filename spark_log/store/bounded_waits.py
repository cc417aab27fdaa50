"""Calls to the storage or a coordinator that may take longer than their caller waits.

A read from a hung bucket fails only after minutes and cannot be cancelled.  So it runs in a separate thread: a poll
that times out leaves it running, and a later poll takes its answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from spark_log.runtime.daemon_tasks import Task

CALLS_MAX = 8
"""The most calls of one consumer that may run after their timeout, including those whose answer is discarded."""

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

    def answer(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """The answer of the call in progress, or else of a new one.  Without time left, no new call begins.

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
        call.end_within(timeout_s)
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

    def end_within(self, seconds: float) -> None:
        """Raises Unfinished."""
        if not self.wait(min(seconds, threading.TIMEOUT_MAX)):
            raise Unfinished


class Waiter:
    """Limits how long one consumer waits for its calls."""

    def __init__(self) -> None:
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
            return slot.answer(function, self._end - time.monotonic())
        except Unfinished:
            if slot.call is not None and slot.call not in self._late:
                self._late.append(slot.call)
            raise

    def _make_room(self) -> None:
        """At CALLS_MAX late calls, wait for the oldest.  Raises Unfinished."""
        self._late = [call for call in self._late if call.running]
        if len(self._late) >= CALLS_MAX:
            self._late[0].end_within(self._end - time.monotonic())
