"""A broker that keeps only the newest objects gets them and is read from; old ones are deleted there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from simulation.harness.clocks import SkewedClock
from spark_log import Log
from spark_log.client.admin.answering_roots import RootAnswers
from spark_log.client.admin.broker_views import describe_brokers
from spark_log.journal.journal import Journal
from spark_log.maintenance.root_collection import RootCollector
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.monitoring.health_findings import broker_findings
from spark_log.replication.copy_to_broker import CopiedObjects
from spark_log.replication.missing_copies import CopyTally, record_copies
from spark_log.replication.replicator import Replicator
from spark_log.runtime.clock import SystemClock
from spark_log.store.open import open_store
from tests.replication.replicated_logs import add_broker, brokers_of, create_topic, folder_of, put
from tests.restored import set_back_and_written

HOUR = 3_600_000


@pytest.fixture
def clock() -> SkewedClock:
    return SkewedClock(SystemClock())


@pytest.fixture
def log(tmp_path: Path, clock: SkewedClock) -> Log:
    log = Log(Journal.open(open_store(str(tmp_path / "log")), create=True, clock=clock))
    log.admin.incremental_alter_configs({None: {"log.clock.skew.max.ms": "-1"}})
    add_broker(log, 1, str(tmp_path / "broker-1"), is_async=True, keep_ms=HOUR)
    create_topic(log, "t", (0, 1))
    return log


# Promise: replicas.md#change-brokers
def test_it_has_the_newest_objects(log: Log, tmp_path: Path, clock: SkewedClock) -> None:
    old, replicator, collector = put(log, [0]), Replicator(log), RootCollector(log.journal)
    assert replicator.round().objects == 1
    files = folder_of(log, tmp_path, 1)
    assert (files / old).exists()
    for _ in range(20):
        clock.skew_ms += HOUR // 16 + 1
        replicator.round()
    young = put(log, [0])
    report = replicator.round()
    assert report.objects == 1 and not report.lag[1].objects
    state = log.journal.refresh()
    assert (brokers_of(state, old), brokers_of(state, young)) == ((0,), (0, 1))
    assert collector.round(state).names == [f"broker 1: {old}"]
    assert not (files / old).exists() and (files / young).exists()
    assert collector.round(state).names == []
    assert [finding.says for finding in broker_findings(state)][1] == "has the newest objects of its partitions"
    assert [finding for finding in broker_findings(state) if not finding.healthy] == []
    (described,) = [one for one in describe_brokers(state, log.url) if one.broker == 1]
    assert (described.keep_ms, described.lacking_objects, described.objects) == (HOUR, 0, 1)
    assert log.read("t").num_rows == 20
    assert Replicator(log).round().objects == 0


# Promise: copies.md#if-you-restore-a-disk-snapshot
def test_a_copy_stays_in_a_log_that_was_set_back(log: Log, tmp_path: Path, clock: SkewedClock) -> None:
    """The snapshot of the log's disk says that the broker has it."""
    old, replicator = put(log, [0]), Replicator(log)
    assert replicator.round().objects == 1
    shutil.copytree(tmp_path / "log", tmp_path / "snapshot")
    for _ in range(20):
        clock.skew_ms += HOUR // 16 + 1
        replicator.round()
    put(log, [0])
    state = log.journal.refresh()
    assert brokers_of(state, old) == (0,) and state.brokers[1].deletable > 0
    files = folder_of(log, tmp_path, 1)
    set_back_and_written(log, tmp_path / "snapshot", state.version)
    assert RootCollector(log.journal).round(state).names == [] and (files / old).exists()


# Promise: replicas.md#change-brokers
def test_it_lacks_what_is_new(log: Log) -> None:
    """Then health says so."""
    put(log, [0])
    (finding,) = [one for one in broker_findings(log.journal.refresh()) if one.what == "broker 1"]
    assert not finding.healthy and finding.says.startswith("lacks 1 object")


def test_the_file_of_a_copy_that_stayed_is_deleted_later(log: Log, tmp_path: Path, clock: SkewedClock) -> None:
    """While the broker with the other copy is fenced, the copy stays; the collector comes back to it."""
    add_broker(log, 2, str(tmp_path / "broker-2"))
    create_topic(log, "u", (2, 1))
    name, replicator, collector = put(log, [2], topic="u"), Replicator(log), RootCollector(log.journal)
    replicator.round()
    log.admin.fence_broker(2)
    for _ in range(20):
        clock.skew_ms += HOUR // 16 + 1
        replicator.round()
    put(log, [0])
    assert collector.round(log.journal.refresh()).names == []
    log.admin.unfence_broker(2)
    for _ in range(2):
        clock.skew_ms += HOUR // 16 + 1
        replicator.round()
    state = log.journal.refresh()
    assert brokers_of(state, name) == (2,)
    assert collector.round(state).names == [f"broker 1: {name}"]


# Promise: replicas.md#change-brokers
def test_a_copy_stays_while_the_root_of_the_other_one_does_not_answer(
    log: Log, tmp_path: Path, clock: SkewedClock
) -> None:
    """Nobody has fenced its broker yet."""
    add_broker(log, 2, str(tmp_path / "broker-2"))
    create_topic(log, "u", (2, 1))
    name, replicator = put(log, [2], topic="u"), Replicator(log)
    replicator.round()
    (tmp_path / "broker-2").rename(tmp_path / "away")
    for _ in range(20):
        clock.skew_ms += HOUR // 16 + 1
        replicator.round()
    put(log, [0])
    assert log.journal.refresh().brokers[1].dropped > 0 and brokers_of(log.journal.state, name) == (1, 2)
    (tmp_path / "away").rename(tmp_path / "broker-2")
    for _ in range(2):
        clock.skew_ms += HOUR // 16 + 1
        replicator.round()
    assert brokers_of(log.journal.refresh(), name) == (2,)


def test_the_last_copy_stays_when_a_copier_wakes_up(log: Log, tmp_path: Path, clock: SkewedClock) -> None:
    """It was stopped after it had put a copy.  Meanwhile, another one has recorded it, and the other holder is away."""
    add_broker(log, 2, str(tmp_path / "broker-2"))
    create_topic(log, "u", (2, 1))
    name, replicator = put(log, [2], topic="u"), Replicator(log)
    replicator.round()
    state = log.journal.refresh()
    log.journal.propose(FenceBroker(broker=2, reason="by hand"))
    for _ in range(20):
        clock.skew_ms += HOUR // 16 + 1
        replicator.round()
    assert state.brokers[1].dropped < log.journal.refresh().brokers[1].dropped
    record_copies(log.journal, state, 1, [CopiedObjects(done=[(name, state.objects[name].size)])], CopyTally())
    assert (folder_of(log, tmp_path, 1) / name).exists() and brokers_of(log.journal.refresh(), name) == (1, 2)


def test_the_logs_own_root_has_to_answer_too(log: Log, tmp_path: Path) -> None:
    """It is never fenced, and need not be where the metadata is."""
    answers = RootAnswers(log.journal)
    assert answers.among({0, 1}, 30.0) == {0, 1}
    (tmp_path / "log").rename(tmp_path / "away")
    assert answers.among({0, 1}, 30.0) == {1}
