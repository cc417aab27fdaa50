"""Threads for requests to the roots of brokers, shared by the writers of a process.

A root may hang, and a request to it cannot be cancelled.  So each root has separate threads, of limited number, which
are used again; requests to a root that is busy wait for one.  A root whose threads all hang fails immediately.  The
threads are daemons: a root that hangs does not delay the end of the process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from spark_log.clock import Clock
from spark_log.errors import StorageUnavailable
from spark_log.journal.fork_safety import renew_after_fork

THREADS_MAX = 32
"""Requests to a root at the same time."""
HUNG_MS = 10_000
"""A root whose threads are all busy, and make no progress for this long, hangs."""
BUCKET_HUNG_MS = 60_000
"""The same for a bucket: it may take longer to answer after the last chunk of a put."""
IDLE_S = 10.0
"""A thread without work ends after this time."""


Directory: TypeAlias = tuple[int, str]
"""(broker, directory): a root that replaces one that hangs has other threads."""


@dataclass(slots=True)
class _Root:
    """The threads of a root.  Used with the lock held."""

    work: threading.Condition
    """Notified when there is a job."""
    moved_ms: int
    """When a job last began, made progress or ended, on the monotonic clock."""
    jobs: deque[Callable[[], None]] = field(default_factory=deque)
    """Jobs that no thread has taken."""
    threads: int = 0
    idle: int = 0


class RootThreads:
    """Thread-safe."""

    def __init__(self, clock: Clock, name: str = "pylog-put") -> None:
        """name: of the threads, before the broker."""
        self._clock, self._name = clock, name
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """In a child: threads belong to the parent."""
        self._lock = threading.Lock()
        self._roots: dict[Directory, _Root] = {}

    def start(self, where: Directory, job: Callable[[], None], hung_ms: int = HUNG_MS) -> None:
        """Run a job that raises nothing.  Raises StorageUnavailable if the root hangs, or no thread can be started."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            root = self._roots.setdefault(where, _Root(threading.Condition(self._lock), now_ms))
            hangs = now_ms - root.moved_ms > hung_ms
            if hangs and root.threads == THREADS_MAX and not root.idle:
                raise StorageUnavailable(
                    f"the root of broker {where[0]} hangs: {root.threads} requests have made no progress for "
                    f"{hung_ms // 1000} s"
                )
            if len(root.jobs) < root.idle:
                root.work.notify()
            elif root.threads < THREADS_MAX:
                self._add_thread(where, root, is_needed=hangs or not root.threads)
            root.jobs.append(job)

    def _add_thread(self, where: Directory, root: _Root, *, is_needed: bool) -> None:
        """is_needed: the threads that there are will not take another job."""
        name = f"{self._name}-{where[0]}"
        try:
            threading.Thread(target=partial(self._run, where, root, name), name=name, daemon=True).start()
        except RuntimeError as error:
            if is_needed:
                raise StorageUnavailable(
                    f"no thread for the root of broker {where[0]} can be started: {error}"
                ) from error
        else:
            root.threads += 1

    def moved(self, where: Directory) -> None:
        """A request to a root makes progress."""
        root = self._roots.get(where)
        if root is not None:
            root.moved_ms = self._clock.monotonic_ms()

    def _run(self, where: Directory, root: _Root, name: str) -> None:
        while (job := self._next(where, root)) is not None:
            threading.current_thread().name = name
            job()
            threading.current_thread().name = "pylog-idle"

    def _next(self, where: Directory, root: _Root) -> Callable[[], None] | None:
        """The next job; None: the thread ends."""
        with self._lock:
            root.moved_ms = self._clock.monotonic_ms()
            root.idle += 1
            while not root.jobs:
                if not root.work.wait(IDLE_S) and not root.jobs:
                    root.idle -= 1
                    root.threads -= 1
                    if not root.threads:
                        self._roots.pop(where, None)
                    return None
            root.idle -= 1
            root.moved_ms = self._clock.monotonic_ms()
            return root.jobs.popleft()
