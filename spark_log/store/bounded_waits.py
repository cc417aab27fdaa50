"""Calls to the storage or a coordinator that may take longer than their caller waits.

A read from a bucket that hangs fails after minutes, and nothing can break it off.  So it runs in a thread of its own: a poll whose
time is over leaves it there, and a later one takes its answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Unfinished(Exception):
    """The time is over, and the call goes on.  It never leaves the consumer."""


class Slot(Generic[Result]):
    """Holds one call, from its start until its answer was taken."""

    def __init__(self, *, direct: bool = False) -> None:
        """
        direct:  calls take microseconds, and run in the caller's thread.
        """
        self._direct = direct
        self._call: _Call[Result] | None = None

    def answer(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """The answer of the call that is under way, or else of a new one.  Raises Unfinished, or what the call raised."""
        if self._direct:
            return function()
        if self._call is None or self._call.pid != os.getpid():  # a parent's thread does not run in its child
            self._call = _Call(function)
        call = self._call
        if not call.ended.wait(min(timeout_s, threading.TIMEOUT_MAX)):
            raise Unfinished
        self._call = None
        return call.result()


class _Call(Generic[Result]):
    def __init__(self, function: Callable[[], Result]) -> None:
        self.pid = os.getpid()
        self.ended = threading.Event()
        self._function = function
        self._error: BaseException | None = None
        # Not of a pool: Python would wait for it at the end of the process.
        threading.Thread(target=self._run, name="pylog-read", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001  raised where the answer is taken
            self._error = error
        self.ended.set()

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._result


class Waiter:
    """How long the calls of one consumer are waited for."""

    def __init__(self) -> None:
        self._end = float("inf")

    @contextmanager
    def within(self, milliseconds: float) -> Iterator[None]:
        """Calls that are made within have so long, together."""
        self._end = time.monotonic() + milliseconds / 1000
        try:
            yield
        finally:
            self._end = float("inf")

    def answer(self, slot: Slot[Result], function: Callable[[], Result]) -> Result:
        """Raises Unfinished when the time is over."""
        return slot.answer(function, max(0.0, self._end - time.monotonic()))
