"""Threads of a simulated process, and locks, conditions and events between them.

A thread that waits yields to the world repeatedly, and taking a lock yields now and then.  Nothing here is guarded: one
thread runs at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from simulation.log_sim.world import World
from spark_log.journal.store_operations import Steps
from spark_log.runtime.threads import Event, Lock, Thread, WaitCondition

WAITS_MS = (1, 5, 20)
"""How long a waiting thread sleeps before it checks again."""
P_SWITCH = 0.1
"""How often another thread runs before a lock is taken."""


class Process(Protocol):
    """A process, as far as its threads need it."""

    world: World

    def here(self) -> object: ...

    def sleep_ms(self, milliseconds: float) -> None: ...

    def steps(self, work: Callable[[], None]) -> Steps[None]: ...

    def start(self, work: Callable[[], None]) -> SimulatedThread: ...


def _wait(process: Process, true: Callable[[], bool], timeout: float | None) -> bool:
    """Let others run until `true` returns True; False if `timeout` seconds pass first.

    After the process has died, nothing is waited for: the interpreter closes producers at its end.
    """
    end = math.inf if timeout is None else process.world.now + 1000 * timeout
    while not true() and process.here() is not None:
        if process.world.now >= end:
            return False
        process.sleep_ms(process.world.rng.choice(WAITS_MS))
    return True


class SimulatedThread:
    """Runs as an actor until its work is done or its process dies."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.done = False
        self.here: object = None
        self._process = process

        def run() -> None:
            self.here = process.here()
            try:
                work()
            finally:
                self.done = True

        self._actor = process.world.start_thread(lambda: process.steps(run))

    def kill(self) -> None:
        self._process.world.end(self._actor)
        self.done = True

    def is_alive(self) -> bool:
        return not self.done

    def join(self, timeout: float | None = None) -> None:
        _wait(self._process, lambda: self.done, timeout)


class SimulatedLock:
    """Held by one thread; a reentrant lock may be held several times."""

    def __init__(self, process: Process, reentrant: bool) -> None:
        self._process, self._reentrant = process, reentrant
        self._holder: object = None
        self._times = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = self._process.here()
        if self._reentrant and self._times and self._holder is here:
            self._times += 1
            return True
        if here is not None and self._process.world.rng.random() < P_SWITCH:
            self._process.sleep_ms(0)
        seconds = 0 if not blocking else None if timeout < 0 else timeout
        if not _wait(self._process, lambda: not self._times, seconds):
            return False
        self._holder, self._times = here, 1
        return True

    def release(self) -> None:
        self._times -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class SimulatedCondition:
    """Wakes waiting threads in the order of arrival."""

    def __init__(self, process: Process, lock: Lock) -> None:
        self._process, self._lock = process, lock
        self._waiting: list[SimulatedEvent] = []

    def wait(self, timeout: float | None = None) -> bool:
        woken = SimulatedEvent(self._process)
        self._waiting.append(woken)
        self._lock.release()
        try:
            return woken.wait(timeout)
        finally:
            self._waiting = [one for one in self._waiting if one is not woken]
            self._lock.acquire()

    def notify(self) -> None:
        for woken in self._waiting[:1]:
            self._waiting.remove(woken)
            woken.set()

    def notify_all(self) -> None:
        while self._waiting:
            self.notify()


class SimulatedEvent:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        return _wait(self._process, self.is_set, timeout)


class SimulatedThreads:
    """`Threads` of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def lock(self) -> Lock:
        return SimulatedLock(self._process, reentrant=False)

    def reentrant_lock(self) -> Lock:
        return SimulatedLock(self._process, reentrant=True)

    def condition(self, lock: Lock) -> WaitCondition:
        return SimulatedCondition(self._process, lock)

    def event(self) -> Event:
        return SimulatedEvent(self._process)

    def start(self, work: Callable[[], None], name: str) -> Thread:
        return self._process.start(work)

    def is_current(self, thread: Thread) -> bool:
        return isinstance(thread, SimulatedThread) and thread.here is self._process.here()
