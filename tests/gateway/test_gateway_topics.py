"""Kafka's clients create, delete and configure topics through a gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

import spark_log
from spark_log.gateway.admin_messages import (
    AlterConfigsRequest,
    ConfigChange,
    ConfigChanges,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NamedValue,
    ReplicasOfNew,
    TopicToCreate,
    TopicToDelete,
    TopicToGrow,
)
from spark_log.gateway.api import ALTER_CONFIGS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from spark_log.gateway.error_codes import (
    INVALID_CONFIG,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REQUEST,
    NONE,
    UNKNOWN_TOPIC_ID,
)
from spark_log.gateway.topic_changes import TOPIC
from tests.gateway.running import DEADLINE_S, Running

Serve = Callable[..., Running]
Error = confluent_kafka.KafkaError


def client(gateway: Running) -> AdminClient:
    return AdminClient({"bootstrap.servers": gateway.address, "log_level": 0})


def codes(futures: dict[Any, Any]) -> dict[str, int]:
    """The error code of each topic, 0 for none."""
    found = {}
    for name, one in futures.items():
        error = one.exception(DEADLINE_S)
        found[getattr(name, "name", name)] = 0 if error is None else error.args[0].code()
    return found


@pytest.fixture
def admin(serve: Serve) -> AdminClient:
    return client(serve())


# Promise: gateway.md#topics
def test_topics_are_created_and_deleted(log: spark_log.Log, admin: AdminClient) -> None:
    """Each has its own error."""
    wanted = [
        NewTopic("new", 3, 1, config={"retention.ms": "1000"}),
        NewTopic("orders", 1, 1),
        NewTopic("a b", 1, 1),
        NewTopic("odd", 1, 3, config={"no.such": "x"}),
    ]
    assert codes(admin.create_topics(wanted)) == {
        "new": 0,
        "orders": Error.TOPIC_ALREADY_EXISTS,
        "a b": Error.TOPIC_EXCEPTION,
        "odd": Error.INVALID_CONFIG,
    }
    found = log.admin.describe_topics(["new"])["new"]
    assert len(found.partitions) == 3 and log.admin.describe_configs(["new"])["new"]["retention.ms"].value == "1000"
    assert codes(admin.create_topics([NewTopic("checked", 1, 1)], validate_only=True)) == {"checked": 0}
    assert codes(admin.delete_topics(["new", "none"])) == {"new": 0, "none": Error.UNKNOWN_TOPIC_OR_PART}
    assert log.admin.list_topics() == ["orders"]


# Promise: gateway.md#topics
def test_configs_and_partitions_are_changed(log: spark_log.Log, admin: AdminClient) -> None:
    """The admin client changes what `pylog topic` changes."""
    change = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[change])
    assert codes(admin.incremental_alter_configs([resource])) == {"orders": 0}
    asked = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    (future,) = admin.describe_configs([asked]).values()
    found = future.result(DEADLINE_S)
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("5000", False)
    assert found["cleanup.policy"].value == "delete" and found["cleanup.policy"].is_default
    assert codes(admin.create_partitions([NewPartitions("orders", 5)])) == {"orders": 0}
    assert codes(admin.create_partitions([NewPartitions("orders", 1)])) == {"orders": Error.INVALID_PARTITIONS}
    assert len(log.admin.describe_topics(["orders"])["orders"].partitions) == 5


# Promise: gateway.md#start
def test_topics_are_changed_only_where_that_is_served(log: spark_log.Log, serve: Serve) -> None:
    """Neither those without the prefix, nor any if the gateway only reads."""
    wanted = {"shop.a": 0, "orders2": Error.TOPIC_AUTHORIZATION_FAILED}
    admin = client(serve("shop."))
    assert codes(admin.create_topics([NewTopic(name, 1, 1) for name in wanted])) == wanted
    reader = client(serve(read_only=True))
    assert set(codes(reader.delete_topics(["orders", "shop.a"])).values()) == {Error.TOPIC_AUTHORIZATION_FAILED}
    assert log.admin.list_topics() == ["orders", "shop.a"]


def test_a_topic_is_deleted_by_its_id_and_named_once(log: spark_log.Log, serve: Serve) -> None:
    gateway = serve()
    twice = CreateTopicsRequest(topics=[TopicToCreate(name="t"), TopicToCreate(name="t"), TopicToCreate(name="u")])
    made = gateway.ask(CREATE_TOPICS, 7, twice).topics
    assert [one.error_code for one in made] == [INVALID_REQUEST, INVALID_REQUEST, NONE]
    ids = [made[2].topic_id, "1" * 32]
    gone = gateway.ask(
        DELETE_TOPICS, 6, DeleteTopicsRequest(topics=[TopicToDelete(name=None, topic_id=i) for i in ids])
    )
    assert [one.error_code for one in gone.responses] == [NONE, UNKNOWN_TOPIC_ID]
    assert log.admin.list_topics() == ["orders"]


# Promise: gateway.md#topics
def test_a_topic_that_is_deleted_by_its_id_has_this_id(log: spark_log.Log, serve: Serve) -> None:
    """A request that is sent again does not delete a topic that was created since under the name."""
    gateway = serve()
    first = log.create_topic(spark_log.NewTopic("again", 1))
    log.append("again", [{"value": "x"}])
    request = DeleteTopicsRequest(topics=[TopicToDelete(topic_id=first)])
    assert gateway.ask(DELETE_TOPICS, 6, request).responses[0].error_code == NONE
    with spark_log.connect(log.url) as other:
        second = other.create_topic(spark_log.NewTopic("again", 1))
    assert gateway.ask(DELETE_TOPICS, 6, request).responses[0].error_code == UNKNOWN_TOPIC_ID
    assert "again" in log.admin.list_topics()
    request = DeleteTopicsRequest(topics=[TopicToDelete(name="again", topic_id=first)])
    assert gateway.ask(DELETE_TOPICS, 6, request).responses[0].error_code == INVALID_REQUEST
    request = DeleteTopicsRequest(topics=[TopicToDelete(topic_id=second)])
    assert gateway.ask(DELETE_TOPICS, 6, request).responses[0].error_code == NONE
    assert "again" not in log.admin.list_topics()


# Promise: gateway.md#topics
def test_what_is_asked_for_and_not_done_is_an_error(log: spark_log.Log, serve: Serve) -> None:
    """Brokers of more partitions, and configs without a value."""
    gateway = serve()
    grown = TopicToGrow(name="orders", count=3, assignments=[ReplicasOfNew(broker_ids=[0])])
    answer = gateway.ask(CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=[grown], timeout_ms=1000))
    assert answer.results[0].error_code == INVALID_REPLICA_ASSIGNMENT
    log.admin.incremental_alter_configs({"orders": {"retention.ms": "1000"}})
    change = ConfigChanges(resource_type=TOPIC, resource_name="orders", configs=[ConfigChange(name="retention.ms")])
    answer = gateway.ask(ALTER_CONFIGS, 1, AlterConfigsRequest(resources=[change]))
    assert answer.responses[0].error_code == INVALID_CONFIG
    assert log.admin.describe_configs(["orders"])["orders"]["retention.ms"].value == "1000"
    made = TopicToCreate(name="new", num_partitions=1, configs=[NamedValue(name="retention.ms")])
    answer = gateway.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[made], timeout_ms=1000))
    assert answer.topics[0].error_code == INVALID_CONFIG and "new" not in log.admin.list_topics()


# Promise: gateway.md#topics
def test_a_config_that_is_named_twice_changes_nothing(log: spark_log.Log, serve: Serve) -> None:
    """As in Kafka."""
    gateway = serve()
    twice = [ConfigChange(name="retention.ms", value="1000"), ConfigChange(name="retention.ms", value="2000")]
    change = ConfigChanges(resource_type=TOPIC, resource_name="orders", configs=twice)
    answer = gateway.ask(ALTER_CONFIGS, 1, AlterConfigsRequest(resources=[change])).responses[0]
    assert answer.error_code == INVALID_REQUEST and "retention.ms" in answer.error_message
    assert log.admin.describe_configs(["orders"])["orders"]["retention.ms"].source != "topic"
