"""Threads of copies that hang with a root: a process leaves a limited number of them behind.

A request to a root cannot be cancelled, so a copy that makes no progress is given up, and its thread is left alone.  A
root may answer checks from a cache, and hang with each object that is read from it.  Each round of copying would then
leave more threads, for as long as the process runs.
"""

from __future__ import annotations

import threading
from typing import Any, TypeAlias

from spark_log.roots.broker_roots import Roots
from spark_log.runtime.daemon_tasks import Task
from spark_log.runtime.fork_safety import renew_after_fork

HUNG_MAX = 8
"""With so many threads that hang, nothing is copied to or from a root until one of them ends."""

Root: TypeAlias = tuple[str, int, int, int]
"""Cluster id, broker, epoch and mount: whatever hangs in a mount of before says nothing about the present one."""


class HungThreads:
    """Those of this process.  Thread-safe."""

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """In a child: threads belong to the parent."""
        self._lock = threading.Lock()
        self._tasks: dict[Root, list[Task[Any]]] = {}

    def add(self, roots: Roots, broker: int, task: Task[Any]) -> None:
        """Note a task that waits for the root of a broker, and is left alone."""
        root = _root_of(roots, broker)
        with self._lock:
            self._tasks[root] = [*self._alive(root), task]

    def are_many(self, roots: Roots, broker: int) -> bool:
        """Whether no further request may be made to the root of a broker now."""
        if not self._tasks:  # the usual case; to find out the mount takes a while
            return False
        root = _root_of(roots, broker)
        with self._lock:
            return len(self._alive(root)) >= HUNG_MAX

    def _alive(self, root: Root) -> list[Task[Any]]:
        alive = [task for task in self._tasks.pop(root, ()) if not task.ended]
        if alive:
            self._tasks[root] = alive
        return alive


hung_threads = HungThreads()


def _root_of(roots: Roots, broker: int) -> Root:
    """The present root of a broker."""
    known = roots.brokers.get(broker)
    return roots.cluster_id, broker, 0 if known is None else known.epoch, roots.mount(broker)
