"""Connections and frames that are not as they should be."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

import spark_log
from spark_log.errors import InvalidRequest
from spark_log.gateway.api import API_VERSIONS, APIS, FETCH, METADATA, PRODUCE
from spark_log.gateway.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from spark_log.gateway.gateway import Addresses, parse_addresses
from spark_log.gateway.messages import (
    ApiVersionsRequest,
    FetchedFrom,
    FetchedTopic,
    FetchRecordsRequest,
    MetadataRequest,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
)
from spark_log.gateway.port import LIMITS
from spark_log.gateway.topics import ServedTopics
from spark_log.rpc.kafka_probe import is_kafka
from tests.gateway.running import DEADLINE_S, Running, frame, received

Serve = Callable[..., Running]
HEADER = struct.Struct(">hhih")


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_every_version_of_each_request_is_answered(serve: Serve) -> None:
    """ApiVersions names the versions."""
    gateway = serve()
    for version in range(API_VERSIONS.first, API_VERSIONS.last + 1):
        found = gateway.ask(API_VERSIONS, version, ApiVersionsRequest())
        assert {one.api_key: (one.min_version, one.max_version) for one in found.api_keys} == {
            api.key: (api.first, api.last) for api in APIS.values()
        }
    for version in range(METADATA.first, METADATA.last + 1):
        found = gateway.ask(METADATA, version, MetadataRequest(topics=[] if version == 0 else None))
        assert [(one.name, len(one.partitions)) for one in found.topics] == [("orders", 2)]
    for version in range(FETCH.first, FETCH.last + 1):
        assert not gateway.ask(FETCH, version, FetchRecordsRequest(max_bytes=10)).responses
    assert is_kafka(gateway.address)


LIES = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",  # a TLS handshake
    struct.pack(">i", -5),
    struct.pack(">i", 9) + bytes(9),
    struct.pack(">i", (32 << 20) + 1),
    struct.pack(">ih", (1 << 20) + 1, 3),  # only a write may be so large
    framed(HEADER.pack(24, 0, 7, -1) + bytes(20)),  # AddPartitionsToTxn is not served
    framed(HEADER.pack(1, 3, 7, -1) + bytes(20)),  # too old a Fetch
    framed(HEADER.pack(3, 99, 7, -1) + bytes(20)),
    framed(HEADER.pack(3, 1, 7, 30_000)),  # a client id that is longer than the frame
    framed(HEADER.pack(3, 1, 7, -1) + struct.pack(">i", 2**31 - 1)),  # as many topics
    framed(HEADER.pack(3, 1, 7, -1) + struct.pack(">i", -2)),
    framed(HEADER.pack(3, 9, 7, -1) + b"\0" + b"\xff\xff\xff\xff\x0f"),
    framed(HEADER.pack(3, 9, 7, -1) + b"\0" + b"\xff" * 20),
    framed(HEADER.pack(3, 1, 7, -1) + struct.pack(">ih", 1, 3) + b"\xff\xff\xff"),  # a name that is not UTF-8
    framed(HEADER.pack(0, 8, 7, -1) + struct.pack(">hhii", -1, -1, 9, 100_001) + bytes(6 * 100_001)),
]


# Promise: gateway.md#limits
def test_lies_close_the_connection(serve: Serve) -> None:
    """Without an answer, and before memory is taken for them.  Others are served."""
    gateway = serve()
    for sent in LIES:
        with gateway.connection() as opened:
            opened.sendall(sent)
            with suppress(ConnectionResetError):
                assert received(opened) == b"", sent
    assert gateway.ask(API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0


def test_a_newer_api_versions_is_answered_as_the_oldest(serve: Serve) -> None:
    """With the error that makes a client ask again (KIP-511)."""
    with serve().connection() as opened:
        opened.sendall(framed(HEADER.pack(18, 9, 7, -1) + b"whatever"))
        answer = received(opened)
    assert answer[:6] == struct.pack(">ih", 7, 35) and struct.unpack_from(">i", answer, 6) == (len(APIS),)


def test_requests_of_a_connection_are_answered_in_order(serve: Serve) -> None:
    """Although they arrive together."""
    gateway = serve()
    with gateway.connection() as opened:
        wait = FetchRecordsRequest(max_wait_ms=100, min_bytes=1, max_bytes=1)
        opened.sendall(frame(FETCH, 17, wait) + frame(API_VERSIONS, 0, ApiVersionsRequest()))
        assert len(received(opened)) < 40 and received(opened) == received_alone(gateway)


def received_alone(gateway: Running) -> bytes:
    with gateway.connection() as opened:
        opened.sendall(frame(API_VERSIONS, 0, ApiVersionsRequest()))
        return received(opened)


def test_a_write_that_waits_for_no_answer_closes_the_connection(serve: Serve) -> None:
    """Kafka closes it, too: the client has no other way to learn that the write failed."""
    topics = [ProducedTopic(name="orders", partitions=[ProducedPartition(index=0, records=b"x")])]
    with serve().connection() as opened:
        opened.sendall(frame(PRODUCE, 11, ProduceRequest(acks=0, timeout_ms=1, topics=topics)))
        assert received(opened) == b""


def test_a_topic_of_any_name_has_an_answer(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """One that is too long for a message, and one with control characters, which are escaped for a terminal."""
    gateway, wrong = serve(), [ProducedPartition(index=0, records=b"x")]
    topics = [ProducedTopic(name="n" * 32_767, partitions=wrong)]
    found = gateway.ask(PRODUCE, 8, ProduceRequest(acks=1, timeout_ms=1, topics=topics))
    assert found.topics[0].partitions[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    topics = [ProducedTopic(name="a\x1b[2J\nb", partitions=wrong)]
    with gateway.connection() as opened:
        opened.sendall(frame(PRODUCE, 11, ProduceRequest(acks=0, timeout_ms=1, topics=topics)))
        assert received(opened) == b""
    said = " ".join(caplog.messages)  # `text` is in the format of whichever process logs
    assert "a\\x1b[2J\\nb-0" in said and "\x1b" not in said


# Promise: gateway.md#limits
def test_writes_that_do_not_arrive_leave_room_for_reads(serve: Serve) -> None:
    """Nine of them announce more than all requests may have together."""
    gateway = serve()
    with ExitStack() as opened:
        for _ in range(9):
            opened.enter_context(gateway.connection()).sendall(struct.pack(">ih", 32 << 20, PRODUCE.key))
        assert gateway.ask(METADATA, 13, MetadataRequest(topics=None)).topics


# Promise: gateway.md#limits
def test_connections_are_limited(log: spark_log.Log) -> None:
    """One too many is closed without an answer, and the others stay."""
    gateway = Running(log, limits=LIMITS._replace(connections=1))
    asked = frame(API_VERSIONS, 0, ApiVersionsRequest())
    with gateway.connection() as first, gateway.connection() as second:
        first.sendall(asked)
        assert received(first)
        second.sendall(asked)
        assert received(second) == b""
        first.sendall(asked)
        assert received(first)
    gateway.close()


# Promise: gateway.md#start
def test_addresses() -> None:
    """Other machines are let in on request only, and need one address."""
    assert parse_addresses("9092", None, insecure=False) == Addresses("127.0.0.1", 9092, "127.0.0.1", 9092)
    found = parse_addresses("0.0.0.0:9092", "kafka.example:443", insecure=True)
    assert found == Addresses("0.0.0.0", 9092, "kafka.example", 443)
    with pytest.raises(InvalidRequest, match=r"--listen 10\.0\.0\.1:9092: other machines could read .*--insecure"):
        parse_addresses("10.0.0.1:9092", None, insecure=False)
    with pytest.raises(InvalidRequest, match="--advertise HOST:PORT"):
        parse_addresses("0.0.0.0:9092", None, insecure=True)
    with pytest.raises(InvalidRequest, match="--listen: 'a b' is not an address"):
        parse_addresses("a b", None, insecure=True)


# Promise: gateway.md#start
def test_an_empty_prefix_does_not_serve_all_topics() -> None:
    """It may be a variable of a script that is not set."""
    with pytest.raises(InvalidRequest, match="--prefix is empty, which would serve all topics"):
        ServedTopics(("shop.", ""))


def test_a_port_in_use_is_one_sentence(serve: Serve, log: spark_log.Log) -> None:
    from tests.cli.commands import Pylog

    found = Pylog(log.url).refused("gateway", "--listen", serve().address)
    assert "cannot listen on 127.0.0.1" in found and "choose another --listen address" in found


# Promise: gateway.md#limits
def test_a_gateway_ends_although_a_client_takes_nothing(log: spark_log.Log) -> None:
    """It does not wait until the client has taken its answer."""
    log.append("orders", [{"value": bytes(1_000_000), "partition": 0}] * 10)
    (topic,) = (key for key, one in log.journal.state.topics.items() if one.name == "orders")
    asked = [FetchedFrom(partition=0, fetch_offset=0, partition_max_bytes=1 << 24)]
    request = FetchRecordsRequest(
        max_wait_ms=0, max_bytes=1 << 24, topics=[FetchedTopic(topic_id=topic, partitions=asked)]
    )
    gateway = Running(log)
    with gateway.connection() as opened:
        opened.sendall(frame(FETCH, 17, request))
        assert len(opened.recv(1)) == 1
        began = time.monotonic()
        gateway.close()
        assert time.monotonic() - began < DEADLINE_S / 2
