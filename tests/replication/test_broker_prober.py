"""Roots that fail are fenced, in time and with the reason; those that answer again come back with what they have."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simulation.harness.broker_roots import ControlledRoots
from simulation.harness.clocks import SkewedClock
from simulation.harness.stores import ControlledStore
from spark_log import Log, connect
from spark_log.client.admin.brokers import fence_broker
from spark_log.replication import broker_prober
from spark_log.replication.broker_prober import Prober, ProbeReport
from spark_log.replication.replicator import Replicator
from tests.replication.replicated_logs import brokers_of, folder_of, group_of, move_away, move_back, put, replicated_log

TIMEOUTS = {"broker_session_timeout_ms": "600", "broker_heartbeat_interval_ms": "100", "replica_lag_time_max_ms": "1"}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return replicated_log(tmp_path, **TIMEOUTS)


def rounds_until(prober: Prober, ready: Callable[[ProbeReport], object], limit_s: float = 10.0) -> ProbeReport:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        report = prober.round()
        if ready(report):
            return report
        time.sleep(0.05)
    raise AssertionError("nothing happened")


def control(log: Log, tmp_path: Path, broker: int) -> Path:
    """A file that disturbs the root of a broker in this process."""
    orders, roots = tmp_path / f"orders-{broker}", log.journal.roots
    for store in (roots.root(broker), roots[broker]):
        store.inner = ControlledStore(store.inner, orders)  # type: ignore[attr-defined]
    return orders


def test_good_roots_are_left_alone(log: Log, tmp_path: Path) -> None:
    """And have one mark each."""
    version, prober = log.journal.refresh().version, Prober(log)
    for _ in range(5):
        assert prober.round(5_000) == ProbeReport()
    assert log.journal.refresh().version == version
    assert all(len(list((folder_of(log, tmp_path, broker) / "meta").iterdir())) == 1 for broker in (1, 2))


# Promise: replicas.md#what-keeps-replicas-in-sync
def test_only_the_named_brokers_are_checked(log: Log, tmp_path: Path) -> None:
    """The root of another one may be out of reach from here."""
    move_away(tmp_path, 1)
    move_away(tmp_path, 2)
    (fenced,) = Prober(log, [2]).until_sure().fenced
    assert "broker 2" in fenced
    assert not log.journal.refresh().brokers[1].fenced


# Promise: cli.md#pylog-replicate
def test_a_root_that_is_gone_is_fenced_at_once_and_comes_back(log: Log, tmp_path: Path) -> None:
    names, prober = [put(log, [0, 1, 2])], Prober(log)
    prober.round()
    away = move_away(tmp_path, 2)
    (report,) = [prober.round()]
    assert "broker 2: its root is not usable" in report.fenced[0]
    assert "is its disk mounted?" in report.fenced[0]
    assert group_of(log.journal.refresh()).isr == (0, 1)
    assert not (tmp_path / "broker-2").exists()
    names.append(put(log, [0, 1]))
    for _ in range(3):
        assert prober.round(5_000) == ProbeReport()
    assert away.exists()
    move_back(tmp_path, 2)
    assert rounds_until(prober, lambda report: report.returned).returned == (2,)
    Replicator(log).round()
    state = log.journal.refresh()
    assert [brokers_of(state, name) for name in names] == [(0, 1, 2)] * 2
    assert group_of(state).isr == (0, 1, 2)


# Promise: replicas.md#when-a-disk-fails
def test_a_disk_that_comes_back_empty_stays_fenced(log: Log, tmp_path: Path) -> None:
    put(log, [0, 1, 2])
    prober = Prober(log)
    prober.round()
    move_away(tmp_path, 2)
    prober.round()
    (tmp_path / "broker-2").mkdir()
    for _ in range(3):
        assert not prober.round().returned
    assert log.journal.refresh().brokers[2].fenced
    assert not list((tmp_path / "broker-2").iterdir())


# Promise: replicas.md#when-a-disk-fails
def test_a_disk_that_was_swapped_for_an_older_copy_is_fenced(log: Log, tmp_path: Path) -> None:
    """Everything on it is right but old: the mark of the last check is gone.  It returns without what it lacks."""
    old, prober = put(log, [0, 1, 2]), Prober(log)
    prober.round()
    shutil.copytree(tmp_path / "broker-2", tmp_path / "older")
    new = put(log, [0, 1, 2])
    prober.round()
    move_away(tmp_path, 2)
    (tmp_path / "older").rename(tmp_path / "broker-2")
    report = prober.round()
    assert "it was rolled back, or swapped" in report.fenced[0]
    assert rounds_until(prober, lambda report: report.returned).returned == (2,)
    state = log.journal.refresh()
    assert (brokers_of(state, old), brokers_of(state, new)) == ((0, 1, 2), (0, 1))
    Replicator(log).round()
    assert brokers_of(log.journal.refresh(), new) == (0, 1, 2)
    assert (folder_of(log, tmp_path, 2) / new).exists()


# Promise: cli.md#pylog-replicate, replicas.md#what-keeps-replicas-in-sync
@pytest.mark.parametrize("how", ["hang", "hang data/", "fail", "full"])
def test_a_root_that_fails_is_fenced_after_the_session_timeout(
    log: Log, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not earlier, and a hung root does not delay the checks of others.  Also if only reads of objects hang."""
    monkeypatch.setattr(broker_prober, "DATA_MS", 0)
    put(log, [0, 1, 2])
    orders, prober = control(log, tmp_path, 2), Prober(log)
    prober.round()
    orders.write_text(how)
    began = time.monotonic()
    report = rounds_until(prober, lambda report: report.fenced)
    taken = time.monotonic() - began
    assert 0.55 < taken < 3
    assert "broker 2: its root has failed all checks for" in report.fenced[0]
    state = log.journal.refresh()
    assert (state.brokers[1].fenced, state.brokers[2].fenced) == (False, True)
    orders.unlink()
    assert rounds_until(prober, lambda report: report.returned).returned == (2,)


# Promise: replicas.md#when-a-disk-fails
def test_a_root_that_hangs_is_mounted_again(log: Log, tmp_path: Path) -> None:
    """The check that hangs with the former mount, for ever, does not keep the broker out."""
    roots, prober = ControlledRoots.of(log, tmp_path), Prober(log)
    roots.order(2, "hang")
    rounds_until(prober, lambda report: report.fenced)
    roots.mount_again(2)
    assert rounds_until(prober, lambda report: report.returned).returned == (2,)
    roots.mounts.clear()
    roots.order(2, "")


def test_a_root_that_fails_for_a_moment_is_not_fenced(tmp_path: Path) -> None:
    log = replicated_log(tmp_path, **{**TIMEOUTS, "broker_session_timeout_ms": "5000"})
    orders, prober = control(log, tmp_path, 2), Prober(log)
    for _ in range(4):
        orders.write_text("fail")
        assert prober.round().failing
        time.sleep(0.3)
        orders.unlink()
        rounds_until(prober, lambda report: not report.failing)
    assert not log.journal.refresh().brokers[2].fenced


# Promise: replicas.md#change-brokers
def test_a_broker_that_was_fenced_by_hand_stays_fenced(log: Log) -> None:
    fence_broker(log.journal, 2)
    prober = Prober(log)
    for _ in range(3):
        assert prober.round(5_000) == ProbeReport()
    assert log.journal.refresh().brokers[2].fenced


# Promise: replicas.md#change-brokers
def test_a_broker_that_is_fenced_by_hand_while_its_root_fails_stays_fenced(log: Log, tmp_path: Path) -> None:
    """Its root has failed, and an administrator takes it out of service before it answers again."""
    prober = Prober(log)
    move_away(tmp_path, 2)
    assert prober.round().fenced
    assert fence_broker(log.journal, 2, "new cable")
    assert not fence_broker(log.journal, 2), "it was fenced by hand already"
    move_back(tmp_path, 2)
    for _ in range(3):
        assert prober.round(5_000) == ProbeReport()
    assert log.journal.refresh().brokers[2].reason == "new cable"


def test_an_administrator_may_give_any_reason(log: Log) -> None:
    """Also one that begins as those of checks."""
    fence_broker(log.journal, 2, "its root is to move")
    prober = Prober(log)
    for _ in range(3):
        assert prober.round(5_000) == ProbeReport()
    assert log.journal.refresh().brokers[2].reason == "its root is to move"


def test_checks_until_each_root_is_good_or_fenced(log: Log, tmp_path: Path) -> None:
    """As one run of `pylog maintain`."""
    control(log, tmp_path, 1).write_text("fail")
    report = Prober(log).until_sure()
    assert "broker 1" in report.fenced[0]
    assert not log.journal.refresh().brokers[2].fenced


def test_time_in_which_the_prober_did_nothing_is_no_silence(log: Log, tmp_path: Path) -> None:
    """A failed check, a long pause and another failed check are not a root that failed all the time."""
    orders, prober = control(log, tmp_path, 2), Prober(log)
    orders.write_text("fail")
    assert prober.round().failing
    time.sleep(1.7)
    assert not prober.round().fenced


def test_several_probers_check_the_same_roots(log: Log, tmp_path: Path) -> None:
    """Each looks for its own mark."""
    others = [Prober(connect(str(tmp_path / "log"))) for _ in range(3)]
    for _ in range(4):
        assert not any(one.round(5_000).fenced for one in others)


def test_a_machine_that_was_suspended_does_not_miss_its_mark(log: Log, tmp_path: Path) -> None:
    """Another process has deleted it as that of a dead one.  The monotonic clock stands still meanwhile."""
    clock = SkewedClock(log.journal.context.clock)
    log.journal.metadata_log.context = replace(log.journal.context, clock=clock)
    put(log, [0, 1, 2])
    prober, marks = Prober(log), folder_of(log, tmp_path, 2) / "meta"
    prober.round(5_000)
    for skew_ms in (7_200_000, 0):
        clock.skew_ms = skew_ms
        shutil.rmtree(marks)
        assert prober.round(5_000) == ProbeReport()
    shutil.rmtree(marks)
    assert "it was rolled back, or swapped" in prober.round(5_000).fenced[0]


def test_a_machine_that_is_suspended_during_a_check_does_not_miss_its_mark(tmp_path: Path) -> None:
    log = replicated_log(tmp_path, **{**TIMEOUTS, "broker_session_timeout_ms": "60000"})
    clock = SkewedClock(log.journal.context.clock)
    log.journal.metadata_log.context = replace(log.journal.context, clock=clock)
    put(log, [0, 1, 2])
    clock.skew_ms = -7_200_000
    orders, prober = control(log, tmp_path, 2), Prober(log)
    prober.round(5_000)
    orders.write_text("hang")
    assert "no answer" in prober.round(200).failing[0]
    clock.skew_ms = 0
    shutil.rmtree(folder_of(log, tmp_path, 2) / "meta")
    orders.unlink()
    assert rounds_until(prober, lambda report: not report.failing) == ProbeReport()


# Promise: replicas.md#when-a-disk-fails
def test_a_new_process_notices_an_older_disk(log: Log, tmp_path: Path) -> None:
    """It has no mark of a check before; after its return the broker lacks what the disk lacks."""
    kept = put(log, [0, 1, 2])
    shutil.copytree(tmp_path / "broker-2", tmp_path / "snapshot")
    lost = put(log, [0, 1, 2])
    shutil.rmtree(tmp_path / "broker-2")
    (tmp_path / "snapshot").rename(tmp_path / "broker-2")
    prober = Prober(log)
    (text,) = rounds_until(prober, lambda report: report.fenced).fenced
    assert "does not have what was put there before" in text
    rounds_until(prober, lambda report: report.returned)
    state = log.journal.refresh()
    assert (brokers_of(state, kept), brokers_of(state, lost)) == ((0, 1, 2), (0, 1))
    assert group_of(state).isr == (0, 1)
    version = state.version
    assert [prober.round(5_000) for _ in range(3)] == [ProbeReport()] * 3
    assert log.journal.refresh().version == version


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.parametrize("newer", [1, 3])
def test_a_new_process_notices_an_older_disk_with_newer_objects(log: Log, tmp_path: Path, newer: int) -> None:
    """Writers were faster than the first check: what they have put there says nothing about what is missing."""
    kept = put(log, [0, 1, 2])
    shutil.copytree(tmp_path / "broker-2", tmp_path / "snapshot")
    lost = [put(log, [0, 1, 2]) for _ in range(4)]
    shutil.rmtree(tmp_path / "broker-2")
    (tmp_path / "snapshot").rename(tmp_path / "broker-2")
    new = [put(log, [0, 1, 2]) for _ in range(newer)]
    prober = Prober(log)
    (text,) = rounds_until(prober, lambda report: report.fenced).fenced
    assert "does not have what was put there before" in text
    rounds_until(prober, lambda report: report.returned)
    state = log.journal.refresh()
    assert [brokers_of(state, name) for name in (kept, *new)] == [(0, 1, 2)] * (1 + newer)
    assert [brokers_of(state, name) for name in lost] == [(0, 1)] * 4


WITHOUT_FILES = """
import os, resource, sys
from spark_log import connect
from spark_log.replication.broker_prober import Prober
log = connect(sys.argv[1])
prober = Prober(log)
prober.round(5_000)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(files) + 1, most))
os.close(files[-1])
for _ in range(10):
    report = prober.round(5_000)
    assert not report.fenced and not report.failing, report
resource.setrlimit(resource.RLIMIT_NOFILE, (max(files) + 30, most))
assert not prober.round(5_000).failing
"""


# Promise: replicas.md#when-a-disk-fails
def test_a_process_without_files_fences_nobody(tmp_path: Path) -> None:
    """It has one left: enough to read the log and to change it, and too few for a check."""
    log = replicated_log(tmp_path, **{**TIMEOUTS, "broker_session_timeout_ms": "1"})
    put(log, [0, 1, 2])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FILES, str(tmp_path / "log")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Too many open files" in done.stderr, "that is why the roots are not checked"
    assert not any(known.fenced for known in log.journal.refresh().brokers.values())
