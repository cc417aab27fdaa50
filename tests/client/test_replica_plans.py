"""Plans of other replicas for partitions, from the state alone."""

from __future__ import annotations

from typing import Any

import pytest

from spark_log.client.admin.replica_plans import current_replicas, drained, spread_over, with_factor
from spark_log.errors import SparkLogError
from spark_log.metadata.commands import CreateTopic
from spark_log.model import TopicPartition
from tests.unit.metadata.replica_history import ReplicaHistory


@pytest.fixture
def log() -> ReplicaHistory:
    """Brokers 1 to 3, 8 that is fenced, 9 that is asynchronous; topics with factors 2 and 1."""
    log = ReplicaHistory(1, 2, 3, 8)
    log.add(9, is_async=True)
    log.fence(8)
    log.topic((0, 1), (1, 2), (2, 0))
    log.command(CreateTopic(name="own", topic_id="own", partitions=2))
    return log


def lists(plan: dict[TopicPartition, tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [plan[tp] for tp in sorted(plan)]


def test_a_topic_is_spread_over_the_given_brokers(log: ReplicaHistory) -> None:
    """With its factor, or another one; on nothing else."""
    assert {broker for one in lists(spread_over(log.state, ["t"], [2, 3])) for broker in one} == {2, 3}
    plan = spread_over(log.state, ["t", "own"], [1, 2, 3], 3)
    assert all(set(one) == {1, 2, 3} for one in plan.values()) and len(plan) == 5
    assert len({plan[TopicPartition("t", number)][0] for number in range(3)}) == 3
    assert lists(spread_over(log.state, ["own"], [3])) == [(3,), (3,)]


def test_racks_count_unless_they_are_not_to() -> None:
    log = ReplicaHistory()
    for broker, rack in enumerate("aab", 1):
        log.add(broker, rack=rack)
    log.topic((0, 1), (0, 1), (0, 1), (0, 1))
    assert all({1, 2} != set(one) for one in spread_over(log.state, ["t"], [1, 2, 3]).values())
    assert any({1, 2} == set(one) for one in spread_over(log.state, ["t"], [1, 2, 3], rack_aware=False).values())


@pytest.mark.parametrize(
    ("brokers", "factor", "said"),
    [
        ([1, 7], None, "broker 7 is not registered"),
        ([1, 9], None, "broker 9 is asynchronous"),
        ([1, 2, 1], None, "broker 1 is named twice"),
        ([8], 1, "none of the brokers 8 is active"),
        ([1], None, "replication factor 2, and the assignment is for 1 broker"),
        ([1, 2], 0, "replication factor 0, and"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(log: ReplicaHistory, brokers: list[int], factor: Any, said: str) -> None:
    with pytest.raises(SparkLogError, match=said):
        spread_over(log.state, ["t"], brokers, factor)


def test_another_factor_is_a_spread_over_all_brokers(log: ReplicaHistory) -> None:
    """Of one: the log's own root."""
    assert all(len(set(one)) == 3 for one in with_factor(log.state, "own", 3).values())
    assert 8 not in {broker for one in with_factor(log.state, "t", 4).values() for broker in one}
    assert all(one[-1] == 8 for one in with_factor(log.state, "t", 5).values()), "fenced, and all others are there"
    assert lists(with_factor(log.state, "t", 1)) == [(0,)] * 3
    with pytest.raises(SparkLogError, match="factor 6, and 5 brokers can hold replicas"):
        with_factor(log.state, "t", 6)
    with pytest.raises(SparkLogError, match="factor 0; expected 1 or more"):
        with_factor(log.state, "t", 0)


def test_asynchronous_replicas_stay(log: ReplicaHistory) -> None:
    """They count."""
    log.topic((0, 1, 9), (1, 0, 9), name="far")
    assert all(one[-1] == 9 and len(one) == 4 for one in with_factor(log.state, "far", 4).values())
    assert lists(with_factor(log.state, "far", 2)) == [(0, 9)] * 2
    with pytest.raises(SparkLogError, match="1 asynchronous replica; expected 2 or more"):
        with_factor(log.state, "far", 1)


def test_a_broker_is_drained_of_all_topics(log: ReplicaHistory) -> None:
    """Partitions without a replica on it are left alone."""
    log.topic((1,), (1,), name="single")
    log.topic((2, 0), (1, 9), name="far")
    plan = drained(log.state, 1)
    named = [("far", 1), ("single", 0), ("single", 1), ("t", 0), ("t", 1)]
    assert sorted(plan) == [TopicPartition(*one) for one in named]
    for tp, replicas in plan.items():
        before = current_replicas(log.state, [tp.topic])[tp]
        assert 1 not in replicas and len(replicas) == len(before) and set(before) - {1} <= set(replicas)
    assert drained(log.state, 9) == {TopicPartition("far", 1): (1,)}
    assert drained(log.state, 8) == {}


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        (0, "cannot be drained or removed"),
        (7, "is not registered"),
        (1, r"of 1 topic \(wide\) with 5 replicas, and no other"),
    ],
)
def test_a_broker_that_cannot_be_drained(log: ReplicaHistory, broker: int, said: str) -> None:
    log.topic((0, 1, 2, 3, 8), name="wide")
    with pytest.raises(SparkLogError, match=said):
        drained(log.state, broker)
