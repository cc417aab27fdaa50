"""Clients notice that a partition has other records than those that they have read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.errors import LogTruncationError

import spark_log
from spark_log import NewTopic
from spark_log.gateway.api import FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH
from spark_log.gateway.error_codes import FENCED_LEADER_EPOCH, NONE, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION
from spark_log.gateway.leader_epochs import EPOCH_MS
from spark_log.gateway.messages import (
    EpochAsked,
    EpochsOfTopic,
    FetchedFrom,
    FetchedTopic,
    FetchRecordsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from spark_log.recovery.repair import repair
from spark_log.store.local import LocalStore
from tests.gateway.running import DEADLINE_S, Running, kafka_python, librdkafka
from tests.restored import copy_of, restored

Serve = Callable[..., Running]
ERROR = {"Librdkafka": "error", "KafkaPython": "none"}
"""The `auto.offset.reset` of clients that have to be told where to continue."""


def write(log: spark_log.Log, prefix: str, count: int) -> None:
    log.append("orders", [{"value": f"{prefix}{n}", "partition": 0} for n in range(count)])


def values(prefix: str, numbers: range) -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in numbers]


class Librdkafka:
    """A consumer of the first partition."""

    def __init__(self, address: str, reset: str) -> None:
        self._consumer = librdkafka(address, auto_offset_reset=reset, topic_metadata_refresh_interval_ms=500)
        self._consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])

    def next(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            message = self._consumer.poll(DEADLINE_S)
            assert message is not None
            if message.error() is not None:
                raise LookupError(message.error().code())
            found.append(message.value())
        return found

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """A consumer of the first partition."""

    def __init__(self, address: str, reset: str) -> None:
        # After an answer without records, kafka-python does not know the epoch of its position: none comes so soon.
        settings = {"consumer_timeout_ms": DEADLINE_S * 1000, "fetch_max_wait_ms": 20_000}
        self._consumer = kafka_python(KafkaConsumer, address, auto_offset_reset=reset, **settings)
        self._consumer.assign([KafkaPartition("orders", 0)])
        self._consumer.seek(KafkaPartition("orders", 0), 0)

    def next(self, count: int) -> list[bytes]:
        try:
            return [next(self._consumer).value for _ in range(count)]
        except LogTruncationError as error:
            raise LookupError(error) from error

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(params=[Librdkafka, KafkaPython])
def client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    started: list[Any] = []

    def start(address: str, reset: str = "earliest") -> Any:
        started.append(request.param(address, reset))
        return started[-1]

    yield start
    for one in started:
        one.close()


# Promise: gateway.md#what-is-served
def test_a_consumer_begins_again_in_a_topic_that_was_created_again(
    log: spark_log.Log, serve: Serve, client: Callable[..., Any]
) -> None:
    """Although the new topic is longer than its position."""
    write(log, "old", 20)
    consumer = client(serve().address)
    assert consumer.next(20) == values("old", range(20))
    time.sleep(EPOCH_MS / 1000)
    log.admin.delete_topics(["orders"])
    log.create_topic(NewTopic("orders", 2))
    write(log, "new", 30)
    assert consumer.next(30) == values("new", range(30))


@pytest.fixture
def back(tmp_path: Path, log: spark_log.Log) -> Iterator[Callable[[str], Running]]:
    """A log with ten records, of which there is a copy, and ten further ones; restored, with a gateway, when called."""
    write(log, "kept", 10)
    copy = copy_of(log, tmp_path / "copy")
    write(log, "lost", 10)
    opened: list[Any] = []

    def restore(address: str) -> Running:
        log.close()
        opened.append(restored(log.url.removeprefix("file://"), copy))
        write(opened[0], "new", 30)
        opened.append(Running(opened[0], listen=address))
        return opened[1]

    yield restore
    for one in reversed(opened):
        one.close()


# Promise: gateway.md#what-is-served
def test_a_consumer_continues_where_a_restored_log_has_other_records(
    log: spark_log.Log, back: Callable[[str], Running], client: Callable[..., Any]
) -> None:
    """It gets all records of the log that it has not read, and no other again."""
    gateway = Running(log)
    consumer = client(gateway.address)
    assert consumer.next(20) == values("kept", range(10)) + values("lost", range(10))
    gateway.close()
    back(gateway.address)
    assert consumer.next(30) == values("new", range(30))


# Promise: gateway.md#what-is-served
def test_a_consumer_without_a_reset_gets_an_error(
    log: spark_log.Log, back: Callable[[str], Running], client: Callable[..., Any]
) -> None:
    """It does not skip the records that it has not read."""
    gateway = Running(log)
    consumer = client(gateway.address)
    policy = ERROR[type(consumer).__name__]
    consumer = client(gateway.address, policy)
    assert len(consumer.next(20)) == 20
    gateway.close()
    back(gateway.address)
    with pytest.raises(LookupError):
        consumer.next(1)


def repaired(log: spark_log.Log, version: int) -> spark_log.Log:
    """The log without a lost version, and with twenty other records."""
    log.close()
    folder = Path(log.url.removeprefix("file://"))
    (folder / "meta/log" / f"{version:020d}.rec").unlink()
    repair(LocalStore(folder), is_alive=lambda holder: False, accept_loss=True)
    again = spark_log.connect(log.url)
    write(again, "new", 20)
    return again


# Promise: gateway.md#what-is-served
def test_a_consumer_begins_again_after_lost_versions_were_given_up(
    log: spark_log.Log, client: Callable[..., Any]
) -> None:
    """The offsets of lost records, and those after them, are given to others."""
    write(log, "kept", 10)
    write(log, "lost", 10)
    version = log.journal.refresh().version
    write(log, "moved", 10)
    gateway = Running(log)
    consumer = client(gateway.address)
    assert len(consumer.next(30)) == 30
    old = epoch_of(gateway)
    gateway.close()
    with repaired(log, version) as again:
        gateway = Running(again, listen=gateway.address)
        found = consumer.next(40)
        assert found == values("kept", range(10)) + values("moved", range(10)) + values("new", range(20))
        new = epoch_of(gateway)
        assert ends(gateway, old, new) == [(NONE, old, 0), (NONE, new, 40)]
        gateway.close()


# Promise: gateway.md#what-is-served
def test_an_accepted_loss_ends_the_epochs_of_a_restored_log(log: spark_log.Log, tmp_path: Path) -> None:
    """The lost records may be of any of them."""
    write(log, "kept", 10)
    copy, found = copy_of(log, tmp_path / "copy"), []
    found.append(epoch_in(log))
    log.close()
    again = restored(log.url.removeprefix("file://"), copy)
    found.append(epoch_in(again))
    write(again, "lost", 10)
    version = again.journal.refresh().version
    write(again, "moved", 10)
    with repaired(again, version) as last:
        found.append(epoch_in(last))
        assert found == sorted(set(found))
        gateway = Running(last)
        assert [end for _, _, end in ends(gateway, *found)] == [0, 0, 40]
        gateway.close()


def epoch_in(log: spark_log.Log) -> int:
    gateway = Running(log)
    try:
        return epoch_of(gateway)
    finally:
        gateway.close()


def epoch_of(gateway: Running) -> int:
    (topic,) = gateway.ask(METADATA, 12, MetadataRequest(topics=None)).topics
    (epoch,) = {one.leader_epoch for one in topic.partitions}
    return int(epoch)


def ends(gateway: Running, *epochs: int, current: int = -1, version: int = 4) -> list[tuple[int, int, int]]:
    """(error code, epoch, end) of the first partition, for each epoch."""
    found = []
    for epoch in epochs:
        asked = EpochAsked(partition=0, current_leader_epoch=current, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(topics=[EpochsOfTopic(topic="orders", partitions=[asked])])
        (one,) = gateway.ask(OFFSET_FOR_LEADER_EPOCH, version, request).topics[0].partitions
        found.append((one.error_code, one.leader_epoch, one.end_offset))
    return found


# Promise: gateway.md#what-is-served
def test_epochs_end_where_the_log_was_restored(log: spark_log.Log, back: Callable[[str], Running]) -> None:
    """An epoch before the topic's ends at its begin; one that was lost counts as the one before."""
    gateway = Running(log)
    old = epoch_of(gateway)
    assert ends(gateway, old) == [(NONE, old, 20)]
    gateway.close()
    gateway = back(gateway.address)
    new = epoch_of(gateway)
    assert new > old > 0
    for version in (2, 3, 4):
        asked = ends(gateway, old - 1, old, new, new + 1, version=version)
        assert asked == [(NONE, old - 1, 0), (NONE, old, 10), (NONE, new, 40), (NONE, new, 40)]
    assert ends(gateway, old, current=old) == [(FENCED_LEADER_EPOCH, -1, -1)]
    assert ends(gateway, old, current=new + 1) == [(UNKNOWN_LEADER_EPOCH, -1, -1)]


# Promise: gateway.md#what-is-served
def test_a_client_whose_last_record_is_lost_gets_no_records(log: spark_log.Log, back: Callable[[str], Running]) -> None:
    """Although it knows no current epoch: kafka-python forgets it when the topic has another id."""
    gateway = Running(log)
    old = epoch_of(gateway)
    gateway.close()
    gateway = back(gateway.address)
    for offset, fetched, code in [(20, old, FENCED_LEADER_EPOCH), (10, old, NONE), (20, epoch_of(gateway), NONE)]:
        asked = FetchedFrom(partition=0, fetch_offset=offset, last_fetched_epoch=fetched, partition_max_bytes=1000)
        request = FetchRecordsRequest(max_bytes=1000, topics=[FetchedTopic(topic="orders", partitions=[asked])])
        (found,) = gateway.ask(FETCH, 12, request).responses[0].partitions
        assert (found.error_code, bool(found.records)) == (code, code == NONE)


# Promise: gateway.md#what-is-served
def test_a_client_with_another_epoch_gets_no_records(log: spark_log.Log, serve: Serve) -> None:
    """But an error, after which it asks for the epoch."""
    write(log, "v", 3)
    gateway = serve()
    now = epoch_of(gateway)
    codes = {now: NONE, -1: NONE, now - 1: FENCED_LEADER_EPOCH, now + 1: UNKNOWN_LEADER_EPOCH}
    for epoch, code in codes.items():
        asked = FetchedFrom(partition=0, fetch_offset=0, partition_max_bytes=1000, current_leader_epoch=epoch)
        request = FetchRecordsRequest(max_bytes=1000, topics=[FetchedTopic(topic="orders", partitions=[asked])])
        (found,) = gateway.ask(FETCH, 12, request).responses[0].partitions
        assert (found.error_code, bool(found.records)) == (code, code == NONE)
        place = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
        offsets = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=[place])])
        (listed,) = gateway.ask(LIST_OFFSETS, 4, offsets).topics[0].partitions
        assert (listed.error_code, listed.offset) == (code, 3 if code == NONE else -1)
    unknown = OffsetForLeaderEpochRequest(topics=[EpochsOfTopic(topic="none", partitions=[EpochAsked(partition=0)])])
    (one,) = gateway.ask(OFFSET_FOR_LEADER_EPOCH, 2, unknown).topics[0].partitions
    assert one.error_code == UNKNOWN_TOPIC_OR_PARTITION
