"""Scenarios of what users of Kafka expect: which records survive, which writes are refused, who may lack a key."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from simulation.harness.broker_roots import ControlledRoots, register_broker
from spark_log.client.admin.brokers import fence_broker, return_broker
from spark_log.errors import NotEnoughReplicas
from spark_log.metadata.replicas.replica_state import PlacementGroup
from spark_log.replication.broker_prober import Prober
from spark_log.replication.replicator import Replicator

BROKERS = (0, 1, 2)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    """A topic "t" with a replica on each of three brokers."""
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        log.admin.incremental_alter_configs({None: {"replica.lag.time.max.ms": "1"}})
        for broker in (1, 2):
            register_broker(log, broker, str(tmp_path / f"broker{broker}"))
        log.admin.create_topics([spark_log.NewTopic("t", replica_assignment={0: BROKERS})])
        yield log


def group(log: spark_log.Log) -> PlacementGroup:
    return log.journal.refresh().placement_groups[1]


def append(log: spark_log.Log, *values: int) -> None:
    log.append("t", [{"value": b"%d" % value} for value in values])


def read(log: spark_log.Log) -> list[tuple[int, int]]:
    """Offsets and values."""
    found = log.read("t", columns=["offset", "value"]).to_pylist()
    return [(row["offset"], int(row["value"])) for row in found]


# Promise: replicas.md#what-an-acknowledged-record-survives
@pytest.mark.parametrize("survivor", BROKERS)
def test_acknowledged_records_survive_the_loss_of_all_roots_but_one(
    log: spark_log.Log, tmp_path: Path, survivor: int
) -> None:
    for number in range(3):
        append(log, number)
    for broker in set(BROKERS) - {survivor}:
        shutil.rmtree(tmp_path / "log" / "data" if broker == 0 else tmp_path / f"broker{broker}")
    assert read(log) == [(number, number) for number in range(3)]


# Promise: replicas.md#what-an-acknowledged-record-survives
def test_clean_elections_lose_nothing(log: spark_log.Log) -> None:
    """Each broker is fenced in turn, also the one that has just got the leadership.  Only those in sync lead."""
    written, epochs = 0, [group(log).leader_epoch]
    for broker in (1, 2, 1, 2, 2):
        fence_broker(log.journal, broker)
        append(log, written)
        assert group(log).leader in group(log).isr and broker not in group(log).isr
        return_broker(log.journal, broker)
        append(log, written + 1)
        Replicator(log).round()
        append(log, written + 2)
        written += 3
        epochs.append(group(log).leader_epoch)
    assert read(log) == [(number, number) for number in range(written)]
    assert epochs == sorted(epochs)
    assert set(group(log).isr) == set(BROKERS)


# Promise: replicas.md#what-an-acknowledged-record-survives
def test_a_write_below_the_minimum_is_refused_and_leaves_no_hole(log: spark_log.Log) -> None:
    log.admin.incremental_alter_configs({"t": {"min.insync.replicas": "2"}})
    append(log, 0)
    for broker in (1, 2):
        fence_broker(log.journal, broker)
    with log.producer(delivery_timeout_ms=1000) as producer, pytest.raises(NotEnoughReplicas):
        producer.send("t", b"refused").result(30)
    assert read(log) == [(0, 0)], "what was written before can still be read"
    return_broker(log.journal, 1)
    Replicator(log).round()
    append(log, 1)
    assert read(log) == [(0, 0), (1, 1)]


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.parametrize(("order", "says"), [("keyless", "no credentials"), ("denied", "access denied")])
def test_a_process_without_access_fences_nobody(
    log: spark_log.Log, tmp_path: Path, caplog: pytest.LogCaptureFixture, order: str, says: str
) -> None:
    """It writes and reads with the other roots, and says what it lacks.  One that has access copies the rest."""
    log.admin.incremental_alter_configs({None: {"broker.session.timeout.ms": "100"}})
    append(log, 0)
    other = spark_log.connect(tmp_path / "log", durability="os")
    ControlledRoots.of(other, tmp_path).order(1, order)
    append(other, 1)
    assert read(other) == [(0, 0), (1, 1)]
    prober = Prober(other)
    for _ in range(3):
        prober.round(10_000)
        time.sleep(0.1)
    assert not log.journal.refresh().brokers[1].fenced
    assert f"the root of broker 1 is not checked: meta/broker.json: {says}" in caplog.text
    Replicator(log).round()
    assert [copies.brokers for copies in log.journal.refresh().copies.values()] == [BROKERS]
