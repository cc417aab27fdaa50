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
from typing import Generic, TypeVar

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
        self._call: _Call[Result] | None = None

    def answer(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """The answer of the call in progress, or else of a new one.  Raises Unfinished, or the call's exception."""
        if self._direct:
            return function()
        if self._call is None or self._call.pid != os.getpid():  # the parent's thread does not exist in a forked child
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
        # Not in a pool: Python waits for pool threads at exit.
        threading.Thread(target=self._run, name="pylog-read", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001  raised by `result`
            self._error = error
        self.ended.set()

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._result


class Waiter:
    """Limits how long one consumer waits for its calls."""

    def __init__(self) -> None:
        self._end = float("inf")

    @contextmanager
    def within(self, milliseconds: float) -> Iterator[None]:
        """Calls in this block share this much time."""
        self._end = time.monotonic() + milliseconds / 1000
        try:
            yield
        finally:
            self._end = float("inf")

    def answer(self, slot: Slot[Result], function: Callable[[], Result]) -> Result:
        """The call's answer.  Raises Unfinished after the block's time."""
        return slot.answer(function, max(0.0, self._end - time.monotonic()))
