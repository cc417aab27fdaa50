"""Replicators that are killed or stopped in the middle of a copy, and roots on a server that is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_log import Log
from spark_log.replication.broker_prober import Prober
from spark_log.replication.replicator import Replicator
from tests.replication.replicated_logs import (
    add_broker,
    brokers_of,
    create_topic,
    folder_of,
    group_of,
    move_away,
    put,
    replicated_log,
)
from tests.s3_server import s3_process

ROOT = Path(__file__).parents[2]


def eventually(true: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def start(folder: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spark_log.cli", "-u", str(folder / "log"), "replicate", *flags]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return replicated_log(tmp_path, replica_lag_time_max_ms="1", gc_fence_age_ms="3600000")


def unfinished(log: Log, tmp_path: Path, broker: int) -> list[Path]:
    return list(folder_of(log, tmp_path, broker).rglob(".tmp-*"))


# Promise: cli.md#pylog-replicate, replicas.md#when-a-disk-fails
def test_a_replicator_that_is_killed_leaves_nothing_that_counts(log: Log, tmp_path: Path) -> None:
    """It is killed in the middle of a copy, three times.  Each file under an object's name is the whole object."""
    names = [put(log, [0, 1], rows=300, width=10_000) for _ in range(4)]
    sizes = {name: log.journal.refresh().objects[name].size for name in names}
    for _ in range(3):
        process = start(tmp_path, "--throttle", "4MB")
        eventually(lambda: unfinished(log, tmp_path, 2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        state = log.journal.refresh()
        for name in names:
            file = folder_of(log, tmp_path, 2) / name
            assert not file.exists() or file.stat().st_size == sizes[name]
            assert file.exists() or 2 not in brokers_of(state, name)
        for file in unfinished(log, tmp_path, 2):
            file.unlink()
    Replicator(log).round()
    state = log.journal.refresh()
    assert all(brokers_of(state, name) == (0, 1, 2) for name in names)
    assert group_of(state).isr == (0, 1, 2)


def test_a_replicator_that_was_stopped_while_the_broker_was_replaced_adds_no_copy(log: Log, tmp_path: Path) -> None:
    """It put the object on the old disk: its record is void."""
    name = put(log, [0, 1], rows=300, width=10_000)
    process = start(tmp_path, "--throttle", "2MB")
    eventually(lambda: unfinished(log, tmp_path, 2))
    process.send_signal(signal.SIGSTOP)
    try:
        move_away(tmp_path, 2)
        add_broker(log, 2, str(tmp_path / "broker-2"), replaces=True)
        process.send_signal(signal.SIGCONT)
        process.wait(60)
    finally:
        process.kill()
    state = log.journal.refresh()
    held = 2 in brokers_of(state, name)
    assert held == (folder_of(log, tmp_path, 2) / name).exists()
    Replicator(log).round()
    assert brokers_of(log.journal.refresh(), name) == (0, 1, 2)


def test_sigterm_ends_replication_in_order(log: Log, tmp_path: Path) -> None:
    process = start(tmp_path, "--every", "1s")
    name = put(log, [0])
    eventually(lambda: brokers_of(log.journal.refresh(), name) == (0, 1, 2))
    process.terminate()
    assert process.wait(10) == 0


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    with s3_process() as found:
        yield found


# Promise: replicas.md#when-a-disk-fails
def test_a_stopped_server_is_fenced_and_comes_back(tmp_path: Path, server: tuple[str, int]) -> None:
    """Connections to it are accepted by the kernel, and nobody answers.  Other brokers are checked and copied to."""
    url, pid = server
    log = replicated_log(tmp_path, 1, replica_lag_time_max_ms="1", broker_session_timeout_ms="2000")
    add_broker(log, 5, "s3://bucket/root", key="key", secret="secret", endpoint_url=url)
    create_topic(log, "s", (0, 1, 5))
    prober, replicator = Prober(log), Replicator(log)
    names = [put(log, [0], topic="s")]
    assert prober.round(5_000).failing == ()
    replicator.round()
    assert brokers_of(log.journal.refresh(), names[0]) == (0, 1, 5)
    os.kill(pid, signal.SIGSTOP)
    names.append(put(log, [0], topic="s"))
    began = time.monotonic()
    report = replicator.round(1_000)
    assert time.monotonic() - began < 10
    assert brokers_of(log.journal.refresh(), names[1]) == (0, 1), report.problems
    began = time.monotonic()
    eventually(lambda: prober.round().fenced, 20)
    assert time.monotonic() - began < 10
    assert not log.journal.refresh().brokers[1].fenced
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: prober.round().returned == (5,))
    eventually(lambda: replicator.round() and brokers_of(log.journal.refresh(), names[1]) == (0, 1, 5))
    assert set(group_of(log.journal.refresh(), "s").isr) == {0, 1, 5}
