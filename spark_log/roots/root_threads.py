"""Threads for requests to the roots of brokers, shared by the writers of a process.

A root may hang, and a request to it cannot be cancelled.  So each root has separate threads, of limited number, which
are used again; requests to a root that is busy wait for one.  A root whose threads all hang fails immediately, until it
is mounted again.  The threads are daemons: a root that hangs does not delay the end of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from spark_log.errors import StorageUnavailable
from spark_log.runtime.clock import Clock
from spark_log.runtime.fork_safety import renew_after_fork
from spark_log.runtime.threads import ReusedThreads

THREADS_MAX = 32
"""Requests to a root at the same time."""
HUNG_MS = 10_000
"""A root whose threads are all busy, and make no progress for this long, hangs."""
BUCKET_HUNG_MS = 60_000
"""A bucket whose threads make no progress for this long hangs: it may take longer to answer after the last chunk of
a put."""


Directory: TypeAlias = tuple[int, str]
"""(broker, directory): a root that replaces one that hangs has other threads."""


@dataclass(slots=True)
class _Root:
    """One root in this process."""

    threads: ReusedThreads
    moved_ms: int
    """When a job last began, made progress or ended, on the monotonic clock."""
    mount: int
    """The mount of the folder when the threads began."""


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

    def start(
        self,
        where: Directory,
        job: Callable[[], None],
        hung_ms: int = HUNG_MS,
        mount: Callable[[], int] = lambda: 0,
    ) -> None:
        """Run a job that raises nothing.  Raises StorageUnavailable if the root hangs, or no thread can be started.

        mount:  what the root is mounted as now.
        """
        root = self._roots.get(where) or self._add(where, mount())
        hangs = self._clock.monotonic_ms() - root.moved_ms > hung_ms
        if hangs and root.threads.is_full and root.mount != (now := mount()):
            root, hangs = self._add(where, now, root), False
        if hangs and root.threads.is_full:
            raise StorageUnavailable(
                f"the root of broker {where[0]} hangs: {root.threads.threads} requests have made no progress for "
                f"{hung_ms // 1000} s"
            )
        try:
            root.threads.start(partial(self._run, root, job), waits=not hangs)
        except RuntimeError as error:
            raise StorageUnavailable(f"no thread for the root of broker {where[0]} can be started: {error}") from error

    def _add(self, where: Directory, mount: int, former: _Root | None = None) -> _Root:
        with self._lock:
            known = self._roots.get(where)
            if known is None or known is former:
                threads = ReusedThreads(f"{self._name}-{where[0]}", THREADS_MAX)
                known = self._roots[where] = _Root(threads, self._clock.monotonic_ms(), mount)
            return known

    def moved(self, where: Directory) -> None:
        """A request to a root makes progress."""
        root = self._roots.get(where)
        if root is not None:
            root.moved_ms = self._clock.monotonic_ms()

    def _run(self, root: _Root, job: Callable[[], None]) -> None:
        root.moved_ms = self._clock.monotonic_ms()
        job()
        root.moved_ms = self._clock.monotonic_ms()
