"""Results of other threads on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class ThreadResults:
    """Passes results from other threads to the event loop, and wakes it once for several results."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._landed: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._called = False

    def of(self, found: Future[Result]) -> asyncio.Future[Result]:
        """A future on the event loop that is done soon after `found`."""
        answer: asyncio.Future[Result] = self._loop.create_future()
        found.add_done_callback(lambda done: self._on_done(answer, done))
        return answer

    def _on_done(self, answer: asyncio.Future[Any], done: Future[Any]) -> None:
        self._landed.append((answer, done))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._called = False  # before reading: results that arrive from now on call again
        while self._landed:
            answer, done = self._landed.popleft()
            if answer.done():
                continue  # the client has hung up
            if (error := done.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())
