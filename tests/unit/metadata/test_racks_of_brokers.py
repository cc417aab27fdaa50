"""The rack of a broker can be changed, also that of broker 0, which is not registered."""

from __future__ import annotations

import pytest

from spark_log.errors import BrokerNotAvailable, InvalidReplicationFactor, InvalidRequest
from spark_log.metadata.replicas.decide_replicas import check_factor
from spark_log.metadata.replicas.placement import usable_brokers
from spark_log.metadata.replicas.replica_commands import AlterBroker, RegisterBroker
from spark_log.metadata.replicas.replicas import is_active
from tests.unit.metadata.replica_history import ReplicaHistory


def racks(log: ReplicaHistory) -> dict[int, str]:
    return {one.broker: one.rack for one in usable_brokers(log.state)}


def test_a_broker_is_put_in_another_rack() -> None:
    log = ReplicaHistory(1)
    before = log.state.brokers[1]
    assert log.command(AlterBroker(broker=1, rack="b")) and not log.command(AlterBroker(broker=1, rack="b"))
    assert log.state.brokers[1] == before._replace(rack="b")


# Promise: replicas.md#change-brokers
def test_broker_0_has_a_row_only_while_it_has_a_rack() -> None:
    log = ReplicaHistory(1)
    assert not log.command(AlterBroker(broker=0, rack=""))
    assert log.command(AlterBroker(broker=0, rack="a"))
    assert racks(log) == {0: "a", 1: ""} and is_active(log.state, 0)
    log.topic((0, 1))
    assert log.isr() == (0, 1)
    assert log.command(AlterBroker(broker=0, rack=""))
    assert racks(log) == {0: "", 1: ""} and 0 not in log.state.brokers


# Promise: replicas.md#move-partitions
def test_a_drained_broker_gets_no_replicas() -> None:
    """Until that is taken back.  Its rack stays, and broker 0 cannot be drained."""
    log = ReplicaHistory(1, 2)
    log.command(AlterBroker(broker=1, rack="b"))
    assert log.command(AlterBroker(broker=1, drained=True)) and not log.command(AlterBroker(broker=1, drained=True))
    assert racks(log) == {0: "", 2: ""} and log.state.brokers[1].rack == "b"
    with pytest.raises(InvalidReplicationFactor, match=r"2 brokers .*\(0, 2\).*; drained: 1 \(`pylog broker alter ID"):
        check_factor(log.state, "t", 3)
    assert log.command(AlterBroker(broker=1, drained=False)) and racks(log) == {0: "", 1: "b", 2: ""}
    assert not log.command(AlterBroker(broker=0, drained=False))
    with pytest.raises(InvalidRequest, match="broker 0 is the log's own root"):
        log.command(AlterBroker(broker=0, drained=True))


# Promise: replicas.md#move-partitions
def test_a_drained_broker_whose_disk_is_replaced_stays_drained() -> None:
    log = ReplicaHistory(1, 2)
    log.command(AlterBroker(broker=1, drained=True))
    log.command(RegisterBroker(broker=1, directory="new", url="file:///new", replaces=True))
    assert log.state.brokers[1].directory == "new" and racks(log) == {0: "", 2: ""}


def test_an_unknown_broker_is_named() -> None:
    with pytest.raises(BrokerNotAvailable, match="broker 5 is not registered"):
        ReplicaHistory(1).command(AlterBroker(broker=5, rack="a"))
