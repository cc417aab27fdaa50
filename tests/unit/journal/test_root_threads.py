"""Threads of roots: they are used again, and a root that hangs keeps a limited number of them."""

from __future__ import annotations

import queue
import threading
import time
import weakref

import pytest

from simulation.harness.clocks import ManualClock
from spark_log.errors import StorageUnavailable
from spark_log.roots.root_threads import BUCKET_HUNG_MS, HUNG_MS, THREADS_MAX, RootThreads
from spark_log.runtime.threads import IDLE_S

WAIT_S = 10


def done_by(threads: RootThreads, broker: int) -> int:
    """Run a job; the identity of its thread."""
    found = queue.Queue[int]()
    threads.start((broker, "d"), lambda: found.put(threading.get_ident()))
    return found.get(timeout=WAIT_S)


def test_threads_are_used_again() -> None:
    threads = RootThreads(ManualClock())
    assert len({done_by(threads, 1) for _ in range(200)}) < 20


def test_a_thread_without_a_job_keeps_nothing_of_the_last_one() -> None:
    """It waits for some seconds, and a job may have the bytes of a put."""

    class Data:
        def use(self) -> None:
            """The job."""

    data = Data()
    kept, threads = weakref.ref(data), RootThreads(ManualClock())
    threads.start((1, "d"), data.use)
    del data
    ends_s = time.monotonic() + IDLE_S / 2
    while kept() is not None and time.monotonic() < ends_s:
        time.sleep(0.001)
    assert kept() is None


# Promise: replicas.md#when-a-disk-fails
def test_a_root_whose_threads_all_hang_fails_immediately() -> None:
    """Before that its requests wait for a thread.  Other roots, and one in its place, are not affected."""
    clock, free = ManualClock(), threading.Event()
    hangs, ended = threading.Semaphore(0), threading.Semaphore(0)
    threads = RootThreads(clock)

    def hang() -> None:
        hangs.release()
        free.wait(WAIT_S)
        ended.release()

    begun = threading.active_count()
    for _ in range(THREADS_MAX + 5):
        threads.start((1, "d"), hang)
    assert threading.active_count() - begun <= THREADS_MAX
    assert all(hangs.acquire(timeout=WAIT_S) for _ in range(THREADS_MAX))
    clock.sleep_ms(HUNG_MS + 1)
    threads.moved((1, "d"))
    threads.start((1, "d"), hang)
    clock.sleep_ms(HUNG_MS + 1)
    with pytest.raises(StorageUnavailable, match="the root of broker 1 hangs: 32 requests"):
        threads.start((1, "d"), hang)
    threads.start((1, "d"), ended.release, BUCKET_HUNG_MS)
    threads.start((1, "d"), ended.release, mount=lambda: 7)  # the root was mounted again
    assert ended.acquire(timeout=WAIT_S)
    assert done_by(threads, 2)
    threads.start((1, "other"), ended.release)
    assert ended.acquire(timeout=WAIT_S)
    free.set()
    assert all(ended.acquire(timeout=WAIT_S) for _ in range(THREADS_MAX + 7))


def test_a_thread_that_cannot_be_started_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of a root without threads fails then; otherwise it waits for one of them."""
    threads = RootThreads(ManualClock())

    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        for _ in range(THREADS_MAX + 1):
            with pytest.raises(StorageUnavailable, match="can't start new thread"):
                done_by(threads, 1)
    begun, free, ended = threading.Event(), threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        free.wait(WAIT_S)

    threads.start((1, "d"), busy)
    assert begun.wait(WAIT_S)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        threads.start((1, "d"), ended.set)
    free.set()
    assert ended.wait(WAIT_S)
