"""Threads for disks and storages.  They are daemons: one that hangs does not delay the end of the process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from spark_log.runtime.threads import SYSTEM_THREADS, Thread

Result = TypeVar("Result")
_Work = tuple[Callable[[], Any], "Future[Any]"]


class DaemonThreads:
    """Belongs to one event loop, which waits for the results."""

    def __init__(self, count: int, name: str) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        """None ends a thread."""
        self._name = name
        self._threads: list[Thread] = []
        self._is_closed = False
        self.grow(count)

    def grow(self, count: int) -> None:
        """Have at least so many threads."""
        for number in range(len(self._threads), count):
            self._threads.append(SYSTEM_THREADS.start(self._run, f"{self._name}-{number}"))

    def submit(self, function: Callable[..., Result], *values: Any) -> asyncio.Future[Result]:
        """The result, when a thread has called the function; cancelled if the threads are closed first."""
        future: Future[Result] = Future()
        if self._is_closed:
            future.cancel()
        else:
            self._queue.put((partial(function, *values), future))
        return asyncio.wrap_future(future)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            _call(*work)
            del work  # not kept until the next one

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Calls that are under way end; none is begun."""
        self._is_closed = True
        while (work := self._next()) is not None:
            work[1].cancel()
        for _ in self._threads:
            self._queue.put(None)

    def _next(self) -> _Work | None:
        try:
            return self._queue.get_nowait()
        except Empty:
            return None


def _call(function: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001  raised by the future
        future.set_exception(error)
    else:
        future.set_result(result)


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
