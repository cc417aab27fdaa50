"""Maintenance beside commits: who waits for it, and what becomes of it when a process ends, forks, or its storage
hangs.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log.errors import NoSpace
from spark_log.journal import maintenance_thread
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_thread import MaintenanceThread
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.runtime.threads import SystemThreads, Thread
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS
from tests.logged import logged

INTERVAL = 5


class Hung(Wrapper):
    """A store on which puts of checkpoints hang until `free` is set."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.puts, self.free, self.hangs = 0, threading.Event(), threading.Event()

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key.startswith(CHECKPOINTS):
            self.puts += 1
            self.hangs.set()
            assert self.free.wait(30)
        super().put(key, chunks)


class Failing(Wrapper):
    """A store that takes no checkpoint."""

    puts = 0

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key.startswith(CHECKPOINTS):
            self.puts += 1
            raise NoSpace(f"{key}: the disk is full")
        super().put(key, chunks)


def local(path: Path) -> LocalStore:
    return LocalStore(str(path / "log"), durability="os")


def open_log(store: ObjectStore, clock: ManualClock | None = None) -> spark_log.Log:
    """A log with a topic and a short interval."""
    log = spark_log.Log(Journal.open(store, create=True, clock=clock, rng=random.Random(1)))
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": str(INTERVAL)}
    log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))
    log.create_topic(spark_log.NewTopic("t", 1))
    return log


def append(log: spark_log.Log, count: int) -> None:
    for number in range(count):
        log.append("t", [{"value": b"%d" % number}])


def maintenance_threads(others: set[threading.Thread]) -> int:
    return sum(thread.name == "pylog-maintenance" for thread in threading.enumerate() if thread not in others)


# Promise: clients.md#python-clients
def test_commits_do_not_wait_for_a_storage_that_hangs(tmp_path: Path) -> None:
    """One thread hangs with it, however many commits follow."""
    others = set(threading.enumerate())
    store = Hung(local(tmp_path))
    log = open_log(store)
    append(log, 2 * INTERVAL)
    assert store.hangs.wait(30)
    append(log, 8 * INTERVAL)
    assert (store.puts, maintenance_threads(others)) == (1, 1)
    store.free.set()
    log.close()
    assert len(store.list(CHECKPOINTS)) == 1
    append(log, 1)
    log.close()
    assert (len(store.list(CHECKPOINTS)), maintenance_threads(others)) == (2, 0)


def test_a_writer_far_ahead_of_its_maintenance_is_slowed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not stopped: otherwise a log would take ever longer to open."""
    monkeypatch.setattr(maintenance_thread, "PASSED_MAX", INTERVAL)
    store = Hung(local(tmp_path))
    log = open_log(store)
    append(log, 2 * INTERVAL)
    begun = time.monotonic()
    append(log, 3)
    assert 3 * maintenance_thread.PASSED_WAIT_S <= time.monotonic() - begun < 10
    store.free.set()
    log.close()


def test_maintenance_that_failed_is_tried_again_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By a later commit, after ten seconds, not by each; a warning says that it was put off."""
    store, clock = Failing(local(tmp_path)), ManualClock(int(time.time() * 1000))
    log = open_log(store, clock)
    with caplog.at_level(logging.WARNING, "spark_log"):
        for _ in range(3 * INTERVAL):
            append(log, 1)
            log.close()
        tried = store.puts
        clock.sleep_ms(maintenance_thread.RETRY_MS + 1)
        append(log, 1)
        log.close()
    assert tried >= 1 and store.puts == 2 * tried
    assert len(logged(caplog, f"maintenance of {store.url} was put off")) == 2


class Interrupted(SystemThreads):
    """Ctrl-C reaches the first caller that starts a thread, before or after the thread runs."""

    def __init__(self, *, begun: bool) -> None:
        self._begun, self._left = begun, 1

    def start(self, work: Callable[[], None], name: str) -> Thread:
        self._left -= 1
        if self._left == 0:
            if self._begun:
                super().start(work, name)
            raise KeyboardInterrupt
        return super().start(work, name)


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_while_maintenance_is_started_does_not_stop_later_maintenance(begun: bool) -> None:
    """Nothing is held that only the thread would release."""
    runs = list[None]()
    maintenance = MaintenanceThread(lambda: runs.append(None), Interrupted(begun=begun), ManualClock(0), "log")
    with pytest.raises(KeyboardInterrupt):
        maintenance.start()
    maintenance.start()
    maintenance.join()
    maintenance.run()
    assert len(runs) == 2 + begun


EXITING = """
import sys
import spark_log
log = spark_log.connect(sys.argv[1])
for number in range(int(sys.argv[2])):
    log.append("t", [{"value": b"x"}])
"""


# Promise: clients.md#python-clients
@pytest.mark.parametrize("commits", [1, 3])
def test_processes_that_commit_and_exit_write_checkpoints(tmp_path: Path, commits: int) -> None:
    """The end of a process waits for the maintenance that it has begun."""
    log = open_log(local(tmp_path))
    for _ in range(2 * INTERVAL // commits):
        subprocess.run([sys.executable, "-c", EXITING, log.url, str(commits)], check=True)
    assert log.journal.metadata.list(CHECKPOINTS)
    assert log.read("t").num_rows == 2 * INTERVAL // commits * commits


def test_a_child_forked_during_maintenance_runs_its_own(tmp_path: Path) -> None:
    """The thread of the parent does not exist in it."""
    store = Hung(local(tmp_path))
    log = open_log(store)
    append(log, INTERVAL)
    while not store.puts:
        time.sleep(0.01)
    child = os.fork()
    if not child:
        store.free.set()
        append(log, 1)
        log.close()
        os._exit(0 if store.list(CHECKPOINTS) else 1)
    assert os.waitpid(child, 0)[1] == 0
    store.free.set()
    log.close()
    assert log.read("t").num_rows == INTERVAL + 1


EXITING_HUNG = """
import atexit, pathlib, sys, time
from spark_log.journal import maintenance_thread
from tests.unit.journal.test_maintenance_thread import INTERVAL, Hung, append, local, open_log
maintenance_thread.WAIT_S = 2.0
logs = [open_log(Hung(local(pathlib.Path(sys.argv[1]) / str(number)))) for number in range(3)]
for log in logs:
    append(log, 2 * INTERVAL)
begun = time.monotonic()
atexit.register(lambda: print(time.monotonic() - begun))
"""


def test_the_end_of_a_process_waits_once_for_all_its_logs(tmp_path: Path) -> None:
    """Their storage is often the same, and hangs for all of them."""
    ended = subprocess.run([sys.executable, "-c", EXITING_HUNG, str(tmp_path)], check=True, capture_output=True)
    assert 1.9 < float(ended.stdout) < 3.9
