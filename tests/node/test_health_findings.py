"""`pylog cluster health` says what is wrong with brokers, and what to do."""

from __future__ import annotations

from pathlib import Path

from spark_log import Log
from spark_log.metadata.records import Copy
from spark_log.metadata.replica_commands import FenceBroker, RemoveCopies
from spark_log.node.health_findings import Finding, broker_findings
from tests.node.replicated_logs import put, replicated_log


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
    log.journal.propose(FenceBroker(broker=2, reason="its root is not usable: it is gone"))
    log.journal.propose(FenceBroker(broker=1, reason="its disk is replaced tonight"))
    found = wrong(log)
    assert "`pylog broker replace 2`" in found["broker 2"]
    assert "`pylog broker unfence 1` takes it back" in found["broker 1"]
    log.journal.propose(RemoveCopies(copies=tuple(Copy(name, broker, 0) for broker in (0,))))
    held = log.journal.refresh().brokers
    log.journal.propose(RemoveCopies(copies=tuple(Copy(name, broker, held[broker].epoch) for broker in (1, 2))))
    assert "1 object without any known good copy" in wrong(log)["objects"]
