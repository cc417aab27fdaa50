"""A process that checks roots is stopped and continued: it fences nobody for the time in which it was silent."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.test_killed_replicator import ROOT, eventually
from tests.replication.replicated_logs import add_broker, folder_of, put, replicated_log


# Promise: replicas.md#when-a-disk-fails
def test_a_prober_that_was_stopped_fences_nobody(tmp_path: Path) -> None:
    """Stopped for longer than the session timeout, several times, at any moment of a check."""
    log = replicated_log(tmp_path, broker_session_timeout_ms="1500", broker_heartbeat_interval_ms="100")
    put(log, [0, 1, 2])
    command = [sys.executable, "-m", "spark_log.cli", "-u", str(tmp_path / "log"), "replicate", "--every", "100ms"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: list((folder_of(log, tmp_path, 2) / "meta").glob("probe-*")))
            for number in range(3):
                time.sleep(0.4 + number * 0.033)
                process.send_signal(signal.SIGSTOP)
                time.sleep(2.5)
                process.send_signal(signal.SIGCONT)
            time.sleep(1)
            brokers = log.journal.refresh().brokers
            assert [brokers[broker].fenced for broker in (1, 2)] == [False, False]
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(10)


def test_a_prober_that_was_stopped_while_a_broker_was_replaced_looks_at_the_new_one(tmp_path: Path) -> None:
    """The mark of its last check was on the old disk: that does not speak against the new one."""
    log = replicated_log(tmp_path, broker_session_timeout_ms="1500", broker_heartbeat_interval_ms="100")
    put(log, [0, 1, 2])
    command = [sys.executable, "-m", "spark_log.cli", "-u", str(tmp_path / "log"), "replicate", "--every", "100ms"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: list((folder_of(log, tmp_path, 2) / "meta").glob("probe-*")))
            process.send_signal(signal.SIGSTOP)
            (tmp_path / "broker-2").rename(tmp_path / "old")
            add_broker(log, 2, str(tmp_path / "broker-2"), replaces=True)
            process.send_signal(signal.SIGCONT)
            eventually(lambda: list((folder_of(log, tmp_path, 2) / "meta").glob("probe-*")))
            time.sleep(1)
            assert not log.journal.refresh().brokers[2].fenced
            eventually(lambda: list((folder_of(log, tmp_path, 2) / "data").rglob("*.seg")))
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(10)
