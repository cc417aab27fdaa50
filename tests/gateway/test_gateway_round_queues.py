"""Batches of partitions whose brokers refuse them wait apart, and those of others are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import spark_log
from simulation.harness.broker_roots import register_broker
from spark_log import NewTopic
from spark_log.gateway.api import PRODUCE
from spark_log.gateway.error_codes import NONE, NOT_ENOUGH_REPLICAS
from spark_log.gateway.messages import ProducedPartition, ProducedTopic, ProduceRequest
from spark_log.replication.replicator import Replicator
from tests.gateway.running import DEADLINE_S, Running
from tests.gateway.test_gateway_repeats import batch, values


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    """The topic `orders`: partition 0 on the log's own root, and partition 1 on broker 1."""
    with spark_log.connect(str(tmp_path / "log"), durability="os") as opened:
        register_broker(opened, 1, str(tmp_path / "broker1"))
        opened.create_topic(NewTopic("orders", 2, replica_assignment={0: (0,), 1: (1,)}))
        yield opened


class Sender:
    """Sends records by librdkafka, and notes which are acknowledged."""

    def __init__(self, address: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "linger.ms": 0, "log_level": 0, "enable.idempotence": True}
        )
        self.acknowledged: list[tuple[int, bytes]] = []

    def send(self, partition: int, value: bytes) -> None:
        self._producer.produce("orders", value, partition=partition, on_delivery=self._note)

    def _note(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), message.value()))

    def wait_for(self, *wanted: tuple[int, bytes]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not set(wanted) <= set(self.acknowledged) and time.monotonic() < deadline:
            self._producer.poll(0.05)
        assert set(wanted) <= set(self.acknowledged)


# Promise: gateway.md#writes
@pytest.mark.parametrize("fault", ["fenced", "unmounted"])
def test_brokers_of_one_partition_stop_no_other(
    log: spark_log.Log, serve: Callable[..., Running], tmp_path: Path, fault: str
) -> None:
    """Its records wait, and are in the log once and in order when its broker is back."""
    sender = Sender(serve().address)
    both = [(partition, b"before") for partition in (0, 1)]
    for one in both:
        sender.send(*one)
    sender.wait_for(*both)
    if fault == "fenced":
        log.admin.fence_broker(1)
    else:
        (tmp_path / "broker1").rename(tmp_path / "away")
    for number in range(20):
        for partition in (1, 0):
            sender.send(partition, b"%d" % number)
        sender.wait_for((0, b"%d" % number))
    assert [one for one in sender.acknowledged if one[0] == 1] == [(1, b"before")]
    if fault == "fenced":
        log.admin.unfence_broker(1)
    else:
        (tmp_path / "away").rename(tmp_path / "broker1")
    sender.wait_for(*((1, b"%d" % number) for number in range(20)))
    sender.send(1, b"after")
    sender.wait_for((1, b"after"))
    assert values(log) == [b"before", *(b"%d" % number for number in range(20))]
    assert values(log, partition=1) == [*values(log), b"after"]


# Promise: gateway.md#writes
def test_writes_continue_on_the_disks_that_replace_others(
    log: spark_log.Log, serve: Callable[..., Running], tmp_path: Path
) -> None:
    """Another process replaces all disks of a partition, one after the other.  The gateway has noticed none of it."""
    register_broker(log, 2, str(tmp_path / "broker2"))
    log.create_topic(NewTopic("copied", 1, replica_assignment={0: (1, 2)}))
    gateway = serve()

    def sent() -> int:
        topics = [ProducedTopic(name="copied", partitions=[ProducedPartition(index=0, records=batch(b"x"))])]
        answer = gateway.ask(PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=5000, topics=topics))
        code: int = answer.topics[0].partitions[0].error_code
        return code

    assert sent() == NONE
    with spark_log.connect(log.url, durability="os") as other:
        for broker in (1, 2):
            register_broker(other, broker, str(tmp_path / f"broker{broker}"), replaces=True)
            Replicator(other).round()
        assert sent() == NONE and other.read("copied").num_rows == 2


def test_a_partition_that_stays_without_its_brokers_gets_an_error(
    log: spark_log.Log, serve: Callable[..., Running]
) -> None:
    """After the time of its client; the other partitions of the request are written."""
    gateway = serve()
    log.admin.fence_broker(1)
    for expected in range(2):
        partitions = [ProducedPartition(index=number, records=batch(b"x")) for number in (1, 0)]
        topics = [ProducedTopic(name="orders", partitions=partitions)]
        answer = gateway.ask(PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=1000, topics=topics))
        codes = {one.index: (one.error_code, one.base_offset) for one in answer.topics[0].partitions}
        assert codes[0] == (NONE, expected)
        assert codes[1] == (NOT_ENOUGH_REPLICAS, -1)
