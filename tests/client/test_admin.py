"""The admin of a real log."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log.errors import (
    GroupIdNotFound,
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_log.model import EARLIEST, LATEST, NewTopic, OffsetAndMetadata, TopicPartition
from tests.client.logs import new_log

P0 = TopicPartition("orders", 0)
P1 = TopicPartition("orders", 1)


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """Topic "orders" with two partitions and ten records in the first."""
    log = new_log(tmp_path, orders=2)
    log.append("orders", [{"value": b"%d" % n, "partition": 0, "timestamp": 1000 * n} for n in range(10)])
    return log


def test_topics_are_created_described_grown_and_deleted(log: spark_log.Log) -> None:
    """All changes of one call are one commit, all or nothing."""
    ids = log.admin.create_topics([NewTopic("a", 3, {"retention.ms": "1000"}), NewTopic("b")])
    assert log.admin.list_topics() == ["a", "b", "orders"]
    found = log.admin.describe_topics(["a", "orders"])
    assert found["a"].topic_id == ids["a"] and found["a"].configs == {"retention.ms": "1000"}
    assert [part.partition for part in found["a"].partitions] == [0, 1, 2] and found["a"].rows == 0
    orders = found["orders"]
    assert (orders.rows, orders.objects, orders.partitions[0].end) == (10, 1, 10) and orders.bytes > 0
    log.admin.create_partitions({"a": 6})
    assert len(log.admin.describe_topics()["a"].partitions) == 6
    log.admin.delete_topics(["a", "b"])
    assert log.admin.list_topics() == ["orders"]


# Promise: clients.md#admin
def test_one_wrong_topic_keeps_all_from_being_created(log: spark_log.Log) -> None:
    """Names, counts, configs, topics that are there; a dry run says the same."""
    for wrong, error in [
        (NewTopic("no/slash"), InvalidTopic),
        (NewTopic("orders"), TopicAlreadyExists),
        (NewTopic("c", 0), InvalidPartitions),
        (NewTopic("c", 1, {"retention.mss": "1"}), InvalidConfig),
        (NewTopic("good"), InvalidRequest),
    ]:
        with pytest.raises(error):
            log.admin.create_topics([NewTopic("good"), wrong])
    log.admin.create_topics([NewTopic("good")], validate_only=True)
    assert log.admin.list_topics() == ["orders"]
    with pytest.raises(InvalidPartitions):
        log.admin.create_partitions({"orders": 1})
    with pytest.raises(UnknownTopicOrPartition, match="did you mean orders"):
        log.admin.delete_topics(["order"])


def test_configs_are_shown_and_altered(log: spark_log.Log) -> None:
    """Of topics by name, of the log under None; None as a value is the default again; what is not in force warns."""
    log.admin.incremental_alter_configs({"orders": {"retention.ms": "5000"}, None: {"num.partitions": "4"}})
    found = log.admin.describe_configs(["orders", None])
    assert found["orders"]["retention.ms"][:3] == ("5000", "604800000", "topic")
    assert found["orders"]["segment.bytes"].source == "default" and found["orders"]["segment.bytes"].is_default
    assert (found[None]["num.partitions"].value, found[None]["num.partitions"].source) == ("4", "log")
    log.admin.incremental_alter_configs({"orders": {"retention.ms": None}})
    assert log.admin.describe_configs(["orders"])["orders"]["retention.ms"].is_default
    with pytest.warns(UserWarning, match="no effect in pylog: Each commit is synced"):
        log.admin.incremental_alter_configs({"orders": {"flush.ms": "5"}})
    with pytest.raises(InvalidConfig, match="did you mean"):
        log.admin.incremental_alter_configs({"orders": {"retention.m": "5"}})


def test_offsets_are_listed_by_end_time_and_position(log: spark_log.Log) -> None:
    """Kafka's numbers, a time in ms, or a position as text."""
    assert log.admin.list_offsets({P0: EARLIEST, P1: LATEST}) == {P0: 0, P1: 0}
    assert log.admin.list_offsets({P0: 3500, P1: 0}) == {P0: 4, P1: -1}
    assert log.admin.list_offsets({P0: "latest-3"}) == {P0: 7}
    with pytest.raises(UnknownTopicOrPartition):
        log.admin.list_offsets({P0._replace(partition=9): LATEST})


def test_records_are_deleted_up_to_an_offset(log: spark_log.Log) -> None:
    """The reply is the new start; -1 is the end; going back changes nothing; beyond the end is an error."""
    assert log.admin.delete_records({P0: 4}) == {P0: 4}
    assert log.admin.delete_records({P0: 2}) == {P0: 4}
    assert log.admin.delete_records({P0: "latest-5"}) == {P0: 5}
    with pytest.raises(OffsetOutOfRange):
        log.admin.delete_records({P0: 11})
    assert log.read("orders").column("offset").to_pylist() == [5, 6, 7, 8, 9]
    assert log.admin.delete_records({P0: -1, P1: LATEST}) == {P0: 10, P1: 0}


def test_groups_and_their_offsets(log: spark_log.Log) -> None:
    """List, describe, alter, forget."""
    with log.consumer("orders", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.poll(1000)
        (member,) = log.admin.describe_consumer_groups(["g"])["g"].members
        assert (member.kind, member.member_id != "") == ("consumer", True)
        assert log.admin.list_consumer_groups() == [("g", "Stable")]
    log.admin.alter_consumer_group_offsets("h", {P0: 3, P1: OffsetAndMetadata(0, "n")})
    log.admin.alter_consumer_group_offsets("h", {P0: "latest-1"})
    assert log.admin.list_consumer_group_offsets("h") == {P0: OffsetAndMetadata(9), P1: OffsetAndMetadata(0, "n")}
    assert log.admin.list_consumer_group_offsets("h", [P1]) == {P1: OffsetAndMetadata(0, "n")}
    log.admin.delete_consumer_group_offsets("h", [P1])
    assert list(log.admin.list_consumer_group_offsets("h")) == [P0]
    log.admin.delete_consumer_groups(["g", "h"])
    assert log.admin.list_consumer_groups() == []
    assert log.admin.describe_consumer_groups(["g"])["g"].state == "Dead"
    for refused in (
        lambda: log.admin.list_consumer_group_offsets("g"),
        lambda: log.admin.delete_consumer_groups(["g"]),
        lambda: log.admin.delete_consumer_group_offsets("g", [P0]),
        lambda: log.admin.remove_members_from_consumer_group("g"),
    ):
        with pytest.raises(GroupIdNotFound, match="'g'"):
            refused()


def test_the_log_and_its_producers(log: spark_log.Log) -> None:
    """describe_cluster, describe_producers."""
    with pytest.raises(InvalidRequest, match="is on its storage, not in a quorum"):
        log.admin.describe_metadata_quorum()
    cluster = log.admin.describe_cluster()
    assert (cluster.cluster_id, cluster.url, cluster.mode) == (log.cluster_id, log.url, "embedded")
    assert not cluster.coordinator
    with log.transaction("t") as txn:
        txn.send("orders", b"x", partition=0)
    found = log.admin.describe_producers([P0, P1])
    assert found[P1] == [] and len(found[P0]) == 2
    by_name = {one.producer_id: one for one in found[P0]}
    assert (by_name["txn:t"].last_offset, by_name["txn:t"].last_sequence) == (10, 0)


def test_what_others_made_meanwhile_is_known(log: spark_log.Log) -> None:
    """A handle that has not looked at the log since refuses nothing for that."""
    other = spark_log.connect(log.url)
    other.append("new", [{"value": "x"}])
    other.admin.alter_consumer_group_offsets("g", {TopicPartition("new", 0): 1})
    log.admin.remove_members_from_consumer_group("g")
    other.append("newer", [{"value": "x"}])
    log.admin.delete_topics(["newer"])
    assert other.admin.list_topics() == ["new", "orders"]
