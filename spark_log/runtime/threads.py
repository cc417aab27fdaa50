"""Threads, locks and events behind protocols: in the simulation the seed decides which thread runs.

Also threads that run one job after the other.
"""

from __future__ import annotations

import atexit
import math
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
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


IDLE_S = 10.0
"""A thread without a job ends after this time."""


class ReusedThreads:
    """Daemon threads for jobs that may hang.  Thread-safe.

    A thread takes the next job when one has ended; to begin a new thread takes tens of microseconds of CPU more.
    """

    def __init__(self, name: str, most: float = math.inf) -> None:
        """
        name:  of a thread that has a job.
        most:  threads at the same time; further jobs wait.
        """
        self._name, self._most = name, most
        self.after_fork()

    def after_fork(self) -> None:
        """In a child: threads, and perhaps the owner of the lock, belong to the parent."""
        self._lock = threading.Lock()
        self._jobs = SimpleQueue[Callable[[], object]]()
        """A condition and a list would take three times the CPU of this queue."""
        self._unfinished = 0
        self.threads = 0

    @property
    def is_full(self) -> bool:
        """Whether the next job would wait."""
        return self._unfinished >= self.threads >= self._most

    def start(self, job: Callable[[], object], *, waits: bool = False) -> None:
        """Run a job that raises nothing.

        waits:  if no thread can be started, the job waits for one that there is.
        Raises RuntimeError if no thread can be started.
        """
        with self._lock:
            if self._unfinished >= self.threads and self.threads < self._most:
                self._add_thread(waits=waits)
            self._unfinished += 1
            self._jobs.put(job)

    def _add_thread(self, *, waits: bool) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            if not waits or not self.threads:
                raise
        else:
            self.threads += 1

    def _run(self) -> None:
        thread = threading.current_thread()
        while (job := self._next()) is not None:
            thread.name = self._name
            job()
            del job  # it may have megabytes, and the next one may be long in coming
            thread.name = "pylog-idle"
            with self._lock:
                self._unfinished -= 1

    def _next(self) -> Callable[[], object] | None:
        """The next job; None: the thread ends."""
        while True:
            try:
                return self._jobs.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self.threads -= 1
                        return None


def at_exit(work: Callable[[], None]) -> None:
    """Call `work` before the process ends; what was registered last is called first.

    Functions of `atexit` run after the thread pools of remote storage have been closed.
    """
    getattr(threading, "_register_atexit", atexit.register)(work)
