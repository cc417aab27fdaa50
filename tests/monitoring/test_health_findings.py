"""`pylog cluster health` says what is wrong with brokers, and what to do."""

from __future__ import annotations

from pathlib import Path

from spark_log import Log
from spark_log.client.admin.answering_roots import RootAnswers
from spark_log.metadata.commands import Report
from spark_log.metadata.records import Copy, MissingRecord
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.model import ACKS_LEADER
from spark_log.monitoring.health_findings import Finding, broker_findings, why_needed
from spark_log.replication.replicator import Replicator
from tests.replication.replicated_logs import create_topic, put, replicated_log


def wrong(log: Log) -> dict[str, str]:
    return {found.what: found.says for found in broker_findings(log.journal.refresh()) if not found.healthy}


def test_the_sentences(tmp_path: Path) -> None:
    log = replicated_log(tmp_path)
    name = put(log, [0, 1, 2])
    findings = broker_findings(log.journal.refresh())
    assert findings[-1] == Finding("replicas", True, "all replicas are in sync")
    assert [found.what for found in findings] == ["broker 0", "broker 1", "broker 2", "replicas"]
    put(log, [0, 1])
    found = wrong(log)
    assert found["broker 2"].startswith("lacks 1 object (")
    assert "`pylog replicate`" in found["broker 2"]
    assert found["replicas"] == "1 partition with replicas that are not in sync: see the brokers"
    log.journal.propose(FenceBroker(broker=2, reason="its root is not usable: it is gone", cause="check"))
    log.journal.propose(FenceBroker(broker=1, reason="its disk is replaced tonight"))
    found = wrong(log)
    assert "`pylog broker replace 2`" in found["broker 2"]
    assert "`pylog broker unfence 1` takes it back" in found["broker 1"]
    log.journal.propose(Report(record=MissingRecord(copies=tuple(Copy(name, broker, 0) for broker in (0,)))))
    held = log.journal.refresh().brokers
    log.journal.propose(
        Report(record=MissingRecord(copies=tuple(Copy(name, broker, held[broker].epoch) for broker in (1, 2))))
    )
    assert "1 object without any known good copy" in wrong(log)["objects"]


def needs(log: Log, broker: int) -> list[str]:
    return why_needed(log.journal.refresh(), broker).uses


# Promise: replicas.md#change-brokers
def test_a_disk_may_be_taken_away_when_nothing_needs_it(tmp_path: Path) -> None:
    """Before and after its broker is fenced: others lead, are enough, and have all that it has."""
    log = replicated_log(tmp_path)
    put(log, [0, 1, 2])
    assert [needs(log, broker) for broker in (1, 2)] == [[], []]
    assert needs(log, 0) == ["everything that has one copy: it is the log's own root"]
    log.journal.propose(FenceBroker(broker=2, reason="by hand"))
    assert [needs(log, broker) for broker in (1, 2)] == [[], []]
    log.admin.incremental_alter_configs({"t": {"min.insync.replicas": "2"}})
    few = "writes to 1 partition (t-0) with too few others for min.insync.replicas"
    assert (needs(log, 1), needs(log, 2)) == ([few], [])


def test_a_disk_is_needed_while_the_root_of_the_other_broker_is_silent(tmp_path: Path) -> None:
    """It may have failed, and nobody has fenced it."""
    log = replicated_log(tmp_path)
    put(log, [1, 2])
    state = log.journal.refresh()
    assert why_needed(state, 1) == why_needed(state, 2, [0]) == ([], [])
    uses = [
        "writes to 1 partition (t-0) without another in-sync replica",
        "reads of 1 object, of which no active broker has another copy",
    ]
    needed = why_needed(state, 1, [2])
    assert needed.uses == [f"{use}: the root of broker 2 does not answer on this machine" for use in uses]
    assert needed.helps == ["Run this again on a machine where every root answers"]


# Promise: replicas.md#change-brokers
def test_a_disk_is_needed_while_the_logs_own_root_is_silent(tmp_path: Path) -> None:
    """Broker 0 is never fenced, so only its answer tells whether its copies can be used."""
    log = replicated_log(tmp_path)
    create_topic(log, "u", (0, 1))
    put(log, [0, 1], topic="u")
    state = log.journal.refresh()
    assert why_needed(state, 1) == why_needed(state, 2, [0]) == ([], [])
    uses = [
        "writes to 1 partition (u-0) without another in-sync replica",
        "reads of 1 object, of which no active broker has another copy",
    ]
    assert why_needed(state, 1, [0]).uses == [
        f"{use}: the root of broker 0 does not answer on this machine" for use in uses
    ]
    log.admin.incremental_alter_configs({"t": {"min.insync.replicas": "2"}})
    (few,) = why_needed(log.journal.refresh(), 2, [0]).uses
    (tmp_path / "log").rename(tmp_path / "away")
    assert RootAnswers(log.journal).among({0, 1, 2}, 10) == {1, 2}, "as on a machine with the metadata of a coordinator"
    assert few.startswith(
        "writes to 1 partition (t-0) with too few others for min.insync.replicas: the root of broker 0"
    )


# Promise: replicas.md#change-brokers
def test_a_disk_with_records_of_the_leader_alone_is_needed_until_they_are_copied(tmp_path: Path) -> None:
    """If it went with its broker fenced, they would be given up."""
    log = replicated_log(tmp_path, replica_lag_time_max_ms="1")
    put(log, [1], acks=ACKS_LEADER)
    only = ["reads of 1 object, of which no active broker has another copy"]
    assert needs(log, 1) == only
    (helps,) = why_needed(log.journal.state, 1).helps
    assert helps.startswith("`pylog replicate` or a coordinator copies"), "time alone helps"
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    assert needs(log, 1) == only
    Replicator(log).round(5_000)
    assert needs(log, 1) == []
