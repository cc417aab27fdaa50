"""Partitions get other replicas by the client's API, beside writers and readers."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log import TopicPartition
from spark_log.client.log import Log
from spark_log.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from spark_log.metadata.replicas.replicas import copies_of
from tests.client.replicated import create_replicated, with_copies

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")

TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """With brokers 1 and 2, and a topic on 0 and 1."""
    log = spark_log.connect(tmp_path / "log", create=True)
    create_replicated(with_copies(log, [tmp_path / "disk1", tmp_path / "disk2"], "u"), "t", (0, 1), 2)
    return log


def values(log: Log) -> list[bytes]:
    return [row["value"] for row in log.read("t", columns=["value"]).to_pylist()]


def placed(log: Log) -> list[tuple[int, ...]]:
    """The brokers of each object."""
    state = log.journal.refresh()
    return [
        () if (copies := copies_of(state, row)) is None else copies.brokers for _, row in sorted(state.objects.items())
    ]


def test_new_records_go_to_the_new_replicas_and_all_are_read(log: Log) -> None:
    admin = log.admin
    log.append("t", [{"value": "a", "partition": 0}])
    admin.alter_partition_reassignments({TP: [1, 2]})
    log.append("t", [{"value": "b", "partition": 0}])
    assert placed(log) == [(0, 1), (1, 2)] and values(log) == [b"a", b"b"]
    move = admin.list_partition_reassignments()[TP]
    assert (move.replicas, move.adding_replicas, move.removing_replicas) == ((1, 2, 0), (2,), (0,))
    assert admin.list_partition_reassignments([TopicPartition("t", 1)]) == {}
    moving, other = admin.describe_topics(["t"])["t"].partitions
    assert (moving.replicas, moving.adding, moving.removing) == ((1, 2, 0), (2,), (0,))
    assert (moving.leader, moving.isr, other.adding, other.removing) == (1, (1, 2), (), ())
    assert [one.replicas for one in admin.describe_cluster().brokers] == [3, 3, 2]
    admin.alter_partition_reassignments({TP: None})
    assert admin.list_partition_reassignments([TP])[TP] == ((0, 1, 2), (), (2,))
    log.append("t", [{"value": "c", "partition": 0}])
    assert sorted(placed(log)) == [(0, 1), (0, 1), (1, 2)] and values(log) == [b"a", b"b", b"c"]


def test_what_cannot_be_moved_is_refused(log: Log) -> None:
    alter = log.admin.alter_partition_reassignments
    alter({})
    with pytest.raises(UnknownTopicOrPartition):
        alter({TopicPartition("t", 2): [1]})
    with pytest.raises(UnknownTopicOrPartition):
        log.admin.list_partition_reassignments([TopicPartition("x", 0)])
    with pytest.raises(NoReassignmentInProgress):
        alter({TP: None})
    with pytest.raises(InvalidReplicaAssignment, match="unknown broker 9"):
        alter({TP: [1, 9]})
    with pytest.raises(InvalidReplicationFactor):
        alter({TP: [1]}, allow_replication_factor_change=False)
    with pytest.raises(InvalidRequest, match=r"is not a list of broker ids, as \[1, 2, 3\]"):
        alter({TP: "1,2"})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="'1' is not a broker id"):
        alter({TP: ["1"]})  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="is not a TopicPartition"):
        alter({"t": [1]})  # type: ignore[dict-item]


# Promise: replicas.md#move-partitions
def test_another_list_replaces_a_move_unless_the_caller_forbids_it(log: Log) -> None:
    """As in Kafka.  The same list again is not another one, so a call that is repeated succeeds."""
    alter, other = log.admin.alter_partition_reassignments, TopicPartition("t", 1)
    log.append("t", [{"value": "a", "partition": 0}])
    alter({TP: [1, 2]}, replace=False)
    alter({TP: [1, 2], other: [1, 2]}, replace=False)
    with pytest.raises(ReassignmentInProgress, match=r"1 partition is being moved \(t-0\)"):
        alter({TP: [2, 0], other: [2, 0]}, replace=False)
    assert log.admin.list_partition_reassignments()[TP].replicas == (1, 2, 0)
    alter({TP: [2, 0], other: [2, 0]})
    assert log.admin.list_partition_reassignments()[TP].replicas == (2, 0, 1)
    alter({TP: None}, replace=False)


# Promise: replicas.md#move-partitions
def test_writes_that_began_before_the_move_commit_in_their_order(log: Log, tmp_path: Path) -> None:
    """The rows of a transaction stay in order, although some are added after the move, to an older group."""
    with spark_log.connect(tmp_path / "log") as writer, writer.transaction("etl") as txn:
        txn.append("t", [{"value": "a", "partition": 0}])
        log.admin.alter_partition_reassignments({TP: [0, 1, 2]})
        writer.journal.refresh()
        txn.append("t", [{"value": "b", "partition": 0}])
    log.append("t", [{"value": "c", "partition": 0}])
    assert values(log) == [b"a", b"b", b"c"]
    assert set(placed(log)) == {(0, 1), (0, 1, 2)}
    assert log.admin.list_partition_reassignments()[TP] == ((0, 1, 2), (2,), ())
