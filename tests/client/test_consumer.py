"""Consumers on a real log."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection
from itertools import islice
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Faults
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.reader.scan_batches import SCAN_SCHEMA
from spark_log.errors import (
    IllegalGeneration,
    InvalidRequest,
    NoOffsetForPartition,
    ObjectNotFound,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    StorageUnavailable,
    UnknownTopicOrPartition,
)
from spark_log.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from spark_log.store.retry import RetryingStore
from tests.client.logs import Flaky, log_on, new_log, quick_store

P0 = TopicPartition("orders", 0)
P1 = TopicPartition("orders", 1)


def fill(log: spark_log.Log, count: int = 10, topic: str = "orders", partition: int = 0) -> None:
    """Records "0", "1", … in one partition, in one commit."""
    log.append(topic, [{"value": b"%d" % n, "partition": partition, "timestamp": 1000 * n} for n in range(count)])


def seen(records: dict[TopicPartition, list[ConsumerRecord]]) -> list[int]:
    return [int(record.value or b"-1") for _, some in sorted(records.items()) for record in some]


def reader(log: spark_log.Log, *topics: str, **settings: object) -> Consumer:
    return log.consumer(*topics, **{"auto_offset_reset": "earliest", "consumer_timeout_ms": 100, **settings})


class Listener:
    """Records the calls that it gets."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", sorted(partitions)))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", sorted(partitions)))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("lost", sorted(partitions)))


def test_a_record_has_everything_that_was_written(tmp_path: Path) -> None:
    """Topic, partition, offset, timestamp in ms, key, value, headers."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"key": "k", "value": None, "timestamp": 5000, "headers": [{"key": "h", "value": b"1"}]}])
    log.append("orders", [{"value": "v", "timestamp": 6000}])
    with reader(log, "orders") as consumer:
        assert list(consumer) == [
            ConsumerRecord("orders", 0, 0, 5000, b"k", None, [("h", b"1")]),
            ConsumerRecord("orders", 0, 1, 6000, None, b"v", ()),
        ]


def test_poll_gives_at_most_so_many_and_goes_on_there(tmp_path: Path) -> None:
    """max_records, else max_poll_records; nothing is left out or given twice."""
    log = new_log(tmp_path, orders=2)
    fill(log, 25, partition=0)
    fill(log, 5, partition=1)
    with reader(log, "orders", max_poll_records=4) as consumer:
        assert len(seen(consumer.poll(max_records=7))) == 7
        counts, found = [], {P0: 0, P1: 0}
        while records := consumer.poll():
            counts.append(len(seen(records)))
            for tp, some in records.items():
                found[tp] += len(some)
        assert set(counts[:-1]) == {4} and sum(counts) == 23
        assert consumer.position(P0) == 25 and consumer.position(P1) == 5
        with pytest.raises(InvalidRequest, match="max_records"):
            consumer.poll(max_records=0)


def test_no_partition_starves(tmp_path: Path) -> None:
    """Partitions are served in turn."""
    log = new_log(tmp_path, orders=2)
    fill(log, 1000, partition=0)
    fill(log, 10, partition=1)
    with reader(log, "orders", max_poll_records=10) as consumer:
        assert {tp for _ in range(2) for tp in consumer.poll()} == {P0, P1}


def test_poll_waits_for_records(tmp_path: Path) -> None:
    """A poll that waits gives what another process writes, soon after."""
    log = new_log(tmp_path, orders=1)
    with reader(log, "orders") as consumer:
        assert consumer.poll() == {}
        start = time.monotonic()
        assert consumer.poll(timeout_ms=100) == {}
        assert time.monotonic() - start >= 0.09
        writer = threading.Timer(0.2, fill, (spark_log.connect(log.url), 1))
        writer.start()
        assert seen(consumer.poll(timeout_ms=60_000)) == [0]
        writer.join()


def test_arrow_comes_with_all_columns(tmp_path: Path) -> None:
    """poll_arrow gives a table of the schema of scans, in large pieces, and moves the position as poll does."""
    log = new_log(tmp_path, orders=1)
    fill(log, 1000)
    with reader(log, "orders") as consumer:
        assert len(seen(consumer.poll(max_records=10))) == 10
        table = consumer.poll_arrow()
        assert table.schema == SCAN_SCHEMA and table.column("offset").to_pylist() == list(range(10, 1000))
        assert consumer.poll_arrow().num_rows == 0 and consumer.position(P0) == 1000
        consumer.seek(P0, 5)
        assert consumer.poll_arrow(max_records=3).column("value").to_pylist() == [b"5", b"6", b"7"]


# Promise: clients.md#consumer
def test_a_poll_never_sees_half_a_commit(tmp_path: Path) -> None:
    """Two topics that are always written together are always read together."""
    log = new_log(tmp_path, a=1, b=1)
    stop = threading.Event()

    def write() -> None:
        other = spark_log.connect(log.url)
        while not stop.is_set():
            with other.transaction("t") as txn:
                txn.send("a", b"x")
                txn.send("b", b"x")

    writer = threading.Thread(target=write)
    writer.start()
    counts = {"a": 0, "b": 0}
    try:
        with reader(log, "a", "b") as consumer:
            end = time.monotonic() + 2
            while time.monotonic() < end or (counts["a"] <= 5 and writer.is_alive()):
                for tp, records in consumer.poll(timeout_ms=100, max_records=100_000).items():
                    counts[tp.topic] += len(records)
                assert counts["a"] == counts["b"]
    finally:
        stop.set()
        writer.join()
    assert counts["a"] > 5


def test_a_group_goes_on_where_it_committed(tmp_path: Path) -> None:
    """Sync, async with a callback, with a note, and by exact numbers."""
    log = new_log(tmp_path, orders=1)
    fill(log)
    with reader(log, "orders", group_id="g", enable_auto_commit=False) as consumer:
        assert consumer.committed(P0) is None
        consumer.poll(1000, max_records=3)
        consumer.commit()
        assert consumer.committed(P0) == 3 and consumer.lag() == {P0: 7}
        consumer.commit({P0: OffsetAndMetadata(4, "note")})
        assert consumer.committed(P0, metadata=True) == OffsetAndMetadata(4, "note")
        with pytest.raises(OffsetMetadataTooLarge, match="orders-0 has 5000 bytes"):
            consumer.commit({P0: OffsetAndMetadata(5, "n" * 5000)})
        told: list[object] = []
        consumer.commit_async({P0: 5}, callback=lambda offsets, error: told.append((offsets, error)))
        consumer.commit_async({P0: 6})
        assert consumer.committed(P0) == 6
        assert told == [({P0: OffsetAndMetadata(5)}, None)]
    with reader(log, "orders", group_id="g", consumer_timeout_ms=60_000) as consumer:
        assert [record.offset for record in islice(consumer, 4)] == [6, 7, 8, 9]


def test_iteration_commits_only_what_was_given_out(tmp_path: Path) -> None:
    """Records that were read ahead are not passed over."""
    log = new_log(tmp_path, orders=1)
    fill(log)
    with reader(log, "orders", group_id="g", consumer_timeout_ms=60_000) as consumer:
        for record in consumer:
            if record.offset == 3:
                break
        consumer.commit()
        assert consumer.committed(P0) == 4 and consumer.position(P0) == 4
        assert seen(consumer.poll()) == [4, 5, 6, 7, 8, 9]
        consumer.seek(P0, 2)
        assert next(consumer).offset == 2


# Promise: clients.md#consumer
def test_auto_commit_happens_in_time_and_at_the_end(tmp_path: Path) -> None:
    """By the interval in polls, and on close; not with autocommit=False."""
    log = new_log(tmp_path, orders=1)
    fill(log)
    consumer = reader(log, "orders", group_id="g", auto_commit_interval_ms=0)
    consumer.poll(1000, max_records=4)
    consumer.poll(max_records=1)
    assert log.admin.list_consumer_group_offsets("g")[P0].offset == 4
    consumer.close(autocommit=False)
    assert log.admin.list_consumer_group_offsets("g")[P0].offset == 4
    with reader(log, "orders", group_id="g") as consumer:
        consumer.poll(1000, max_records=2)
    assert log.admin.list_consumer_group_offsets("g")[P0].offset == 6


# Promise: ../README.md#why, clients.md#consumer
def test_a_newer_consumer_takes_the_group(tmp_path: Path) -> None:
    """Embedded, the older one's commit is refused, its poll tells the listener once; it can take the group back."""
    log = new_log(tmp_path, orders=1)
    fill(log)
    listener = Listener()
    old = reader(log, group_id="g", enable_auto_commit=False)
    old.subscribe(["orders"], listener=listener)
    old.poll(max_records=2)
    new = reader(spark_log.connect(log.url), "orders", group_id="g", enable_auto_commit=False)
    new.poll(max_records=1)
    with pytest.raises(IllegalGeneration) as refused:
        old.commit()
    assert refused.value.current == spark_log.connect(log.url).journal.state.groups["g"].generation
    for _ in range(2):
        with pytest.raises(IllegalGeneration, match="subscribe"):
            old.poll()
    assert listener.told == [("assigned", [P0]), ("lost", [P0])]
    new.commit()
    old.subscribe(["orders"])
    assert seen(old.poll(max_records=1)) == [1]
    with pytest.raises(IllegalGeneration):
        new.commit({P0: 9})
    new.close()
    assert log.admin.describe_consumer_groups(["g"])["g"].state == "Stable"
    old.close()
    assert log.admin.describe_consumer_groups(["g"])["g"].state == "Empty"


def test_a_member_that_was_removed_is_told(tmp_path: Path) -> None:
    """Embedded, by the admin; with automatic commits too."""
    log = new_log(tmp_path, orders=1)
    fill(log)
    consumer = reader(log, "orders", group_id="g", auto_commit_interval_ms=0)
    consumer.poll(max_records=2)
    log.admin.remove_members_from_consumer_group("g")
    with pytest.raises(IllegalGeneration):
        consumer.poll()
    consumer.close()
    assert log.admin.list_consumer_group_offsets("g") == {}


def test_where_to_start_without_a_position(tmp_path: Path) -> None:
    """Kafka's default is the end; 'none' is an error."""
    log = new_log(tmp_path, orders=1)
    fill(log)
    with log.consumer("orders") as consumer:
        assert consumer.poll() == {}
        fill(log, 2)
        assert [record.offset for record in consumer.poll(1000)[P0]] == [10, 11]
    with log.consumer("orders", auto_offset_reset="none", group_id="g") as consumer:
        with pytest.raises(NoOffsetForPartition, match="'g'"):
            consumer.poll(1000)
        consumer.seek(P0, 3)
        assert len(seen(consumer.poll())) == 9


def test_latest_is_the_end_at_the_first_poll_in_every_partition(tmp_path: Path) -> None:
    """Also in one whose turn did not come in that poll: what is written to it afterwards is read."""
    log = new_log(tmp_path, orders=2)
    fill(log, 10)
    fill(log, 2, partition=1)
    log.admin.alter_consumer_group_offsets("billing", {P0: 0})
    with reader(log, "orders", group_id="billing", auto_offset_reset="latest") as consumer:
        assert seen(consumer.poll(1000, max_records=5)) == [0, 1, 2, 3, 4]
        fill(log, 3, partition=1)
        assert seen(consumer.poll(1000)) == [5, 6, 7, 8, 9, 0, 1, 2]


# Promise: clients.md#consumer, retention.md#when-a-reader-is-too-late
def test_trimmed_records_are_passed_by_the_reset_policy(tmp_path: Path) -> None:
    """With earliest, reading continues at the first existing record; with none, the error has the bounds."""
    log = new_log(tmp_path, orders=1)
    fill(log)
    with reader(log, "orders") as old, reader(log, "orders", auto_offset_reset="none") as strict:
        assert len(seen(old.poll(max_records=2))) == 2
        strict.seek(P0, 2)
        log.admin.delete_records({P0: 6})
        assert seen(old.poll(1000)) == [6, 7, 8, 9]
        with pytest.raises(OffsetOutOfRange) as error:
            strict.poll(1000)
        assert (error.value.start, error.value.end) == (6, 10)
        old.seek(P0, 99)
        assert seen(old.poll(1000)) == [6, 7, 8, 9]


# Promise: clients.md#consumer
def test_new_topics_and_partitions_join_in(tmp_path: Path) -> None:
    """Under a pattern and by name; of what is new, nothing is missed, even with auto_offset_reset=latest."""
    log = new_log(tmp_path, orders=1)
    listener = Listener()
    with log.consumer() as consumer:
        consumer.subscribe(pattern="ord.*", listener=listener)
        assert consumer.poll() == {} and consumer.subscription() == {"orders"}
        log.admin.create_partitions({"orders": 2})
        fill(log, 3, partition=1)
        fill(log, 2, topic="order-lines")
        fill(log, 2, topic="reorders")
        records = consumer.poll(1000)
        assert {tp: len(some) for tp, some in records.items()} == {P1: 3, TopicPartition("order-lines", 0): 2}
        assert consumer.assignment() == {P0, P1, TopicPartition("order-lines", 0)}
        consumer.unsubscribe()
        assert consumer.subscription() is None and consumer.assignment() == set()
    assert [what for what, _ in listener.told] == ["assigned", "assigned", "revoked"]


# Promise: clients.md#consumer
def test_a_topic_that_comes_later_is_read_from_its_start(tmp_path: Path) -> None:
    """A subscription may name topics that are not there yet."""
    log = new_log(tmp_path)
    with log.consumer("orders") as consumer:
        assert consumer.poll() == {} and consumer.assignment() == set()
        fill(log, 2)
        assert seen(consumer.poll(1000)) == [0, 1]


# Promise: clients.md#consumer
@pytest.mark.parametrize("is_polled_between", [False, True])
def test_a_topic_made_anew_is_read_from_its_start(tmp_path: Path, *, is_polled_between: bool) -> None:
    """With auto_offset_reset=latest too, whether or not a poll has seen that the topic was away."""
    log = new_log(tmp_path, orders=1)
    fill(log, 5)
    with log.consumer("orders", auto_offset_reset="latest") as consumer:
        assert consumer.poll() == {}
        fill(log, 1)
        assert seen(consumer.poll(1000)) == [0]
        log.admin.delete_topics(["orders"])
        if is_polled_between:
            assert consumer.poll() == {} and consumer.assignment() == set()
        fill(log, 3)
        assert seen(consumer.poll(1000)) == [0, 1, 2]


# Promise: clients.md#consumer
def test_a_topic_made_anew_is_another_topic(tmp_path: Path) -> None:
    """Positions of the old one do not count for it."""
    log = new_log(tmp_path, orders=1)
    fill(log, 5)
    with reader(log, "orders", group_id="g", enable_auto_commit=False) as consumer:
        consumer.poll(1000)
        consumer.commit()
        log.admin.delete_topics(["orders"])
        fill(log, 7)
        assert seen(consumer.poll(1000)) == list(range(7))
        assert consumer.committed(P0) is None


def test_assigned_partitions_need_no_group(tmp_path: Path) -> None:
    """assign() by hand; a missing partition is an error immediately, and when it is deleted."""
    log = new_log(tmp_path, orders=2)
    fill(log, partition=1)
    with reader(log) as consumer:
        with pytest.raises(InvalidRequest, match="subscribe"):
            consumer.poll()
        with pytest.raises(UnknownTopicOrPartition, match="no partition 7"):
            consumer.assign([TopicPartition("orders", 7)])
        consumer.assign([P1])
        assert len(seen(consumer.poll())) == 10 and consumer.assignment() == {P1}
        with pytest.raises(InvalidRequest, match="not assigned"):
            consumer.seek(P0, 1)
        with pytest.raises(InvalidRequest, match="unsubscribe"):
            consumer.subscribe(["orders"])
        with pytest.raises(InvalidRequest, match="no group"):
            consumer.commit()
        log.admin.delete_topics(["orders"])
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            consumer.poll()


def test_a_topic_made_anew_can_be_assigned_anew(tmp_path: Path) -> None:
    """Under the same name, from its start; a partition that stays assigned stays where it is."""
    log = new_log(tmp_path, orders=1, other=1)
    fill(log)
    fill(log, 3, topic="other")
    with reader(log) as consumer:
        consumer.assign([P0, TopicPartition("other", 0)])
        assert len(seen(consumer.poll())) == 13
        log.admin.delete_topics(["orders"])
        fill(log, 4)
        for _ in range(2):  # no poll returns as if there were no records
            with pytest.raises(UnknownTopicOrPartition, match="deleted"):
                consumer.poll()
        consumer.assign([P0, TopicPartition("other", 0)])
        assert seen(consumer.poll()) == [0, 1, 2, 3]


def test_seeking_and_positions(tmp_path: Path) -> None:
    """seek, to the beginning, to the end, before any poll and between polls."""
    log = new_log(tmp_path, orders=2)
    fill(log)
    with reader(log, "orders") as consumer:
        consumer.seek(P0, 7)
        assert seen(consumer.poll()) == [7, 8, 9]
        consumer.seek_to_beginning(P0)
        assert consumer.position(P0) == 0
        assert next(consumer).offset == 0
        consumer.seek_to_end()
        assert consumer.position(P0) == 10 and consumer.lag() == {P0: 0, P1: 0}
        with pytest.raises(InvalidRequest, match="seek_to_beginning"):
            consumer.seek(P0, -1)


def test_seeking_to_a_record_that_came_just_now(tmp_path: Path) -> None:
    """An offset that the consumer has not heard of yet is looked up before it is taken for one that is not there."""
    log, writer = new_log(tmp_path, orders=2), spark_log.connect(str(tmp_path / "log"))
    fill(writer, 10)
    fill(writer, 3, partition=1)
    with reader(log, "orders") as consumer:
        assert seen(consumer.poll(max_records=1)) == [0]  # there is more, so the next poll would not look at the log
        fill(writer, 5, partition=1)
        consumer.seek(P1, 7)
        found = consumer.poll()
        assert [record.offset for record in found[P1]] == [7]


def test_paused_partitions_give_nothing(tmp_path: Path) -> None:
    """Until they are resumed; nothing is lost."""
    log = new_log(tmp_path, orders=2)
    fill(log, 3, partition=0)
    fill(log, 3, partition=1)
    with reader(log, "orders") as consumer:
        consumer.pause(P0)
        assert set(consumer.poll()) == {P1} and consumer.paused() == {P0}
        consumer.resume(P0)
        assert seen(consumer.poll(1000)) == [0, 1, 2]


def test_a_listener_may_seek_in_what_it_was_just_assigned(tmp_path: Path) -> None:
    """So that a consumer can start where its own books say, and not where the group stands."""
    log = new_log(tmp_path, orders=2)
    fill(log)

    class Seeks(Listener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            super().on_partitions_assigned(partitions)
            for tp in partitions:
                consumer.seek(tp, 7 if tp == P0 else 0)

    listener = Seeks()
    with log.consumer(group_id="g") as consumer:
        consumer.subscribe(["orders"], listener=listener)
        assert seen(consumer.poll(20_000)) == [7, 8, 9]
    assert listener.told[0] == ("assigned", [P0, P1]) and len(listener.told) == 2


# Promise: clients.md#consumer
@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_record_is_not_held_back_by_fetch_max_wait_ms(tmp_path: Path, wait_ms: int) -> None:
    """For any value: a record is returned when it arrives, and a poll without records takes its whole timeout."""
    log = new_log(tmp_path, orders=1)
    with reader(log, "orders", fetch_max_wait_ms=wait_ms) as consumer:
        began = time.monotonic()
        assert consumer.poll(200) == {}
        assert 0.199 < time.monotonic() - began < 10, "timeouts are counted in whole milliseconds"
        threading.Timer(0.2, fill, (spark_log.connect(log.url), 1)).start()
        assert seen(consumer.poll(60_000)) == [0] and time.monotonic() - began < 30


def test_offsets_by_time_and_at_the_ends(tmp_path: Path) -> None:
    """The first record at or after a time, with its own time; None beyond the last."""
    log = new_log(tmp_path, orders=2)
    fill(log)
    with reader(log, "orders") as consumer:
        assert consumer.offsets_for_times({P0: 3500, P1: 0}) == {P0: (4, 4000), P1: None}
        assert consumer.offsets_for_times({P0: 99_000}) == {P0: None}
        assert consumer.beginning_offsets([P0, P1]) == {P0: 0, P1: 0}
        assert consumer.end_offsets([P0, P1]) == {P0: 10, P1: 0}
        assert consumer.partitions_for_topic("orders") == {0, 1} and consumer.partitions_for_topic("nope") is None
        assert consumer.topics() == {"orders"}


def test_records_read_before_a_poll_failed_are_given_by_the_next(tmp_path: Path) -> None:
    """Those of one partition are not lost because another one could not be read."""
    store = Flaky(quick_store(tmp_path), random.Random(7), Faults())
    log = log_on(RetryingStore(store, total_ms=0))
    log.admin.create_topics([spark_log.NewTopic("orders", 2)])
    fill(log, 3)
    before = {*store.list("data/")}
    fill(log, 3, partition=1)
    (late,) = {*store.list("data/")} - before
    with reader(log, "orders") as consumer:
        store.turn(Faults(errors={late: StorageUnavailable("not now")}))
        with pytest.raises(StorageUnavailable):
            consumer.poll()
        store.turn(Faults())
        assert seen(consumer.poll()) == [0, 1, 2, 0, 1, 2]


def test_merging_underneath_is_not_noticed(tmp_path: Path) -> None:
    """Objects are replaced between two polls of one plan."""
    from spark_log.maintenance.maintain import maintain_once

    log = new_log(tmp_path, orders=1)
    log.admin.incremental_alter_configs({"orders": {"retention.ms": "-1"}})
    for n in range(30):
        log.append("orders", [{"value": b"%d" % n}])
    with reader(log, "orders") as consumer:
        assert seen(consumer.poll(max_records=5)) == [0, 1, 2, 3, 4]
        maintain_once(log)
        assert seen(consumer.poll()) == list(range(5, 30))


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_a_partition_that_cannot_be_read_does_not_starve_others(tmp_path: Path) -> None:
    """Its records before the hole and those of others are returned; its error is raised in between, until a seek passes
    it.
    """
    log = new_log(tmp_path, orders=2)
    for number in range(3):
        log.append("orders", [{"value": b"%d" % number, "partition": 0}])
    log.append("orders", [{"value": b"7", "partition": 1}])
    missing = log.plan("orders", partitions=[0])[1].slice.object
    (tmp_path / "log" / missing).unlink()
    consumer = reader(log, "orders")
    assert sorted(seen(consumer.poll(timeout_ms=5000))) == [0, 7]
    for _ in range(2):
        with pytest.raises(ObjectNotFound, match="orders"):
            consumer.poll(timeout_ms=50)
    log.append("orders", [{"value": b"8", "partition": 1}])
    assert seen(consumer.poll(timeout_ms=5000)) == [8]
    consumer.seek(P0, 2)
    with pytest.raises(ObjectNotFound):
        consumer.poll(timeout_ms=50)
    assert seen(consumer.poll(timeout_ms=5000)) == [2]


# Promise: clients.md#consumer
def test_what_a_body_that_raised_was_given_is_not_committed(tmp_path: Path) -> None:
    """The next consumer of the group reads it again; a body that ends commits what it was given."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"value": b"1"}, {"value": b"2"}])
    settings = {"group_id": "g", "enable_auto_commit": True, "auto_commit_interval_ms": 3_600_000}
    failing = reader(log, "orders", **settings)
    with pytest.raises(ZeroDivisionError), failing:
        failing.poll(timeout_ms=5000).popitem()[1][0].offset / 0
    assert log.admin.list_consumer_group_offsets("g") == {}
    with reader(log, "orders", **settings) as consumer:
        assert seen(consumer.poll(timeout_ms=5000)) == [1, 2]
    assert [at.offset for at in log.admin.list_consumer_group_offsets("g").values()] == [2]
