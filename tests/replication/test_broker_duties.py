"""A coordinator keeps the replicas of its log alive, and shows how they are."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from spark_log import Log, connect
from spark_log.errors import BrokerNotAvailable
from spark_log.journal.journal import Journal
from spark_log.maintenance.replicate import replicate_every, replicate_once
from spark_log.monitoring.replica_metrics import ReplicaMetrics, count_replicas
from spark_log.runtime.threads import SystemThreads, Thread
from spark_log.store.open import open_store
from tests.replication.replicated_logs import brokers_of, group_of, move_away, move_back, put, replicated_log
from tests.services import Services

TIMEOUTS = {"broker_session_timeout_ms": "1000", "broker_heartbeat_interval_ms": "200", "replica_lag_time_max_ms": "1"}


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return replicated_log(tmp_path, **TIMEOUTS)


def eventually(true: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def metrics_of(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(number) for name, _, number in (line.rpartition(" ") for line in lines if line[0] != "#")}


# Promise: replicas.md#what-keeps-replicas-in-sync
def test_a_coordinator_fences_copies_and_takes_back(log: Log, tmp_path: Path, services: Services) -> None:
    """With metrics of all of it."""
    name = put(log, [0, 1])
    running = services.start(tmp_path / "log")
    client = connect(f"pylog://{running.coordinator.address}")
    state = client.journal.refresh
    eventually(lambda: group_of(state()).isr == (0, 1, 2))
    assert brokers_of(state(), name) == (0, 1, 2)
    move_away(tmp_path, 1)
    eventually(lambda: state().brokers[1].fenced)
    found = metrics_of(running.coordinator.address)
    assert found["pylog_under_replicated_partitions"] == 1
    assert found['pylog_broker_active{broker="1"}'] == 0
    assert found["pylog_isr_shrinks_total"] == 1
    assert found["pylog_copied_objects_total"] == 1
    move_back(tmp_path, 1)
    eventually(lambda: group_of(state()).isr == (0, 1, 2))
    found = metrics_of(running.coordinator.address)
    assert (found["pylog_under_replicated_partitions"], found["pylog_offline_partitions"]) == (0, 0)
    assert found["pylog_isr_expands_total"] == 2
    services.stop(running)


def test_replication_for_long_ends_when_it_is_told_to(log: Log) -> None:
    stop, reports, others = threading.Event(), [], set(threading.enumerate())
    name = put(log, [0])
    for report in replicate_every(log, 50, stop=stop):
        reports.append(report)
        if len(reports) == 3:
            stop.set()
    assert [report.objects for report in reports] == [2, 0, 0]
    assert brokers_of(log.journal.refresh(), name) == (0, 1, 2)
    eventually(lambda: not any(thread.name == "pylog-prober" for thread in set(threading.enumerate()) - others))


class FewThreads(SystemThreads):
    """The threads of a process that may have no more, now and then."""

    none_left = False

    def start(self, work: Callable[[], None], name: str) -> Thread:
        if self.none_left:
            raise RuntimeError("can't start new thread")
        return super().start(work, name)


def test_replication_continues_when_the_process_has_threads_again(log: Log, tmp_path: Path) -> None:
    """Otherwise nobody would copy any more, or fence a root that fails."""
    threads, stop = FewThreads(), threading.Event()
    log = Log(Journal.open(open_store(str(tmp_path / "log")), create=False, threads=threads))
    rounds = replicate_every(log, 50, stop=stop, probes=False)
    next(rounds)
    name, threads.none_left = put(log, [0]), True
    freed = threading.Timer(0.3, lambda: setattr(threads, "none_left", False))
    freed.start()
    assert sum(report.objects for report in islice(rounds, 1)) == 2
    assert brokers_of(log.journal.refresh(), name) == (0, 1, 2)
    stop.set()
    assert not [*rounds]


def test_a_failure_after_the_first_round_is_retried_while_there_is_more_to_copy(log: Log, tmp_path: Path) -> None:
    """The rounds after a broker was added may last for hours."""
    threads, stop = FewThreads(), threading.Event()
    log = Log(Journal.open(open_store(str(tmp_path / "log")), create=False, threads=threads))
    name = put(log, [0, 1])
    (tmp_path / "log" / name).unlink()
    rounds = replicate_every(log, 50, stop=stop, probes=False)
    assert next(rounds).busy, "a missing copy was found"
    threads.none_left = True
    freed = threading.Timer(0.3, lambda: setattr(threads, "none_left", False))
    freed.start()
    assert sum(report.objects for report in islice(rounds, 1)) == 1
    assert brokers_of(log.journal.refresh(), name) == (0, 1, 2)
    stop.set()
    assert not [*rounds]


def test_replication_once_copies_all(log: Log) -> None:
    names = [put(log, [0]) for _ in range(5)]
    report = replicate_once(log)
    assert (report.objects, report.busy, len(report.joined)) == (10, False, 2)
    assert all(brokers_of(log.journal.refresh(), name) == (0, 1, 2) for name in names)


def test_an_unknown_broker_is_an_error(log: Log) -> None:
    for rounds in (lambda: replicate_once(log, brokers=[1, 99]), lambda: next(replicate_every(log, 10, brokers=[99]))):
        with pytest.raises(BrokerNotAvailable, match="unknown broker 99: `pylog broker list` shows"):
            rounds()


def test_a_log_without_brokers_has_its_own_root_only(tmp_path: Path) -> None:
    log = connect(str(tmp_path / "log"), durability="os")
    metrics = ReplicaMetrics()
    metrics.note(log.journal.state)
    lines = [line for line in metrics.lines(log.journal.state) if "{broker" in line]
    assert lines[0] == 'pylog_broker_active{broker="0"} 1'
    assert len(lines) == 4
    assert count_replicas(log.journal.state) == (0, 0, 0)
