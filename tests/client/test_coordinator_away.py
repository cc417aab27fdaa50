"""Producers and consumers while their coordinator is away: what they wait for, how long, and what they say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import spark_log
from spark_log import TopicPartition
from spark_log.errors import CoordinatorNotAvailable, RequestTimedOut
from tests.client.logs import in_child, values
from tests.services import Services


class Place:
    """A log whose coordinator comes and goes, at one address."""

    def __init__(self, services: Services, folder: Path) -> None:
        self._services, self._folder = services, folder
        self._running = services.start(folder)
        self.address = self._running.coordinator.address
        self.log = spark_log.connect(f"pylog://{self.address}")
        self.log.admin.create_topics([spark_log.NewTopic("t")])

    def go(self) -> None:
        self._services.stop(self._running)

    def come(self) -> None:
        self._running = self._services.start(self._folder, listen=self.address)


@pytest.fixture
def place(services: Services, tmp_path: Path) -> Iterator[Place]:
    found = Place(services, tmp_path / "log")
    yield found
    services.stop_all()
    found.log.close()


def test_a_record_is_given_up_after_its_delivery_timeout(place: Place) -> None:
    """Not after the timeout of a change; the producer continues when the coordinator is back."""
    producer = place.log.producer(delivery_timeout_ms=300, linger_ms=0)
    producer.send("t", b"1").result(60)
    place.go()
    began = time.monotonic()
    with pytest.raises(RequestTimedOut, match="not written within delivery_timeout_ms"):
        producer.send("t", b"2").result(60)
    assert time.monotonic() - began < 15
    place.come()
    again = place.log.producer(linger_ms=0)
    assert again.send("t", b"3").result(60).offset == 1
    producer.close()
    again.close()


# Promise: clients.md#producer
def test_a_record_waits_for_its_delivery_timeout(place: Place) -> None:
    """Also where a change is given up sooner: the coordinator is asked again, and the record is in once."""
    place.log.journal.metadata_log.context = replace(place.log.journal.context, coordinator_wait_ms=100)
    producer = place.log.producer(linger_ms=0)
    place.go()
    future = producer.send("t", b"1")
    time.sleep(0.6)
    assert not future.done()
    place.come()
    assert future.result(60).offset == 0
    producer.close()
    assert values(place.log, "t") == [b"1"]


# Promise: clients.md#producer
def test_a_sender_is_held_back_for_max_block_ms_and_no_longer(place: Place) -> None:
    """While the buffer is full, and while it is not known whether a topic can be created."""
    producer = place.log.producer(buffer_memory=1000, max_block_ms=100, linger_ms=0)
    place.go()
    began = time.monotonic()
    with pytest.raises(RequestTimedOut, match="topic 'new' was not found or created within max_block_ms=100"):
        producer.send("new", b"y")
    waiting = producer.send("t", b"x" * 900)
    with pytest.raises(RequestTimedOut, match="no room for"):
        producer.send("t", b"y" * 900)
    assert time.monotonic() - began < 15
    place.come()
    assert waiting.result(60).offset == 0
    producer.close()


def test_a_sender_does_not_wait_for_a_change_that_has_more_time(place: Place) -> None:
    """Of the same handle, on the same coordinator; nor does a change that came later wait longer than the first."""
    place.go()
    producer = place.log.producer(max_block_ms=100, linger_ms=0)
    with ThreadPoolExecutor() as pool:
        change = pool.submit(place.log.create_topic, spark_log.NewTopic("first"))
        time.sleep(0.5)
        began = time.monotonic()
        with pytest.raises(RequestTimedOut, match="topic 'new' was not found or created within max_block_ms=100"):
            producer.send("new", b"y")
        assert time.monotonic() - began < 15 and not change.done()
        place.come()
        assert change.result(60)
    assert producer.send("new", b"y").result(60).offset == 0
    producer.close()


def test_changes_that_queue_for_a_coordinator_are_given_up_together(place: Place) -> None:
    """The second does not begin to wait when the first has given up."""
    place.log.journal.metadata_log.context = replace(place.log.journal.context, coordinator_wait_ms=4000)
    place.go()
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        changes = []
        for number in range(4):
            changes.append(pool.submit(place.log.create_topic, spark_log.NewTopic(f"u{number}")))
            time.sleep(0.1)
        for change in changes:
            with pytest.raises(CoordinatorNotAvailable):
                change.result(60)
    assert time.monotonic() - began < 5.8
    place.come()


def test_consumers_go_on_reading_while_a_change_waits(place: Place) -> None:
    """Also those of the same handle: what was committed before is on the storage."""
    consumer = place.log.consumer("t", auto_offset_reset="earliest")
    assert consumer.poll(0) == {}
    with spark_log.connect(f"pylog://{place.address}") as other:
        other.append("t", [{"value": b"1"}])
    place.go()
    producer = place.log.producer(linger_ms=0)
    waiting = producer.send("t", b"2")
    time.sleep(0.2)
    began = time.monotonic()
    assert sum(map(len, consumer.poll(20_000).values())) == 1
    assert place.log.read("t").num_rows == 1 and time.monotonic() - began < 15 and not waiting.done()
    place.come()
    assert waiting.result(60).offset == 1
    producer.close()
    consumer.close()


def test_a_forked_child_is_another_member(place: Place) -> None:
    """It takes nothing from its parent unless it polls, and then it is a separate member."""
    place.log.append("t", [{"value": b"1"}])
    consumer = place.log.consumer("t", group_id="g", auto_offset_reset="earliest", session_timeout_ms=6000)
    assert sum(map(len, consumer.poll(20_000).values())) == 1
    before = place.log.admin.describe_consumer_groups(["g"])["g"]

    def child() -> None:
        with spark_log.connect(f"pylog://{place.address}") as own:
            found = own.admin.describe_consumer_groups(["g"])["g"]
            assert found.members == before.members
        other = place.log.consumer(group_id="child", auto_offset_reset="earliest")
        other.subscribe(["t"])
        assert sum(map(len, other.poll(20_000).values())) == 1
        other.close()

    assert in_child(child) == 0
    place.log.append("t", [{"value": b"2"}])
    assert sum(map(len, consumer.poll(20_000).values())) == 1
    consumer.commit()
    assert consumer.committed(TopicPartition("t", 0)) == 2
    assert place.log.admin.describe_consumer_groups(["g"])["g"] == before
    consumer.close()
