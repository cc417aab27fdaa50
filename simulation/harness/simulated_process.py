"""The event loop, the threads and the files of one simulated process, which may crash, hang, and be stopped."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, Protocol

from simulation.harness.crash_files import Crash, CrashFiles
from spark_log.errors import NoSpace


class Schedule(Protocol):
    """Makes time pass."""

    now: int
    """Milliseconds."""

    def call(self, delay: int, function: Callable[[], None]) -> None: ...


class ProcessLoop:
    """The event loop of a process, as much of one as coroutines use.

    All that is ready runs at one moment; a timer is a call of the schedule.
    """

    def __init__(self, schedule: Schedule, failed: Callable[[BaseException], None], ahead_ms: int = 0) -> None:
        """
        failed:    called with an error that nobody handles.
        ahead_ms:  of the monotonic clock, against the schedule.
        """
        self._schedule, self._failed, self._ahead_ms = schedule, failed, ahead_ms
        self._loop: Any = self
        """For asyncio, which expects its own class."""
        self.is_dead = self.is_stopped = False
        self.after_run: Callable[[], None] = lambda: None
        self.shuffle: Callable[[list[asyncio.Handle]], None] = lambda held: None
        """The order in which a process that was stopped finds timers and what has arrived."""
        self._held: list[asyncio.Handle] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._is_due = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they began."""

    # ----------------------------------------------------------------------------------------------------- the schedule

    def time(self) -> float:
        return (self._schedule.now + self._ahead_ms) / 1000

    def stop_process(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True

    def continue_process(self) -> None:
        self.is_stopped, held, self._held = False, self._held, []
        self.shuffle(held)
        self._ready.extend(held)
        self._wake()

    def kill(self) -> None:
        """Nothing of it runs any more."""
        self.is_dead = True
        self._ready.clear()
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                _close(task)
        self._tasks.clear()

    def _wake(self) -> None:
        if not (self._is_due or self.is_stopped or self.is_dead) and self._ready:
            self._is_due = True
            self._schedule.call(0, self._run)

    def _run(self) -> None:
        self._is_due = False
        if self.is_dead or self.is_stopped:
            return
        asyncio._set_running_loop(self._loop)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        self.after_run()

    # ------------------------------------------------------------------------------------------------------ for asyncio

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._add(handle)
        return handle

    call_soon_threadsafe = call_soon

    def post(self, function: Callable[[], object]) -> None:
        self.call_soon(function)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._loop, context)
        self._schedule.call(max(0, math.ceil((when - self.time()) * 1000)), partial(self._add, handle))
        return handle

    def _add(self, handle: asyncio.Handle) -> None:
        if self.is_dead or handle.cancelled():
            return
        (self._held if self.is_stopped else self._ready).append(handle)
        self._wake()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._loop)

    def create_task(self, coro: Coroutine[Any, Any, Any], **values: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self._loop, **values)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._failed(context.get("exception") or AssertionError(context.get("message")))

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Nothing arrives."""

    def remove_reader(self, fd: Any) -> bool:
        return True

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left out when it is due."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.is_dead


def _close(task: asyncio.Task[Any]) -> None:
    """Run nothing of it but what must not be left to the garbage collector, whose moment is not drawn from the seed."""
    coroutine = task.get_coro()
    if coroutine is not None:
        with suppress(RuntimeError, SystemError):  # it waits in a `finally`
            coroutine.close()


class SimulatedThreads:
    """Stands for `DaemonThreads`: work that takes some time, one after another if there is one thread."""

    def __init__(self, loop: ProcessLoop, schedule: Schedule, count: int, delay: Callable[[], int]) -> None:
        """
        delay:  how long the next work takes, in milliseconds.
        """
        self._loop, self._schedule, self._free, self._delay = loop, schedule, count, delay
        self.waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        """Work that has not begun."""
        self._busy = 0
        self._is_closed = False

    @property
    def is_alive(self) -> bool:
        return self._busy > 0 or not self._is_closed

    def submit(self, function: Callable[..., Any], *values: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        if self._is_closed:
            future.cancel()
        else:
            self.waiting.append((partial(function, *values), future))
            self._begin()
        return future

    def close(self) -> None:
        self._is_closed = True
        while self.waiting:
            self.waiting.popleft()[1].cancel()

    def _begin(self) -> None:
        if self._free and len(self.waiting) > self._busy:
            self._free, self._busy = self._free - 1, self._busy + 1
            self._schedule.call(self._delay(), self._do)

    def _do(self) -> None:
        """The work takes effect, and its result is known a moment later."""
        if self._loop.is_dead:
            return
        self._free, self._busy = self._free + 1, self._busy - 1
        if not self.waiting:
            return
        work, future = self.waiting.popleft()
        try:
            found, error = work(), None
        except Exception as raised:  # noqa: BLE001  raised by the future
            found, error = None, raised
        self._begin()
        self._schedule.call(1, lambda: self._loop.post(partial(_resolve, future, found, error)))


def _resolve(future: asyncio.Future[Any], found: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(found)
    else:
        future.set_exception(error)


class Crashed(BaseException):
    """The process was killed in the middle of a write."""


class _Operations(list[Any]):
    """Forgets operations, and ends the process before one of them."""

    left: int | None = None

    def append(self, operation: Any) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crashed


class SimulatedFiles(CrashFiles):
    """A disk, which may be full, and which a crash leaves in any state that is possible."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self._operations = _Operations()
        self.is_full = False

    def append(self, name: str, data: bytes) -> None:
        if self.is_full:
            super().append(name, data[: len(data) // 2])
            raise NoSpace(f"{name}: no space left on the simulated disk")
        super().append(name, data)

    def die_before(self, operation: int | None) -> None:
        """Raise Crashed before the operation with this number, from 0; None: before none."""
        self._operations.left = operation

    def crash(self, rng: Random, work: Callable[[], Any] | None) -> None:
        """
        work:  what the disk's thread was about to do; a part of it may be done.
        """
        if work is not None and rng.random() < 0.5:
            self.die_before(rng.randrange(6))
            try:
                work()
            except (Crashed, NoSpace):
                pass
            finally:
                self.die_before(None)
        self._crash(rng.choice(list(Crash)))

    def close(self) -> None:
        """Nothing is open."""
