"""A process that copies is stopped in the middle of a copy or of its record, the log changes, and it continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_log import Log
from spark_log.client.admin.brokers import fence_broker, return_broker
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.replicas.replicas import copies_of
from spark_log.replication.replicator import Replicator
from tests.chaos.test_killed_replicator import ROOT, eventually
from tests.replication.replicated_logs import add_broker, folder_of, group_of, move_away, put, replicated_log

# It copies in each log that it reads of, and stops there once: in a copy, before its record is put, or after that.  It
# does so as `pylog replicate`, or as the driver of `jobs/replicate.py`, whose tasks are calls here.
STOPS = """
import os, signal, sys
from types import SimpleNamespace
from pyspark_pylog.jobs.replicate import TaskCopier, copy_in_task
from pyspark_pylog.log.open_log import planned_log
from pyspark_pylog.options.parse import Location
from spark_log.client.log import Log
from spark_log.journal.journal import Journal
from spark_log.replication.replicator import Replicator
from spark_log.store.open import open_store
from simulation.harness.stores import Wrapper

where = ""

def stop(here):
    global where
    if where == here:
        where = ""
        os.kill(os.getpid(), signal.SIGSTOP)

class Stops(Wrapper):
    def put(self, key, chunks):
        self.inner.put(key, chunks if not key.startswith("data/") else self.stopped(chunks))

    def stopped(self, chunks):
        for chunk in chunks:
            stop("in a copy")
            yield chunk

    def put_new(self, key, data):
        stop("before its record")
        created = self.inner.put_new(key, data)
        stop("after its record")
        return created

class OwnTasks(TaskCopier):
    def _run(self, shares, slots, rate):
        planned = planned_log(self._location, self._log.journal)
        return [copy_in_task(planned, None, share) for share in shares]

spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

for line in sys.stdin:
    url, who, where = line.strip().split(" ", 2)
    log = Log(Journal.open(Stops(open_store(url, None, "os")), create=False))
    for store in (log.journal.roots[1], log.journal.roots[2]):
        store.inner = Stops(store.inner)
    copier = OwnTasks(spark, Location(url=url, storage={}, durability="os"), log) if who == "job" else None
    Replicator(log, copier=copier).round()
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def copier() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STOPS], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


@contextmanager
def stopped(copier: subprocess.Popen[str], folder: Path, who: str, where: str) -> Iterator[None]:
    """The process copies, and is stopped there; at the end of the block it continues, and has to end well."""
    assert copier.stdin is not None and copier.stdout is not None
    copier.stdin.write(f"{folder / 'log'} {who} {where}\n")
    copier.stdin.flush()
    eventually(lambda: os.WIFSTOPPED(os.waitpid(copier.pid, os.WUNTRACED | os.WNOHANG)[1]))
    try:
        yield
    finally:
        copier.send_signal(signal.SIGCONT)
    assert copier.stdout.readline() == "done\n"


def replaced(log: Log, folder: Path) -> None:
    """The broker gets an empty disk."""
    move_away(folder, 2)
    add_broker(log, 2, str(folder / "broker-2"), replaces=True)


def returned(log: Log, folder: Path) -> None:
    """The broker is fenced, its root loses a file, and it returns with what is there."""
    fence_broker(log.journal, 2)
    for file in folder_of(log, folder, 2).rglob("*.seg"):
        file.unlink()
    return_broker(log.journal, 2)


def copied(log: Log, folder: Path) -> None:
    """Another process copies the same objects."""
    Replicator(log).round()


def merged(log: Log, folder: Path) -> None:
    """The objects are replaced, and dropped."""
    put(log, [0, 1, 2])
    maintain_once(log)


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.parametrize(
    ("who", "where", "change"),
    [
        ("command", "in a copy", returned),
        ("command", "in a copy", merged),
        ("command", "before its record", replaced),
        ("command", "before its record", returned),
        ("command", "before its record", copied),
        ("command", "after its record", replaced),
        ("job", "before its record", merged),
        ("job", "before its record", returned),
        ("job", "after its record", replaced),
    ],
)
def test_a_stopped_copier_claims_no_copy_that_is_not_there(
    copier: subprocess.Popen[str], tmp_path: Path, who: str, where: str, change: Callable[[Log, Path], None]
) -> None:
    log = replicated_log(tmp_path, replica_lag_time_max_ms="1", gc_fence_age_ms="3600000")
    for _ in range(2):
        put(log, [0, 1], rows=20)
    with stopped(copier, tmp_path, who, where):
        change(log, tmp_path)
    assert lies(log, tmp_path) == []
    Replicator(log).round()
    state = log.journal.refresh()
    assert all(copies.brokers == (0, 1, 2) for copies in state.copies.values())
    assert set(group_of(state).isr) == {0, 1, 2}
    assert lies(log, tmp_path) == []


def lies(log: Log, folder: Path) -> list[str]:
    """Copies that the log has, and no disk."""
    state = log.journal.refresh()
    return [
        f"{name} on broker {broker}"
        for name, row in state.objects.items()
        if (known := copies_of(state, row)) is not None
        for broker in known.brokers
        if not (file := folder_of(log, folder, broker) / name).exists() or file.stat().st_size != row.size
    ]
