"""Kafka's clients write records through a gateway."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from crc32c import crc32c
from kafka import KafkaProducer
from kafka.record.default_records import DefaultRecordBatchBuilder

import spark_log
from spark_log import NewTopic
from spark_log.gateway.api import INIT_PRODUCER_ID, PRODUCE
from spark_log.gateway.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from spark_log.gateway.messages import (
    InitProducerIdRequest,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResult,
)
from spark_log.gateway.produced_batches import BODY_BYTES_MAX
from tests.cli.commands import ROOT
from tests.gateway.running import DEADLINE_S, Running, frame, received

Serve = Callable[..., Running]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def batch(
    *values: bytes | None, producer: int = -1, sequence: int = -1, time_ms: int | None = None, **more: Any
) -> bytes:
    """A record batch as kafka-python makes it."""
    at = int(time.time() * 1000) if time_ms is None else time_ms
    builder = DefaultRecordBatchBuilder(
        2, more.get("codec", 0), 0, producer, 0 if producer >= 0 else -1, sequence, 1 << 24
    )
    for number, value in enumerate(values):
        builder.append(number, at, more.get("key"), value, more.get("headers", []))
    return bytes(builder.build())


def sealed(data: bytes) -> bytes:
    """A batch with the checksum of what it has now."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def produce(
    gateway: Running, *sent: tuple[str, int, bytes], acks: int = -1, txn: str | None = None, version: int = 9
) -> list[ProduceResult]:
    """The results of batches of one request, each (topic, partition, batch)."""
    topics = [
        ProducedTopic(name=topic, partitions=[ProducedPartition(index=number, records=data)])
        for topic, number, data in sent
    ]
    request = ProduceRequest(transactional_id=txn, acks=acks, timeout_ms=5000, topics=topics)
    return [topic.partitions[0] for topic in gateway.ask(PRODUCE, version, request).topics]


def values(log: spark_log.Log, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = log.read(topic, partition)["value"].to_pylist()
    return found


# Promise: gateway.md#writes
@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_writes_what_the_log_gets(log: spark_log.Log, serve: Serve, codec: str) -> None:
    """Keys, values, times and headers, nulls too, at the offsets in its answers."""
    told: list[tuple[int, int, bytes | None]] = []
    settings = {"compression.type": codec, "linger.ms": 5, "log_level": 3, "enable.idempotence": codec == "zstd"}
    producer = confluent_kafka.Producer({"bootstrap.servers": serve().address, **settings})

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        told.append((message.partition(), message.offset(), message.value()))

    for n in range(2000):
        value = None if n % 11 == 0 else b"v%d" % n * (n % 30)
        headers = [("trace", b"%d" % n), ("none", None)] if n % 3 == 0 else None
        key = None if n % 5 == 0 else b"k%d" % n
        producer.produce(
            "orders", value, key, n % 2, on_delivery=delivered, timestamp=1_700_000_000_000 + n, headers=headers
        )
    assert producer.flush(DEADLINE_S) == 0
    rows = log.read("orders").to_pylist()
    assert sorted(told) == [(row["partition"], row["offset"], row["value"]) for row in rows]
    for row in rows:
        n = 2 * row["offset"] + row["partition"]
        assert row["key"] == (None if n % 5 == 0 else b"k%d" % n)
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(1_700_000_000_000 + n)
        expected = [("trace", b"%d" % n), ("none", None)] if n % 3 == 0 else []
        assert [(one["key"], one["value"]) for one in row["headers"] or ()] == expected


# Promise: gateway.md#writes
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_kafka_python_writes_in_order(
    log: spark_log.Log, serve: Serve, python_client: Callable[..., Any], acks: int | str
) -> None:
    """It is idempotent by default, where it waits for answers."""
    settings = {"acks": acks, "enable_idempotence": acks == "all", "compression_type": "gzip"}
    producer = python_client(KafkaProducer, serve().address, **settings)
    sent = [producer.send("orders", b"%d" % n, partition=0) for n in range(500)]
    producer.flush(DEADLINE_S)
    if acks != 0:
        assert [one.get(DEADLINE_S).offset for one in sent] == list(range(500))
    producer.close()
    deadline = time.monotonic() + DEADLINE_S
    while len(values(log)) < 500 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert values(log) == [b"%d" % n for n in range(500)]


# Promise: gateway.md#writes
def test_idempotent_producers_continue_in_a_topic_that_was_created_again(
    log: spark_log.Log, serve: Serve, python_client: Callable[..., Any]
) -> None:
    """Their numbers continue, too."""
    address, failed = serve().address, list[object]()
    librdkafka = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
    python = python_client(KafkaProducer, address, enable_idempotence=True)

    def write(value: bytes) -> None:
        librdkafka.produce("orders", value, partition=0, on_delivery=lambda error, _: failed.append(error))
        assert librdkafka.flush(DEADLINE_S) == 0
        python.send("orders", value, partition=1).get(DEADLINE_S)

    for value in (b"old 0", b"old 1", b"old 2"):
        write(value)
    log.admin.delete_topics(["orders"])
    log.create_topic(NewTopic("orders", 2))
    for value in (b"new 0", b"new 1"):
        write(value)
    assert values(log) == values(log, partition=1) == [b"new 0", b"new 1"] and not any(failed)


# Promise: gateway.md#writes
def test_each_partition_has_its_error(log: spark_log.Log, serve: Serve) -> None:
    """Nothing of a batch with an error is written, and what is beside it is."""
    log.create_topic(NewTopic("small", 1, {"max.message.bytes": "500"}))
    log.create_topic(NewTopic("late", 1, {"message.timestamp.before.max.ms": "1000"}))
    log.create_topic(NewTopic("compacted", 1, {"cleanup.policy": "compact"}))
    log.create_topic(NewTopic("typed", 1, schema="id bigint"))
    good = batch(b"x", b"y")
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    cases = [
        ("orders", 0, good, NONE),
        ("orders", 1, damaged, CORRUPT_MESSAGE),
        ("orders", 7, good, UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", 0, good, UNKNOWN_TOPIC_OR_PARTITION),
        ("small", 0, batch(bytes(600)), MESSAGE_TOO_LARGE),
        ("late", 0, batch(b"x", time_ms=5), INVALID_TIMESTAMP),
        ("compacted", 0, good, INVALID_RECORD),
        ("typed", 0, good, INVALID_RECORD),
        ("orders", 1, good + good, INVALID_RECORD),
        ("orders", 1, good[:30], CORRUPT_MESSAGE),
        ("orders", 1, sealed(good[:22] + b"\5" + good[23:]), UNSUPPORTED_COMPRESSION_TYPE),
        ("orders", 1, sealed(good[:22] + b"\x10" + good[23:]), TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("orders", 1, sealed(good[:22] + b"\x20" + good[23:]), INVALID_RECORD),
    ]
    gateway = serve()
    found = produce(gateway, *[case[:3] for case in cases])
    assert [one.error_code for one in found] == [case[3] for case in cases]
    assert values(log) == [b"x", b"y"] and found[0].base_offset == 0
    assert [(one.batch_index, one.message[:8]) for one in found[6].record_errors] == [(0, "a record"), (1, "a record")]
    for topic, partition in (("orders", 1), ("small", 0), ("late", 0), ("compacted", 0), ("typed", 0)):
        assert log.read(topic, partition).num_rows == 0
    assert [one.error_code for one in produce(gateway, ("orders", 0, good), acks=2)] == [INVALID_REQUIRED_ACKS]
    (refused,) = produce(gateway, ("orders", 0, good), txn="t")
    assert refused.error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert log.read("orders").num_rows == 2


# Promise: gateway.md#start
def test_only_topics_with_a_prefix_are_written(log: spark_log.Log, serve: Serve) -> None:
    (found,) = produce(serve("shop."), ("orders", 0, batch(b"x")))
    assert found.error_code != NONE and log.read("orders").num_rows == 0


# Promise: gateway.md#limits
def test_a_batch_that_grows_too_large_is_refused(log: spark_log.Log, serve: Serve) -> None:
    """Before its memory is taken."""
    good = batch(b"x")
    bomb = zlib.compressobj(9, wbits=31)
    body = bomb.compress(bytes(BODY_BYTES_MAX + 1)) + bomb.flush()
    head = good[:8] + struct.pack(">i", 49 + len(body)) + good[12:22] + b"\1" + good[23:61]
    snappy = good[:8] + struct.pack(">i", 49 + 6) + good[12:22] + b"\2" + good[23:61] + b"\xff\xff\xff\xff\7\0"
    found = produce(serve(), ("orders", 0, sealed(head + body)), ("orders", 1, sealed(snappy)))
    assert [one.error_code for one in found] == [MESSAGE_TOO_LARGE] * 2
    assert log.read("orders").num_rows == 0


# Promise: gateway.md#writes
def test_a_batch_that_is_sent_again_is_written_once(log: spark_log.Log, serve: Serve) -> None:
    """A batch out of order is refused."""
    gateway = serve()
    made = gateway.ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest())
    assert made.error_code == NONE and made.producer_id > 0

    def sent(sequence: int, *payload: bytes) -> tuple[int, int]:
        data = batch(*payload, producer=made.producer_id, sequence=sequence)
        (one,) = produce(gateway, ("orders", 0, data))
        return one.error_code, one.base_offset

    assert [sent(0, b"a", b"b"), sent(2, b"c"), sent(0, b"a", b"b"), sent(2, b"c")] == [(0, 0), (0, 2), (0, 0), (0, 2)]
    assert sent(5, b"gap") == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    with gateway.connection() as opened:  # many at the same time, each twice
        for n in [*range(3, 20), *range(15, 20)]:
            data = batch(b"%d" % n, producer=made.producer_id, sequence=n)
            topics = [ProducedTopic(name="orders", partitions=[ProducedPartition(index=0, records=data)])]
            opened.sendall(frame(PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=5000, topics=topics)))
        assert all(received(opened) for _ in range(22))
    assert values(log) == [b"a", b"b", b"c", *[b"%d" % n for n in range(3, 20)]]


# Promise: gateway.md#what-is-not-served
def test_transactions_are_refused(log: spark_log.Log, serve: Serve) -> None:
    found = serve().ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id="t"))
    assert found.error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Process:
    """`pylog gateway` as a process."""

    def __init__(self, url: str, port: str = "0") -> None:
        command = [sys.executable, "-m", "spark_log.cli", "-u", url, "gateway", "--listen", port]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1]

    def end(self, number: int) -> None:
        os.kill(self._process.pid, number)
        self._process.wait(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


# Promise: gateway.md#writes
def test_a_gateway_that_is_killed_loses_nothing_that_it_has_acknowledged(log: spark_log.Log) -> None:
    """SIGKILL during writes: what was acknowledged is there, in order."""
    gateway, acknowledged = Process(log.url), list[int]()
    settings = {"acks": "all", "linger.ms": 1, "retry.backoff.ms": 50, "log_level": 0, "max.in.flight": 1}
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, **settings})

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        acknowledged.append(int(message.value()))

    for n in range(3000):
        producer.produce("orders", b"%d" % n, partition=0, on_delivery=delivered)
        producer.poll(0.001)
        if n in (1000, 2000):
            gateway.end(signal.SIGKILL)
            gateway = Process(log.url, gateway.address)
    assert producer.flush(DEADLINE_S) == 0
    gateway.end(signal.SIGTERM)
    assert acknowledged == list(range(3000))
    found = [int(value or 0) for value in values(log)]
    assert list(dict.fromkeys(found)) == list(range(3000)), "each is there, and first ones are in order"


def test_the_answer_has_the_start_of_the_partition(log: spark_log.Log, serve: Serve) -> None:
    """A client that has lost its position compares it."""
    gateway = serve()
    found = produce(gateway, ("orders", 0, batch(b"a", b"b", b"c")), ("orders", 1, batch(b"x")))
    assert [one.log_start_offset for one in found] == [0, 0]
    log.admin.delete_records({spark_log.TopicPartition("orders", 0): 2})
    found = produce(gateway, ("orders", 0, batch(b"d")), ("gone", 0, batch(b"x")))
    assert [(one.base_offset, one.log_start_offset) for one in found] == [(3, 2), (-1, -1)]
