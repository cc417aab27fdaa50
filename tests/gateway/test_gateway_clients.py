"""Kafka's clients read topics from a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.gateway.api import FETCH, LIST_OFFSETS, METADATA
from spark_log.gateway.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_REQUEST,
    NONE,
    OFFSET_OUT_OF_RANGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from spark_log.gateway.fetch import ANSWER_BYTES_MAX, ANSWERS_BYTES_MAX, Fetcher
from spark_log.gateway.followed_state import RECENT_S, FollowedState
from spark_log.gateway.messages import (
    FetchedFrom,
    FetchedPartition,
    FetchedTopic,
    FetchRecordsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from spark_log.gateway.stored_batches import StoredBatches
from spark_log.gateway.topics import ServedTopics
from spark_log.maintenance.maintain import compact
from tests.cli.commands import ROOT
from tests.gateway.running import DEADLINE_S, Running, consumed, librdkafka
from tests.services import Services

Serve = Callable[..., Running]
ROWS = 400


def fill(log: spark_log.Log, rows: int = ROWS, topic: str = "orders") -> None:
    """Keys, values and headers, some of them null, and times."""
    log.append(
        topic,
        [
            {
                "key": None if n % 5 == 0 else f"k{n}",
                "value": None if n % 11 == 0 else f"v{n}" * (n % 70),
                "timestamp": 1_700_000_000_000 + 7 * n,
                "headers": [("trace", b"%d" % n), ("empty", None)] if n % 3 == 0 else None,
                "partition": n % 2,
            }
            for n in range(rows)
        ],
    )


def stored(log: spark_log.Log, topic: str = "orders") -> list[tuple[Any, ...]]:
    return sorted(
        (
            row["partition"],
            row["offset"],
            row["key"],
            row["value"],
            int(row["timestamp"].timestamp() * 1000),
            [(one["key"], one["value"]) for one in row["headers"] or ()],
        )
        for row in log.read(topic).to_pylist()
    )


def fetch(gateway: Running, topic_id: str, partition: int, offset: int, version: int = 17, **more: int) -> Any:
    """The answer for one partition, without a wait unless one is given."""
    limit = more.pop("partition_max_bytes", 1 << 20)
    asked = FetchedFrom(partition=partition, fetch_offset=offset, partition_max_bytes=limit)
    name, by_id = ("", topic_id) if version >= 13 else (topic_id, "0" * 32)
    request = FetchRecordsRequest(
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, **more},
        topics=[FetchedTopic(topic=name, topic_id=by_id, partitions=[asked])],
    )
    return gateway.ask(FETCH, version, request).responses[0].partitions[0]


def id_of(log: spark_log.Log, topic: str = "orders") -> str:
    return log.journal.refresh().names[topic]


def listed(gateway: Running, topic: str, time_ms: int) -> list[tuple[int, int]]:
    """(offset, time) of both partitions."""
    asked = [ListOffsetsPartition(partition_index=number, timestamp=time_ms) for number in (0, 1)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
    (found,) = gateway.ask(LIST_OFFSETS, 8, request).topics
    assert [one.error_code for one in found.partitions] == [NONE, NONE]
    return [(one.offset, one.timestamp) for one in found.partitions]


# Promise: gateway.md#what-is-served, gateway.md#the-gateway-kafkas-clients-use-a-log
def test_librdkafka_reads_what_the_log_has(log: spark_log.Log, serve: Serve) -> None:
    """Keys, values, times and headers, nulls too, at the same offsets; and again from the middle."""
    fill(log)
    gateway = serve()
    found = consumed(gateway.address, "orders", {0: 0, 1: 0}, {0: ROWS // 2, 1: ROWS // 2})
    expected = stored(log)
    assert sorted(map(row, found)) == expected
    again = consumed(gateway.address, "orders", {0: 77, 1: 199}, {0: ROWS // 2, 1: ROWS // 2})
    assert sorted(map(row, again)) == [one for one in expected if one[1] >= (77, 199)[one[0]]]


def row(message: Any) -> tuple[Any, ...]:
    kind, time_ms = message.timestamp()
    assert kind == confluent_kafka.TIMESTAMP_CREATE_TIME
    return (
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        time_ms,
        message.headers() or [],
    )


# Promise: gateway.md#what-is-served
def test_kafka_python_subscribes_without_a_group(
    log: spark_log.Log, serve: Serve, python_client: Callable[..., Any]
) -> None:
    """All topics, all partitions, and offsets of times."""
    fill(log)
    settings = {"auto_offset_reset": "earliest", "consumer_timeout_ms": DEADLINE_S * 1000}
    consumer = python_client(KafkaConsumer, serve().address, "orders", **settings)
    found = [next(consumer) for _ in range(ROWS)]
    assert [
        (one.partition, one.offset, one.key, one.value, one.timestamp, list(one.headers))
        for one in sorted(found, key=lambda one: (one.partition, one.offset))
    ] == stored(log)
    part = KafkaPartition("orders", 1)
    assert consumer.topics() == {"orders"}
    assert consumer.beginning_offsets([part]) == {part: 0} and consumer.end_offsets([part]) == {part: ROWS // 2}
    at = consumer.offsets_for_times({part: 1_700_000_001_000})[part]
    assert (at.offset, at.timestamp) == (71, 1_700_000_001_001)


# Promise: gateway.md#what-is-served
def test_typed_topics_are_json(log: spark_log.Log, serve: Serve) -> None:
    """Values are objects of the columns; a tombstone has none."""
    log.create_topic(NewTopic("typed", schema="id bigint, country string"))
    log.append("typed", [{"key": "a", "id": 1, "country": "NZ"}, {"key": "b", "id": None, "country": "é"}])
    values = [one.value() for one in consumed(serve().address, "typed", {0: 0}, {0: 2})]
    assert json.loads(values[0]) == {"id": 1, "country": "NZ"}
    assert json.loads(values[1])["country"] == "é"


# Promise: gateway.md#what-is-served
def test_compacted_topics_have_holes(log: spark_log.Log, serve: Serve) -> None:
    """Offsets stay, and a client that begins in a hole continues behind it."""
    old = int(time.time() * 1000) - 7_200_000
    configs = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0"}
    log.create_topic(NewTopic("latest", 1, configs))
    gateway = serve()
    for n in range(4):
        rows = [{"key": f"k{key}", "value": f"{n}", "timestamp": old} for key in range(n, 30)]
        log.append("latest", rows)
    assert len(consumed(gateway.address, "latest", {0: 0}, {0: 114})) == 114
    assert compact(log).records == 84
    left = log.read("latest")["offset"].to_pylist()
    for start in (0, 33):
        found = consumed(gateway.address, "latest", {0: start}, {0: 114})
        assert [one.offset() for one in found] == [at for at in left if at >= start]


# Promise: gateway.md#what-is-served
def test_erased_records_are_gone(log: spark_log.Log, serve: Serve) -> None:
    """Also those that the gateway had in memory, and at the end of a partition, which clients still reach."""
    gateway = serve()
    log.append("orders", [{"key": f"k{n}", "value": "secret", "partition": 0} for n in range(30)])
    assert len(consumed(gateway.address, "orders", {0: 0}, {0: 30})) == 30
    log.admin.erase_records("orders", ["k3", "k28", "k29"])
    time.sleep(RECENT_S + 0.1)
    found = consumed(gateway.address, "orders", {0: 0}, {0: 30})
    assert [one.offset() for one in found] == [at for at in range(28) if at != 3]
    assert b"k29" not in fetch(gateway, id_of(log), 0, 28).records


# Promise: gateway.md#what-is-served
def test_trimmed_offsets_are_out_of_range(log: spark_log.Log, serve: Serve) -> None:
    """A client continues where its settings say; the start is that of the partition."""
    fill(log)
    gateway = serve()
    assert fetch(gateway, id_of(log), 0, 5).error_code == NONE, "kept by the gateway, and not served after the trim"
    log.admin.delete_records({TopicPartition("orders", 0): 50})
    answer = fetch(gateway, id_of(log), 0, 5)
    assert (answer.error_code, answer.records, answer.log_start_offset) == (OFFSET_OUT_OF_RANGE, b"", 50)
    assert fetch(gateway, id_of(log), 1, ROWS).error_code == OFFSET_OUT_OF_RANGE
    assert listed(gateway, "orders", -2) == [(50, -1), (0, -1)]
    found = consumed(gateway.address, "orders", {0: 5}, {0: ROWS // 2}, auto_offset_reset="earliest")
    assert [one.offset() for one in found] == list(range(50, ROWS // 2))


# Promise: gateway.md#what-is-served
def test_a_topic_that_is_created_again_has_another_id(log: spark_log.Log, serve: Serve) -> None:
    """A client with the old id learns that its topic is gone; by name, an offset of the old one is out of range."""
    fill(log)
    gateway, old = serve(), id_of(log)
    assert fetch(gateway, old, 0, 100).error_code == NONE
    log.admin.delete_topics(["orders"])
    log.create_topic(NewTopic("orders", 2))
    time.sleep(RECENT_S + 0.1)
    assert fetch(gateway, old, 0, 100).error_code == UNKNOWN_TOPIC_ID
    assert fetch(gateway, "orders", 0, 100, version=12).error_code == OFFSET_OUT_OF_RANGE
    topics = [MetadataRequestTopic(name=None, topic_id=old), MetadataRequestTopic(name="orders")]
    found = gateway.ask(METADATA, 12, MetadataRequest(topics=topics)).topics
    assert [(one.error_code, one.name) for one in found] == [(UNKNOWN_TOPIC_ID, None), (NONE, "orders")]
    assert found[1].topic_id == id_of(log) != old


# Promise: gateway.md#what-is-served
def test_only_committed_records_are_read(log: spark_log.Log, serve: Serve) -> None:
    """Records of an open transaction are not there, whatever the isolation level; aborted ones never were."""
    gateway = serve()
    with log.transaction("t") as txn:
        txn.send("orders", b"first", partition=0)
        assert fetch(gateway, id_of(log), 0, 0, isolation_level=0).records == b""
    with suppress(KeyError), log.transaction("t") as txn:
        txn.send("orders", b"never", partition=0)
        raise KeyError
    found = consumed(gateway.address, "orders", {0: 0}, {0: 1}, isolation_level="read_uncommitted")
    assert [one.value() for one in found] == [b"first"]


# Promise: gateway.md#what-is-served
def test_a_fetch_waits_for_records(log: spark_log.Log, serve: Serve) -> None:
    """A fetch waits as long as the client says, or until a record is there."""
    gateway, topic = serve(), id_of(log)
    began = time.monotonic()
    assert fetch(gateway, topic, 0, 0, max_wait_ms=300).records == b""
    assert time.monotonic() - began >= 0.3
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(fetch(gateway, topic, 0, 0, max_wait_ms=50_000)))
    waiting.start()
    time.sleep(0.2)
    log.append("orders", [{"value": "other", "partition": 1}])
    log.append("orders", [{"value": "new", "partition": 0}])
    waiting.join(40)
    assert not waiting.is_alive() and b"new" in found[0].records and b"other" not in found[0].records


def test_clients_get_no_more_than_they_ask_for(log: spark_log.Log, serve: Serve) -> None:
    """But at least one batch; and all of it, one request after the other."""
    log.append("orders", [{"value": os.urandom(1000), "partition": 0} for _ in range(3000)])
    gateway, topic = serve(), id_of(log)
    whole, part = fetch(gateway, topic, 0, 0, max_bytes=1 << 24), fetch(gateway, topic, 0, 0, max_bytes=1)
    assert len(part.records) < len(whole.records) <= 1 << 20
    found = consumed(gateway.address, "orders", {0: 0}, {0: 3000}, fetch_message_max_bytes=2000)
    assert [one.value() for one in found] == log.read("orders")["value"].to_pylist()


# Promise: gateway.md#limits
def test_an_answer_has_a_limit(log: spark_log.Log, serve: Serve) -> None:
    """Whatever the client allows; a client that waits for more gets immediately as much as an answer can have."""
    log.append("orders", [{"value": bytes(1_000_000), "partition": 0}] * 20)
    gateway, topic, began = serve(), id_of(log), time.monotonic()
    most = {"max_bytes": 2**31 - 1, "partition_max_bytes": 2**31 - 1, "min_bytes": 20_000_000}
    found = fetch(gateway, topic, 0, 0, max_wait_ms=60_000, **most)
    assert 14_000_000 < len(found.records) <= ANSWER_BYTES_MAX and time.monotonic() - began < DEADLINE_S / 2


# Promise: gateway.md#what-is-served
def test_times_are_found(log: spark_log.Log, serve: Serve) -> None:
    """The first record at or after a time, the latest record, and none."""
    fill(log)
    gateway, first = serve(), 1_700_000_000_000
    assert listed(gateway, "orders", first + 7 * 6) == [(3, first + 7 * 6), (3, first + 7 * 7)]
    assert listed(gateway, "orders", -3) == [(199, first + 7 * 398), (199, first + 7 * 399)]
    assert listed(gateway, "orders", first + 7 * ROWS) == [(-1, -1), (-1, -1)]
    assert listed(gateway, "orders", -1) == [(200, -1), (200, -1)]


# Promise: gateway.md#what-is-served
def test_append_times_are_marked(log: spark_log.Log, serve: Serve) -> None:
    """A topic whose times are the log's says so to clients."""
    log.create_topic(NewTopic("timed", configs={"message.timestamp.type": "LogAppendTime"}))
    log.append("timed", [{"value": "a", "timestamp": 1}, {"value": "b", "timestamp": 2}])
    found = consumed(serve().address, "timed", {0: 0}, {0: 2})
    (at,) = {int(one.timestamp() * 1000) for one in log.read("timed")["timestamp"].to_pylist()}
    assert {one.timestamp() for one in found} == {(confluent_kafka.TIMESTAMP_LOG_APPEND_TIME, at)}


# Promise: gateway.md#start
def test_a_gateway_that_only_reads_refuses_writes(log: spark_log.Log, serve: Serve) -> None:
    """With an error that clients do not retry; nothing is written, and no topic is created."""
    failed: list[Any] = []
    gateway = serve(read_only=True)
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "log_level": 0})
    producer.produce("orders", b"x", on_delivery=lambda error, _: failed.append(error.code()))
    assert producer.flush(DEADLINE_S) == 0
    assert failed == [confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    assert gateway.ask(METADATA, 5, request).topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert log.read("orders").num_rows == 0 and set(log.topics()) == {"orders"}


# Promise: gateway.md#start
def test_only_topics_with_a_prefix_are_served(log: spark_log.Log, serve: Serve) -> None:
    """Others are not listed, and reading them by name or by id is refused."""
    log.append("public.a", [{"value": "seen"}])
    gateway = serve("public.", "shop.")
    consumer = librdkafka(gateway.address)
    assert set(consumer.list_topics(timeout=DEADLINE_S).topics) == {"public.a"}
    consumer.close()
    assert [one.value() for one in consumed(gateway.address, "public.a", {0: 0}, {0: 1})] == [b"seen"]
    assert fetch(gateway, id_of(log), 0, 0).error_code == TOPIC_AUTHORIZATION_FAILED
    assert fetch(gateway, "orders", 0, 0, version=4).error_code == TOPIC_AUTHORIZATION_FAILED
    asked = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=asked)])
    assert gateway.ask(LIST_OFFSETS, 1, request).topics[0].partitions[0].error_code == TOPIC_AUTHORIZATION_FAILED


# Promise: gateway.md#what-differs
def test_damaged_records_are_not_served(log: spark_log.Log, serve: Serve, tmp_path: Path) -> None:
    """A client gets the records before them, and then an error that it does not retry."""
    fill(log, 10)
    known = set((tmp_path / "log").rglob("*.seg"))
    fill(log, 10)
    (file,) = set((tmp_path / "log").rglob("*.seg")) - known
    data = bytearray(file.read_bytes())
    data[:] = bytes(255 - byte for byte in data)
    file.write_bytes(data)
    gateway, topic = serve(), id_of(log)
    before = fetch(gateway, topic, 0, 0)
    assert before.error_code == NONE and before.records
    damaged: FetchedPartition = fetch(gateway, topic, 0, 5)
    assert (damaged.error_code, damaged.records) == (CORRUPT_MESSAGE, b"")


# Promise: gateway.md#start
def test_the_log_of_a_coordinator_is_served(tmp_path: Path) -> None:
    """The coordinator tells the gateway of new records."""
    services = Services()
    try:
        with spark_log.connect(services.url(tmp_path / "served")) as log:
            log.create_topic(NewTopic("orders", 2))
            fill(log, 10)
            gateway = Running(log)
            assert len(consumed(gateway.address, "orders", {0: 0, 1: 0}, {0: 5, 1: 5})) == 10
            with spark_log.connect(services.url(tmp_path / "served")) as other:
                later = threading.Timer(0.2, lambda: other.append("orders", [{"value": "new", "partition": 0}]))
                later.start()
                assert b"new" in fetch(gateway, id_of(log), 0, 5, max_wait_ms=50_000).records
                later.join()
            gateway.close()
    finally:
        services.close()


# Promise: gateway.md#start, cli.md#pylog-gateway
def test_the_command_serves_until_it_is_stopped(log: spark_log.Log) -> None:
    """It prints the address for clients."""
    fill(log, 10)
    command = [sys.executable, "-m", "spark_log.cli", "-u", log.url, "gateway", "--listen", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"listening on 127\.0\.0\.1:\d+\n", line)
        assert len(consumed(line.split()[-1], "orders", {0: 0, 1: 0}, {0: 5, 1: 5})) == 10
        process.terminate()
        assert process.wait(DEADLINE_S) == 0


# Promise: gateway.md#limits
def test_what_is_named_again_is_answered_once(log: spark_log.Log, serve: Serve) -> None:
    """A small request has no large answer, and no long work."""
    gateway = serve()
    topics = [MetadataRequestTopic(name="orders", topic_id=f"{n:032}") for n in range(1000)]
    assert [one.name for one in gateway.ask(METADATA, 12, MetadataRequest(topics=topics)).topics] == ["orders"]
    asked = [ListOffsetsPartition(partition_index=0, timestamp=at) for at in range(3)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=asked)] * 2)
    found = gateway.ask(LIST_OFFSETS, 1, request).topics
    assert [one.error_code for topic in found for one in topic.partitions] == [NONE] + 5 * [INVALID_REQUEST]


# Promise: gateway.md#what-is-served
def test_the_latest_time_is_that_of_a_record_that_is_there(log: spark_log.Log, serve: Serve) -> None:
    """Although the record with the latest time was trimmed, within its segment."""
    log.append("orders", [{"value": "v", "timestamp": at, "partition": 0} for at in (9_000, 1_000, 3_000, 2_000)])
    log.admin.delete_records({TopicPartition("orders", 0): 1})
    gateway = serve()
    assert listed(gateway, "orders", -3) == [(2, 3_000), (-1, -1)]
    log.append("orders", [{"value": "v", "timestamp": 5_000, "partition": 0}])
    assert listed(gateway, "orders", -3) == [(4, 5_000), (-1, -1)]


# Promise: gateway.md#limits
def test_answers_that_are_not_taken_have_a_limit_together(log: spark_log.Log) -> None:
    """Others still get records, a batch at a time."""
    log.append("orders", [{"value": bytes(1_000_000), "partition": 0}] * 4)
    topic, part = id_of(log), [FetchedFrom(partition=0, fetch_offset=0, partition_max_bytes=1 << 24)]
    request = FetchRecordsRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=[FetchedTopic(topic_id=topic, partitions=part)]
    )

    async def sizes() -> list[int]:
        followed = FollowedState(log.journal)
        held = [0, ANSWERS_BYTES_MAX, ANSWERS_BYTES_MAX - 2_500_000]
        fetchers = [
            Fetcher(followed, StoredBatches(log.journal), ServedTopics(), partial(int, unsent)) for unsent in held
        ]
        try:
            answers = [await one.fetch(request, 17) for one in fetchers]
        finally:
            await followed.close()
            for one in fetchers:
                one.close()
        return [len(one.responses[0].partitions[0].records or b"") // 1_000_000 for one in answers]

    assert asyncio.run(sizes()) == [4, 1, 2]


# Promise: gateway.md#what-is-served
def test_a_request_beside_a_look_at_the_log_gets_what_that_finds(log: spark_log.Log) -> None:
    """The state before may be of an hour ago."""

    async def state_beside_a_look(reader: spark_log.Log) -> int:
        followed = FollowedState(reader.journal)
        log.append("orders", [{"value": "new", "partition": 0}])
        try:
            _, state = await asyncio.gather(followed.newest(), followed.recent())
        finally:
            await followed.close()
        return state.partitions[id_of(log), 0].end

    with spark_log.connect(log.url) as reader:
        assert asyncio.run(state_beside_a_look(reader)) == 1
