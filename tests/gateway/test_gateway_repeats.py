"""Batches of producers that are sent again, in rounds that go wrong, and after connections that end."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

import spark_log
from simulation.harness.stores import Wrapper
from spark_log import NewTopic
from spark_log.gateway.api import API_VERSIONS, PRODUCE
from spark_log.gateway.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    KAFKA_STORAGE_ERROR,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TOPIC_AUTHORIZATION_FAILED,
)
from spark_log.gateway.messages import ApiVersionsRequest, ProducedPartition, ProducedTopic, ProduceRequest
from spark_log.gateway.produced_batches import HEADERS_MAX, HEADERS_TOGETHER_MAX, parse_batch
from spark_log.gateway.rounds import TRIES, RoundWriter, Waiting, WriteOutcome, patience_ms
from spark_log.journal.journal import Journal
from spark_log.metadata.commits.kafka_producers import RANDOM_BITS, producer_id
from spark_log.server.tokens import parse_tokens
from spark_log.store.object_names import DATA
from spark_log.store.open import open_store
from tests.gateway.running import DEADLINE_S, Running, frame, received
from tests.services import Services

Write = Callable[..., list[tuple[int, int]]]


def batch(*values: bytes, producer: int = -1, sequence: int = -1, epoch: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer, epoch, sequence, 1 << 24)
    for number, value in enumerate(values):
        builder.append(number, int(time.time() * 1000), None, value, [])
    return bytes(builder.build())


def values(log: spark_log.Log, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = log.read(topic, partition)["value"].to_pylist()
    return found


def new_id() -> int:
    return producer_id(int(time.time() * 1000), secrets.randbits(RANDOM_BITS))


@pytest.fixture
def rounds() -> Iterator[Callable[[spark_log.Log], Write]]:
    """Makes what writes rounds of batches, each (topic, partition, batch), and returns their codes and offsets."""
    loop = asyncio.new_event_loop()
    yield lambda log: partial(written_in, RoundWriter(log.journal), log, loop)
    loop.close()


@pytest.fixture
def write(log: spark_log.Log, rounds: Callable[[spark_log.Log], Write]) -> Write:
    return rounds(log)


def written_in(
    writer: RoundWriter, log: spark_log.Log, loop: asyncio.AbstractEventLoop, *sent: tuple[str, int, bytes]
) -> list[tuple[int, int]]:
    ids = log.journal.state.names
    round_ = [
        Waiting(topic, ids[topic], number, parse_batch(data), -1, 5000, loop.create_future())
        for topic, number, data in sent
    ]
    writer.write(round_)
    found = [(one.repeated or one).outcome or WriteOutcome(99) for one in round_]
    return [(one.code, one.offset) for one in found]


def test_a_repeat_is_recognised_behind_a_later_batch(log: spark_log.Log, write: Write) -> None:
    """A client may give up a connection while its later batch waits for the next round."""
    one = new_id()
    a, b = batch(b"a", producer=one, sequence=0), batch(b"b", producer=one, sequence=1)
    assert write(("orders", 0, a)) == [(NONE, 0)]
    assert write(("orders", 0, b), ("orders", 0, a), ("orders", 0, b)) == [(NONE, 1), (NONE, 0), (NONE, 1)]
    assert values(log) == [b"a", b"b"]


def test_a_repeat_is_recognised_whatever_the_rules_are_by_now(log: spark_log.Log, write: Write) -> None:
    """Refused, its number would be given to the next batch, which would pass for the repeat."""
    one = new_id()
    assert write(("orders", 0, batch(b"a", producer=one, sequence=0))) == [(NONE, 0)]
    log.admin.incremental_alter_configs({"orders": {"max.message.bytes": "10"}})
    assert write(("orders", 0, batch(b"a", producer=one, sequence=0))) == [(NONE, 0)]


def test_a_producer_raises_its_epoch_in_one_partition_after_the_other(log: spark_log.Log, write: Write) -> None:
    """A batch that was under way in another partition keeps its epoch, and is recognised."""
    one = new_id()
    old, newer = batch(b"old", producer=one, sequence=0), batch(b"new", producer=one, sequence=0, epoch=1)
    assert write(("orders", 0, newer), ("orders", 1, old)) == [(NONE, 0), (NONE, 0)]
    assert write(("orders", 0, newer), ("orders", 1, old)) == [(NONE, 0), (NONE, 0)]
    later = batch(b"later", producer=one, sequence=1, epoch=1)
    assert write(("orders", 0, old), ("orders", 0, later)) == [(INVALID_PRODUCER_EPOCH, -1), (NONE, 1)]
    assert (values(log), values(log, partition=1)) == ([b"new", b"later"], [b"old"])


# Promise: gateway.md#writes
def test_a_producer_continues_in_a_topic_that_was_created_again(log: spark_log.Log, write: Write) -> None:
    """With its next number, as Kafka's clients do, or with the first one.  No batch is left out for another."""
    one, other = new_id(), new_id()
    old = [batch(b"old", b"old", producer=producer, sequence=0) for producer in (one, other)]
    assert write(("orders", 0, old[0]), ("orders", 0, old[1])) == [(NONE, 0), (NONE, 2)]
    log.admin.delete_topics(["orders"])
    log.create_topic(NewTopic("orders", 1))
    new = [batch(b"new", producer=one, sequence=sequence) for sequence in range(2, 5)]
    first = batch(b"first", producer=other, sequence=0)
    assert write(("orders", 0, new[1])) == [(OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert write(("orders", 0, new[0]), ("orders", 0, new[1]), ("orders", 0, first)) == [
        (NONE, 0),
        (NONE, 1),
        (NONE, 2),
    ]
    assert write(("orders", 0, new[1]), ("orders", 0, new[2]), ("orders", 0, first)) == [
        (NONE, 1),
        (NONE, 3),
        (NONE, 2),
    ]
    assert values(log) == [b"new", b"new", b"first", b"new"]


# Promise: gateway.md#writes
def test_a_batch_that_had_no_answer_continues_in_a_topic_that_was_created_again(
    log: spark_log.Log, write: Write
) -> None:
    """Its client sends it again, with those behind it."""
    one = new_id()
    sent = [("orders", 0, batch(b"%d" % n, producer=one, sequence=n)) for n in range(5)]
    assert write(*sent[:4]) == [(NONE, n) for n in range(4)]
    log.admin.delete_topics(["orders"])
    log.create_topic(NewTopic("orders", 1))
    assert write(sent[2]) == [(NONE, 0)]
    assert write(*sent[2:]) == [(NONE, n) for n in range(3)]
    assert values(log) == [b"2", b"3", b"4"]


def calls_of(write: Write, count: int) -> int:
    """How many calls it takes to write a round of batches of a producer, each of them twice."""
    one, calls = new_id(), 0
    sent = [("orders", 0, batch(b"x", producer=one, sequence=n // 2)) for n in range(2 * count)]

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        found = write(*sent)
    finally:
        sys.setprofile(before)
    assert {code for code, _ in found} == {NONE} and found[0::2] == found[1::2]
    return calls


# Promise: gateway.md#limits
def test_a_round_takes_as_long_as_its_batches(write: Write) -> None:
    """A request may name a partition thousands of times, and all other writes of the gateway wait for the round."""
    calls_of(write, 1)
    assert calls_of(write, 400) < 2.2 * calls_of(write, 200)


class OvertakenStore(Wrapper):
    """Something happens before each upload."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.happens: Callable[[], object] = lambda: None

    def put(self, key: str, chunks: Any) -> None:
        if key.startswith(DATA):
            self.happens()
        super().put(key, chunks)


# Promise: gateway.md#writes
@pytest.mark.parametrize("uploads", [TRIES, 100])
def test_a_producer_that_writes_through_two_gateways_fails_no_other(
    log: spark_log.Log, rounds: Callable[[spark_log.Log], Write], uploads: int
) -> None:
    """The batches of its neighbours are written, however often another gateway is faster with one of the producer."""
    store, one, other = OvertakenStore(open_store(log.url, None, "os")), new_id(), new_id()
    overtaken = spark_log.Log(Journal.open(store, create=False))
    write, write_here = rounds(log), rounds(overtaken)
    sent = [("orders", 0, batch(b"%d" % n, producer=one, sequence=n)) for n in range(8)]
    faster = iter(sent[:uploads])
    store.happens = lambda: [write(batch_of) for batch_of in islice(faster, 1)]
    neighbours = [("orders", 1, batch(b"x", producer=other, sequence=0)), ("orders", 1, batch(b"y"))]
    found = write_here(*sent[:7], *neighbours)
    assert found[7:] == [(NONE, 0), (NONE, 1)]
    if uploads == TRIES:
        assert found[:7] == [(NONE, n) for n in range(7)]
    else:
        assert found[0] == (NONE, 0) and found[6] == (KAFKA_STORAGE_ERROR, -1)
    assert values(log, partition=1) == [b"x", b"y"]
    assert values(log) == [b"%d" % n for n in range(len(values(log)))]
    overtaken.close()


def test_a_rule_that_was_changed_elsewhere_concerns_its_topic_alone(log: spark_log.Log, write: Write) -> None:
    """The other batches of the round are written."""
    log.create_topic(NewTopic("changed", 1))
    log.journal.refresh()
    with spark_log.connect(log.url) as other:
        other.admin.incremental_alter_configs({"changed": {"cleanup.policy": "compact"}})
    one = new_id()
    good = batch(b"x", producer=one, sequence=0)
    assert write(("changed", 0, batch(b"no key")), ("orders", 0, good)) == [(INVALID_RECORD, -1), (NONE, 0)]
    assert values(log) == [b"x"] and values(log, "changed") == []


# Promise: gateway.md#writes
def test_a_topic_that_the_gateway_may_not_write_concerns_nobody_else(tmp_path: Path) -> None:
    """Its token is for other topics."""
    services, loop = Services(), asyncio.new_event_loop()
    running = services.start(
        tmp_path / "log",
        tokens=parse_tokens({"boss": "admin BOSS-of-all-topics", "shop": "write SHOP-writes-some shop."}),
    )
    with spark_log.connect(f"pylog://{running.coordinator.address}", token="BOSS-of-all-topics") as boss:
        for name in ("shop.a", "other"):
            boss.create_topic(NewTopic(name, 1))
    with spark_log.connect(f"pylog://{running.coordinator.address}", token="SHOP-writes-some") as log:
        one, ids = new_id(), log.journal.refresh().names

        def sent(topic: str, producer: int) -> Waiting:
            data = parse_batch(batch(b"x", producer=producer, sequence=0 if producer > 0 else -1))
            return Waiting(topic, ids[topic], 0, data, -1, 5000, loop.create_future())

        round_ = [sent("other", -1), sent("shop.a", one), sent("other", one)]
        RoundWriter(log.journal).write(round_)
        codes = [found.outcome.code if found.outcome else 99 for found in round_]
        assert codes == [TOPIC_AUTHORIZATION_FAILED, NONE, TOPIC_AUTHORIZATION_FAILED]
    services.close()
    loop.close()


# Promise: gateway.md#limits
def test_batches_with_too_many_headers_together_are_written_in_parts(log: spark_log.Log, write: Write) -> None:
    """Each is allowed alone."""
    one, builders = new_id(), []
    for number in range(3):
        builder = DefaultRecordBatchBuilder(2, 0, 0, one, 0, 40 * number, 1 << 24)
        for row in range(40):
            builder.append(row, 1000, None, b"x", [("", None)] * HEADERS_MAX)
        builders.append(bytes(builder.build()))
    assert 40 * HEADERS_MAX < HEADERS_TOGETHER_MAX < 3 * 40 * HEADERS_MAX
    found = write(*[("orders", 0, built) for built in builders], ("orders", 1, batch(b"y")))
    assert found == [(NONE, 0), (NONE, 40), (NONE, 80), (NONE, 0)]


def test_the_most_patient_client_decides_how_long_a_round_is_tried() -> None:
    """With the shortest time of all clients, one of them could fail the writes of the others."""
    assert patience_ms([1, 20_000, -5]) == 20_000
    assert (patience_ms([1]), patience_ms([1 << 30])) == (1000, 30_000)


class HungStore(Wrapper):
    """Uploads wait for `go`."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.reached, self.go = threading.Event(), threading.Event()

    def _pass(self, key: str, *, writes: bool = False) -> None:
        if writes and key.startswith(DATA):
            self.reached.set()
            self.go.wait(DEADLINE_S)


def sent(opened: socket.socket, value: bytes, acks: int) -> None:
    topics = [ProducedTopic(name="orders", partitions=[ProducedPartition(index=0, records=batch(value))])]
    opened.sendall(frame(PRODUCE, 9, ProduceRequest(acks=acks, timeout_ms=5000, topics=topics)))


# Promise: gateway.md#writes
def test_what_waits_when_its_client_disconnects_is_not_written(tmp_path: Path) -> None:
    """The client sends it again: while a storage hangs, it would do so many times.  With acks=0 it does not."""
    url = str(tmp_path / "log")
    with spark_log.connect(url, durability="os") as log:
        log.create_topic(NewTopic("orders", 1))
    store = HungStore(open_store(url, None, "os"))
    log = spark_log.Log(Journal.open(store, create=False))
    gateway = Running(log)
    with gateway.connection() as first:
        sent(first, b"hangs", -1)
        assert store.reached.wait(DEADLINE_S)
        for acks, value in ((-1, b"given up"), (1, b"given up"), (0, b"no answer is wanted")):
            with gateway.connection() as lost:
                sent(lost, value, acks)
        gateway.ask(API_VERSIONS, 0, ApiVersionsRequest())  # those before it are accepted
        deadline = time.monotonic() + DEADLINE_S
        while gateway.connections > 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        with gateway.connection() as again:
            sent(again, b"again", -1)
            store.go.set()
            assert received(first) and received(again)
    gateway.close()
    assert values(log) == [b"hangs", b"no answer is wanted", b"again"]
    log.close()
