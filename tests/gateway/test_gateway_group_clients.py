"""Kafka's clients share groups through a gateway, with each other and with pylog's consumers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

import spark_log
from spark_log import NewTopic
from spark_log.gateway.error_codes import ILLEGAL_GENERATION, NONE, NOT_COORDINATOR, UNKNOWN_MEMBER_ID
from tests.cli.commands import ROOT
from tests.gateway.running import DEADLINE_S, Running, librdkafka
from tests.gateway.test_gateway_groups import GROUP, Member, positions
from tests.gateway.test_gateway_produce import Process
from tests.services import Services

Serve = Callable[..., Running]
ROWS = 3000
PARTITIONS = 4


@pytest.fixture(params=["storage", "coordinator"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a log, with and without a coordinator."""
    services = Services()
    try:
        yield services.url(tmp_path / "led") if request.param == "coordinator" else str(tmp_path / "embedded")
    finally:
        services.close()


@pytest.fixture
def log(url: str) -> Iterator[spark_log.Log]:
    """A log with records in the topic `orders`: numbers, as text."""
    with spark_log.connect(url, durability="os") as opened:
        opened.create_topic(NewTopic("orders", PARTITIONS))
        opened.append("orders", [{"value": str(n), "partition": n % PARTITIONS} for n in range(ROWS)])
        yield opened


def member(address: str, **settings: Any) -> confluent_kafka.Consumer:
    """A consumer of the group."""
    defaults = {"group_id": GROUP, "auto_offset_reset": "earliest", "session_timeout_ms": 6_000}
    fast = {"heartbeat_interval_ms": 200, "fetch_wait_max_ms": 100}
    consumer = librdkafka(address, **{**defaults, **fast, **settings})
    consumer.subscribe(["orders"])
    return consumer


def polled(*consumers: confluent_kafka.Consumer) -> list[int]:
    """The records that each of them gets in a moment."""
    found = []
    for consumer in consumers:
        for message in consumer.consume(100, 0.05):
            assert message.error() is None or message.error().retriable(), message.error()
            if message.error() is None:
                found.append(int(message.value()))
    return found


def until(condition: Callable[[], bool], found: list[int], *consumers: confluent_kafka.Consumer) -> None:
    """Add the records that they get until then."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        found += polled(*consumers)


def sizes(*consumers: confluent_kafka.Consumer) -> list[int]:
    """How many partitions each has."""
    return sorted(len(consumer.assignment()) for consumer in consumers)


CHILD = """
import sys
from contextlib import suppress
from confluent_kafka import KafkaException
from tests.gateway.test_gateway_group_clients import member
consumer = member(sys.argv[1])
while True:
    messages = [one for one in consumer.consume(20, 0.05) if one.error() is None]
    if messages:
        print(*[one.value().decode() for one in messages], flush=True)
        with suppress(KafkaException):
            consumer.commit(asynchronous=False)
            print("committed", flush=True)
"""
"""Processes records before it commits them."""


# Promise: gateway.md#groups
def test_two_consumers_share_and_one_is_killed(log: spark_log.Log, serve: Serve) -> None:
    """No record is lost, and those that it has committed are not read again."""
    address, found = serve().address, list[int]()
    command = [sys.executable, "-c", CHILD, address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        lines = [killed.stdout.readline()]
        other = member(address, enable_auto_commit=True)
        until(lambda: sizes(other) == [2], found, other)
        killed.kill()
        lines += killed.stdout.readlines()
    printed = {int(word) for line in lines if line != "committed\n" for word in line.split()}
    committed = {int(n) for line, after in pairwise(lines) if after == "committed\n" for n in line.split()}
    until(lambda: sizes(other) == [4], found, other)
    until(lambda: {*printed, *found} == set(range(ROWS)), found, other)
    assert committed and committed.isdisjoint(found)
    other.close()
    assert sum(positions(log).values()) == ROWS


# Promise: gateway.md#groups
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_rebalances_without_loss(log: spark_log.Log, serve: Serve, strategy: str) -> None:
    """Members come and leave; each record is read, and positions are in the log."""
    address, found = serve().address, list[int]()
    settings = {"partition_assignment_strategy": strategy, "enable_auto_commit": True}
    first = member(address, **settings)
    until(lambda: sizes(first) == [4], found, first)
    second = member(address, **settings)
    until(lambda: sizes(first, second) == [2, 2], found, first, second)
    first.close()
    until(lambda: sizes(second) == [4], found, second)
    until(lambda: len(set(found)) == ROWS, found, second)
    second.close()
    assert positions(log) == dict.fromkeys(range(PARTITIONS), ROWS // PARTITIONS)
    described = log.admin.describe_consumer_groups([GROUP])[GROUP]
    assert described.state == "Empty" and described.members == []


# Promise: gateway.md#groups
def test_kafka_python_and_librdkafka_share(log: spark_log.Log, serve: Serve, python_client: Callable[..., Any]) -> None:
    """Each reads its partitions; positions of both are those of the log."""
    address, found = serve().address, list[int]()
    settings = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200, "auto_offset_reset": "earliest"}
    first = python_client(KafkaConsumer, address, "orders", group_id=GROUP, **settings)
    assert first.partitions_for_topic("orders") == set(range(PARTITIONS))  # a leader assigns those that it knows
    second = member(address, enable_auto_commit=True, partition_assignment_strategy="range")

    def of_first() -> list[int]:
        return [int(one.value) for several in first.poll(50).values() for one in several]

    deadline = time.monotonic() + DEADLINE_S
    while (len(first.assignment()), *sizes(second)) != (2, 2) or len(set(found)) < ROWS:
        assert time.monotonic() < deadline, "it does not come"
        found += of_first() + polled(second)
    first.close()
    until(lambda: sizes(second) == [PARTITIONS], found, second)
    second.close()
    assert positions(log) == dict.fromkeys(range(PARTITIONS), ROWS // PARTITIONS)


# Promise: gateway.md#groups
def test_an_admin_client_sees_and_deletes_groups(log: spark_log.Log, serve: Serve) -> None:
    """Lists and describes members, lists and alters positions, deletes groups."""
    address, found = serve().address, list[int]()
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    consumer = member(address, client_id="seen", group_instance_id="a")
    until(lambda: len(set(found)) == ROWS, found, consumer)
    consumer.commit(asynchronous=False)
    (listed,) = admin.list_consumer_groups().result(DEADLINE_S).valid
    assert (listed.group_id, listed.state.name) == (GROUP, "STABLE")
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(DEADLINE_S)
    (one,) = described.members
    assert (one.client_id, one.group_instance_id, len(one.assignment.topic_partitions)) == ("seen", "a", PARTITIONS)
    assert described.partition_assignor == "range"
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])[GROUP].result(DEADLINE_S)
    assert {one.partition: one.offset for one in offsets.topic_partitions} == positions(log)
    refused = admin.delete_consumer_groups([GROUP])[GROUP].exception(DEADLINE_S)
    assert refused.args[0].code() == KafkaError.NON_EMPTY_GROUP
    consumer.close()
    left = KafkaError.NON_EMPTY_GROUP
    while left == KafkaError.NON_EMPTY_GROUP:  # a static member stays for its session
        error = admin.delete_consumer_groups([GROUP])[GROUP].exception(DEADLINE_S)
        left = 0 if error is None else error.args[0].code()
    assert left == 0 and log.admin.list_consumer_groups() == []
    moved = [confluent_kafka.TopicPartition("orders", 0, 7)]
    altered = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP, moved)])[GROUP]
    assert altered.result(DEADLINE_S).topic_partitions[0].error is None and positions(log) == {0: 7}


class Killed(Process):
    """`pylog gateway` as a process, which answers requests by hand."""

    connection = Running.connection
    ask = Running.ask


def committed_all(consumer: confluent_kafka.Consumer, log: spark_log.Log) -> bool:
    """A commit is tried again until the gateway is found."""
    with suppress(confluent_kafka.KafkaException):
        consumer.commit(asynchronous=False)
        return sum(positions(log).values()) == ROWS
    return False


# Promise: gateway.md#groups
def test_a_gateway_is_killed_under_its_members(log: spark_log.Log, url: str) -> None:
    """Acknowledged positions are there, nothing is lost, and what was committed is not read again."""
    gateway, found = Process(url), list[int]()
    consumer = member(gateway.address, session_timeout_ms=10_000)
    until(lambda: len(found) >= 200, found, consumer)
    consumer.commit(asynchronous=False)
    gateway.end(signal.SIGKILL)
    before = positions(log)
    assert sum(before.values()) >= len(found)
    gateway = Process(url, gateway.address)
    until(lambda: len(set(found)) == ROWS, found, consumer)
    until(lambda: committed_all(consumer, log), found, consumer)
    consumer.close()
    gateway.end(signal.SIGTERM)
    assert len(found) == len(set(found)), "the member kept its partitions"


# Promise: gateway.md#groups
def test_the_members_of_a_killed_gateway_keep_their_generation(log: spark_log.Log, serve: Serve, url: str) -> None:
    """Another gateway continues with the members in the log, and a stale commit does not land."""
    first = Killed(url)
    one = Member(first)
    one.enter()
    assert one.commit(1) == NONE
    first.end(signal.SIGKILL)
    one.gateway = serve()
    assert one.heartbeat() == NONE and one.commit(2) == NONE and positions(log) == {0: 2}
    old = one.generation
    assert one.join() == NONE and one.generation == old + 1
    assert one.sync(**{one.id: (0, 1)}).error_code == NONE
    assert one.commit(3, generation_id=old) == ILLEGAL_GENERATION and positions(log) == {0: 2}


# Promise: gateway.md#groups
def test_members_of_both_kinds_share_through_a_coordinator(tmp_path: Path) -> None:
    """pylog's consumer and librdkafka's have two partitions each."""
    services = Services()
    try:
        with spark_log.connect(services.url(tmp_path / "led")) as log:
            log.create_topic(NewTopic("orders", PARTITIONS))
            log.append("orders", [{"value": str(n), "partition": n % PARTITIONS} for n in range(ROWS)])
            gateway, found = Running(log), list[int]()
            for strategy in ("range", "cooperative-sticky"):
                ours = log.consumer(
                    "orders",
                    group_id=GROUP + strategy,
                    auto_offset_reset="earliest",
                    partition_assignment_strategy=strategy,
                )
                theirs = member(
                    gateway.address,
                    group_id=GROUP + strategy,
                    enable_auto_commit=True,
                    partition_assignment_strategy=strategy,
                )
                found, deadline = [], time.monotonic() + DEADLINE_S
                while len(set(found)) < ROWS or [len(ours.assignment()), *sizes(theirs)] != [2, 2]:
                    assert time.monotonic() < deadline, "it does not come"
                    found += [
                        int(one.value) for several in ours.poll(timeout_ms=50).values() for one in several
                    ] + polled(theirs)
                members = log.admin.describe_consumer_groups([GROUP + strategy])[GROUP + strategy].members
                assert sorted(len(one.assignment or ()) for one in members) == [2, 2]
                theirs.close()
                ours.close()
                assert sum(positions(log, GROUP + strategy).values()) == ROWS
            gateway.close()
    finally:
        services.close()


# Promise: gateway.md#groups
def test_without_a_coordinator_the_last_one_has_the_group(tmp_path: Path) -> None:
    """pylog's consumer takes all partitions of a group whose members are Kafka's, and their commits are fenced."""
    with spark_log.connect(str(tmp_path / "log"), durability="os") as log:
        log.create_topic(NewTopic("orders", 2))
        log.append("orders", [{"value": "x"}] * 5)
        gateway = Running(log)
        theirs = Member(gateway)
        theirs.enter()
        assert theirs.commit(0) == NONE
        with log.consumer("orders", group_id=GROUP) as ours:
            ours.poll(timeout_ms=10)
            assert theirs.commit(3) == UNKNOWN_MEMBER_ID and positions(log) == {0: 0}
            assert theirs.heartbeat() == UNKNOWN_MEMBER_ID
        gateway.close()


# Promise: gateway.md#groups
def test_two_gateways_without_a_coordinator_do_not_share_a_generation(tmp_path: Path) -> None:
    """One that wrote a generation first has it; the members of the other join again."""
    with spark_log.connect(str(tmp_path / "log"), durability="os") as log, spark_log.connect(log.url) as same:
        log.create_topic(NewTopic("orders", 2))
        gateways = Running(log), Running(same)
        first, second = (Member(gateway) for gateway in gateways)
        assert first.join() == second.join() == NONE and first.generation == second.generation
        assert first.sync(**{first.id: (0, 1)}).error_code == NONE
        assert second.sync(**{second.id: (0, 1)}).error_code == NOT_COORDINATOR
        assert second.commit(9) != NONE and first.commit(1) == NONE and positions(log) == {0: 1}
        for gateway in gateways:
            gateway.close()
