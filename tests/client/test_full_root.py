"""A topic with three replicas, and a disk without a byte left under one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import spark_log
from simulation.harness.broker_roots import register_broker
from spark_log.monitoring.health_findings import broker_findings
from spark_log.replication.broker_prober import Prober
from spark_log.replication.replicator import Replicator
from spark_log.replication.root_space import free_where_behind
from tests.server.quorum.test_quorum_full_disk import fill

TIMES = {"broker.session.timeout.ms": "300", "replica.lag.time.max.ms": "1"}


# Promise: replicas.md#when-a-disk-fails
def test_a_full_root_leaves_the_isr_and_returns_when_there_is_space(
    tmp_path: Path, mount: Callable[[str], Path]
) -> None:
    """Writes and reads continue meanwhile, and `pylog cluster health` says what is wrong."""
    disk = mount("size=1m")
    log = spark_log.connect(tmp_path / "log", durability="os")
    log.admin.incremental_alter_configs({None: dict(TIMES)})
    register_broker(log, 1, str(tmp_path / "broker1"))
    register_broker(log, 2, disk.as_uri())
    log.admin.create_topics(
        [spark_log.NewTopic("t", replica_assignment={0: (2, 0, 1)}, configs={"min.insync.replicas": "2"})]
    )
    log.append("t", [{"value": b"0"}])
    fill(disk / "filler")
    began = time.monotonic()
    log.append("t", [{"value": b"1"}])
    assert time.monotonic() - began < 10, "it was not waited for until the session timeout"
    assert _isr(log) == (0, 1)
    assert "lacks 1 object (" in _finding(log) and "its disk has only 0 bytes left: free space there" in _finding(log)
    assert "is fenced: its root has failed all checks for" in _fenced(log)
    assert [log.append("t", [{"value": b"%d" % number}]) for number in (2, 3)]
    assert _values(log) == [0, 1, 2, 3]
    (disk / "filler").unlink()
    assert Prober(log).until_sure().returned == (2,)
    Replicator(log).round(5_000)
    assert _isr(log) == (0, 1, 2)
    assert all(found.healthy for found in broker_findings(log.journal.state))
    assert {copies.brokers for copies in log.journal.state.copies.values()} == {(0, 1, 2)}


def _isr(log: spark_log.Log) -> tuple[int, ...]:
    return tuple(sorted(log.journal.refresh().placement_groups[1].isr))


def _finding(log: spark_log.Log) -> str:
    """The sentence of `pylog cluster health` about the broker."""
    state = log.journal.refresh()
    found = broker_findings(state, free_where_behind(log.journal.roots, state))
    (says,) = [one.says for one in found if one.what == "broker 2" and not one.healthy]
    return says


def _fenced(log: spark_log.Log) -> str:
    """The same when a prober has fenced it."""
    assert Prober(log).until_sure().fenced
    says = _finding(log)
    assert "No space left on device" in says and "or free space there" in says
    return says


def _values(log: spark_log.Log) -> list[int]:
    return [int(value) for value in log.read("t", columns=["value"]).column("value").to_pylist()]
