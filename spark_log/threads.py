"""Threads, locks and events behind protocols: in the simulation the seed decides which thread runs."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Lock(Protocol):
    """`threading.Lock` or `threading.RLock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class WaitCondition(Protocol):
    """`threading.Condition`; wait and notify with its lock held."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify(self) -> None: ...

    def notify_all(self) -> None: ...


class Event(Protocol):
    """`threading.Event`."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    """A `threading.Thread` that has been started."""

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


class Threads(Protocol):
    """A factory of threads and their primitives."""

    def lock(self) -> Lock: ...

    def reentrant_lock(self) -> Lock: ...

    def condition(self, lock: Lock) -> WaitCondition: ...

    def event(self) -> Event: ...

    def start(self, work: Callable[[], None], name: str) -> Thread:
        """Start a daemon thread."""

    def is_current(self, thread: Thread) -> bool:
        """Whether the caller runs in this thread."""


class SystemThreads:
    """The system's threads."""

    def lock(self) -> Lock:
        return threading.Lock()

    def reentrant_lock(self) -> Lock:
        return threading.RLock()

    def condition(self, lock: Lock) -> WaitCondition:
        return threading.Condition(lock)  # type: ignore[arg-type]  # any lock will do

    def event(self) -> Event:
        return threading.Event()

    def start(self, work: Callable[[], None], name: str) -> Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def is_current(self, thread: Thread) -> bool:
        return thread is threading.current_thread()


SYSTEM_THREADS = SystemThreads()


def at_exit(work: Callable[[], None]) -> None:
    """Call `work` before the process ends; what was registered last is called first.

    Functions of `atexit` run after the thread pools of remote storage have been closed.
    """
    getattr(threading, "_register_atexit", atexit.register)(work)
