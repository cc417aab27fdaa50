"""Threads for disks and storages.  They are daemons: one that hangs does not delay the end of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from spark_log.threads import SYSTEM_THREADS

Result = TypeVar("Result")
_Work = tuple[Callable[[], Any], "Future[Any]"]


class DaemonThreads:
    """Belongs to one event loop, which waits for the results."""

    def __init__(self, count: int, name: str) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        """None ends a thread."""
        self._threads = [SYSTEM_THREADS.start(self._run, f"{name}-{number}") for number in range(count)]
        self._is_closed = False

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
