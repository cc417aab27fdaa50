"""Slices near each other in one object share a request, on storage where requests are slow."""

from __future__ import annotations

import os
import signal
import threading
import uuid

import pyarrow as pa
import pytest

import spark_log
from simulation.harness.slow_store import SlowStore, TimedRequest
from simulation.harness.stores import Wrapper
from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.request_ahead import (
    BLOCK_BYTES_MAX,
    GAP_BYTES_MAX,
    GROUP_BYTES_MAX,
    OBJECT_COST,
    REQUESTS_AHEAD,
    WHOLE_BYTES_MAX,
    ahead_of,
    asked_ahead,
    begin,
    fetch_pool,
)
from spark_log.errors import CorruptObject
from spark_log.journal.journal import Journal
from spark_log.journal.sealing import seal
from spark_log.metadata.records import Piece
from spark_log.model import Slice
from spark_log.store.memory import MemoryStore
from tests.client.logs import in_child
from tests.maintenance.logs import maintenance

PARTITIONS = 50


@pytest.fixture
def store() -> SlowStore:
    """Without delay: requests are counted."""
    return SlowStore(MemoryStore(uuid.uuid4().hex), get_ms=0, put_ms=0, jitter=False)


@pytest.fixture
def log(store: SlowStore) -> spark_log.Log:
    found = spark_log.Log(Journal.open(store, create=True))
    found.create_topic(spark_log.NewTopic("t", PARTITIONS))
    return found


def append(log: spark_log.Log, size: int = 10) -> None:
    """One object with a slice of each partition."""
    log.append("t", [{"value": os.urandom(size), "partition": n} for n in range(PARTITIONS)])


def data_gets(requests: list[TimedRequest]) -> int:
    return sum(request.kind == "get" and request.key.startswith("data/") for request in requests)


# Promise: measurements.md#object-stores
def test_a_poll_of_many_partitions_in_one_object_is_one_get(store: SlowStore, log: spark_log.Log) -> None:
    """Each later poll as well."""
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        for _ in range(3):
            append(log)
            with store.watched() as requests:
                found = consumer.poll(10_000)
            assert sum(map(len, found.values())) == PARTITIONS == len(found)
            assert data_gets(requests) == 1


def test_polls_of_few_records_share_the_request(store: SlowStore, log: spark_log.Log) -> None:
    """A poll takes the records that an earlier one has requested and not returned."""
    append(log)
    with log.consumer("t", auto_offset_reset="earliest") as consumer, store.watched() as requests:
        found = [consumer.poll(10_000, max_records=1) for _ in range(PARTITIONS)]
    assert {tp.partition for records in found for tp in records} == set(range(PARTITIONS))
    assert data_gets(requests) == 1


def test_the_ends_of_large_slices_are_not_all_requested_together(store: SlowStore, log: spark_log.Log) -> None:
    """A slice is read whole: 50 ends of some KB would be 25 MB in memory."""
    for number in range(PARTITIONS):
        log.append("t", [{"value": os.urandom(5_000), "partition": number} for _ in range(100)])
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([spark_log.TopicPartition("t", number) for number in range(PARTITIONS)])
        for tp in consumer.assignment():
            consumer.seek(tp, 99)
        with store.watched() as requests:
            assert len(consumer.poll(10_000, max_records=1)) == 1
        assert data_gets(requests) <= BLOCK_BYTES_MAX // 500_000
        seen: set[int] = set()
        while len(seen) < PARTITIONS - 1:
            seen |= {tp.partition for tp in consumer.poll(10_000)}


def test_a_poll_over_several_objects_is_a_get_of_each(store: SlowStore, log: spark_log.Log) -> None:
    """The records of each partition are in order."""
    for _ in range(3):
        append(log)
    with log.consumer("t", auto_offset_reset="earliest") as consumer, store.watched() as requests:
        found = consumer.poll(10_000)
    assert all([record.offset for record in records] == [0, 1, 2] for records in found.values())
    assert len(found) == PARTITIONS and data_gets(requests) == 3


# Promise: measurements.md#object-stores
def test_a_read_of_a_topic_is_a_get_of_each_object(store: SlowStore, log: spark_log.Log) -> None:
    """Partition by partition, though each object has slices of all of them."""
    for _ in range(3):
        append(log)
    with store.watched() as requests:
        table = log.read("t")
    assert table.num_rows == 3 * PARTITIONS and data_gets(requests) == 3
    assert table["partition"].to_pylist() == [n for n in range(PARTITIONS) for _ in range(3)]


def test_what_is_requested_together_is_bounded(store: SlowStore, log: spark_log.Log) -> None:
    """A block of 4 MiB at a time: 50 slices of 200 KB take three requests, not one."""
    append(log, 200_000)
    with store.watched() as requests:
        assert log.read("t").num_rows == PARTITIONS
    assert data_gets(requests) == -(-PARTITIONS * 200_000 // BLOCK_BYTES_MAX) == 3


def test_slices_that_are_far_apart_are_requested_alone(store: SlowStore, log: spark_log.Log) -> None:
    """The bytes between them would take longer than another request."""
    append(log, GAP_BYTES_MAX)
    consumer = log.consumer(auto_offset_reset="earliest")
    consumer.assign([spark_log.TopicPartition("t", number) for number in (0, 1, 20)])
    with consumer, store.watched() as requests:
        assert len(consumer.poll(10_000)) == 3
    assert data_gets(requests) == 2


def test_a_partition_that_cannot_be_planned_does_not_hide_the_others(store: SlowStore, log: spark_log.Log) -> None:
    """Records trimmed since the consumer read the log: the other partitions come immediately."""
    append(log)
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        consumer.poll(10_000)
        append(log)
        log.admin.delete_records({spark_log.TopicPartition("t", 7): 2})
        seen: set[int] = set()
        for _ in range(3):
            seen |= {tp.partition for tp in consumer.poll(1000)}
    assert seen >= set(range(PARTITIONS)) - {7}


def test_a_damaged_slice_index_does_not_hide_the_other_partitions(store: SlowStore, log: spark_log.Log) -> None:
    """One poll returns their records, the next one the error."""
    for _ in range(3):
        append(log)
    maintenance(log.journal, seal)
    state = log.journal.refresh()
    (piece,) = state.partitions[state.names["t"], 7].entries
    assert isinstance(piece, Piece)
    data = bytearray(store.get(piece.object))
    data[piece.position + piece.length // 2] ^= 1
    store.put(piece.object, [bytes(data)])
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        found = consumer.poll(10_000)
        assert {tp.partition for tp in found} == set(range(PARTITIONS)) - {7}
        with pytest.raises(CorruptObject):
            consumer.poll(10_000)


def test_a_damaged_batch_of_a_slice_that_was_fetched_whole_leaves_the_others(
    store: SlowStore, log: spark_log.Log
) -> None:
    """The records before it are read, and the error names those that cannot be."""
    for _ in range(2):
        log.append("t", pa.table({"value": [os.urandom(100) for _ in range(30_000)], "partition": [0] * 30_000}))
    read, _ = log.plan("t")
    assert WHOLE_BYTES_MAX < read.slice.length <= GROUP_BYTES_MAX["remote"] and read.slice.batches == 3
    data = bytearray(store.get(read.slice.object))
    data[read.slice.position + read.slice.length // 2] ^= 1
    store.put(read.slice.object, [bytes(data)])
    parts = log.scan("t", columns=["offset"])
    assert next(parts).num_rows == 10_000
    with pytest.raises(CorruptObject) as raised:
        list(parts)
    assert (raised.value.start, raised.value.end) == (10_000, 20_000)


def reads_of(objects: int, slices: int, length: int = 200) -> list[SliceRead]:
    """Reads of small slices: so many of each object."""
    return [
        SliceRead("t", "id", 0, at, at + 1, Slice(at, at + 1, f"data/{at // slices}", at, length, 0, 1, 0, 0), 0, 0)
        for at in range(objects * slices)
    ]


def test_slices_of_some_bytes_in_as_many_objects_are_not_all_requested_together(store: SlowStore) -> None:
    """Each of them is a request; in one object they share it."""
    with store.watched() as requests:
        assert len(begin(store, reads_of(5000, 1))) == BLOCK_BYTES_MAX // OBJECT_COST
        assert len(begin(store, reads_of(1, 5000))) == 5000
        fetch_pool(os.getpid(), store.url).submit(len, ()).result()
    assert len(requests) <= BLOCK_BYTES_MAX // OBJECT_COST + 1


class Gate(Wrapper):
    """Holds back the answers to all reads of records but the first."""

    def __init__(self, inner: SlowStore) -> None:
        super().__init__(inner)
        self.opened = threading.Event()
        self.held = threading.Semaphore(0)
        self.free = 1

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key.startswith("data/") and not self.opened.is_set():
            self.free -= 1
            if self.free < 0:
                self.held.release()
                assert self.opened.wait(60)
        return super().get(key, start, end)


def test_a_reader_that_ends_early_takes_its_requests_back(store: SlowStore) -> None:
    """Those that wait for one of the process's threads.  Other readers, and the end of the process, would wait for all
    of them.
    """
    gate, count = Gate(store), 3 * REQUESTS_AHEAD
    log = spark_log.Log(Journal.open(gate, create=True))
    log.create_topic(spark_log.NewTopic("t", 1))
    for _ in range(count):
        log.append("t", [{"value": b"x"}])
    with store.watched() as requests:
        parts = log.scan("t", columns=["offset"])
        next(parts)
        del parts
        gate.opened.set()
        fetch_pool(os.getpid(), gate.url).submit(len, ()).result()
    assert data_gets(requests) <= 1 + REQUESTS_AHEAD


def test_a_reader_that_ends_early_takes_back_what_was_requested_before_its_plan(store: SlowStore) -> None:
    """As a task of a query with LIMIT does.  The bytes are not kept behind the reader, either."""
    gate, reads = Gate(store), reads_of(3 * REQUESTS_AHEAD, 1)
    gate.free = 0
    for read in reads:
        store.put(read.slice.object, [b"x"])
    with store.watched() as requests:
        begun = begin(gate, reads)
        asked = asked_ahead(gate, reads, begun=begun)
        next(asked)
        assert not begun
        asked.close()
        gate.opened.set()
        fetch_pool(os.getpid(), gate.url).submit(len, ()).result()
    assert data_gets(requests) <= REQUESTS_AHEAD


def test_a_forked_child_makes_the_requests_of_its_parent_again(store: SlowStore) -> None:
    """It does not have the threads of its parent, and would wait for their answers for ever."""
    gate = Gate(store)
    log = spark_log.Log(Journal.open(gate, create=True))
    log.create_topic(spark_log.NewTopic("t", 1))
    for _ in range(2 * REQUESTS_AHEAD):
        log.append("t", [{"value": b"x"}])
    parts = log.scan("t", columns=["offset"])
    next(parts)
    assert all(gate.held.acquire(timeout=60) for _ in range(REQUESTS_AHEAD))

    def child() -> None:
        signal.alarm(60)
        gate.opened = threading.Event()
        gate.opened.set()
        assert sum(part.num_rows for part in parts) == 2 * REQUESTS_AHEAD - 1

    assert in_child(child) == 0
    gate.opened.set()


def test_a_store_that_hangs_does_not_keep_others_from_being_read(log: spark_log.Log, store: SlowStore) -> None:
    """Each has its own threads."""
    gate = Gate(SlowStore(MemoryStore(uuid.uuid4().hex), get_ms=0, put_ms=0, jitter=False))
    other = spark_log.Log(Journal.open(gate, create=True))
    other.create_topic(spark_log.NewTopic("t", 1))
    for _ in range(2 * REQUESTS_AHEAD):
        other.append("t", [{"value": b"x"}])
    for _ in range(2):
        append(log)
    reader = threading.Thread(target=lambda: other.read("t"), daemon=True)
    reader.start()
    assert all(gate.held.acquire(timeout=60) for _ in range(REQUESTS_AHEAD))
    assert log.read("t").num_rows == 2 * PARTITIONS
    assert reader.is_alive()
    gate.opened.set()
    reader.join(60)
    assert not reader.is_alive()


# Promise: clients.md#consumer
def test_partitions_of_a_consumer_share_what_one_reader_may_hold() -> None:
    """At least a request each: 1 MiB."""
    alone = ahead_of(1)
    held = alone.groups * alone.group_bytes
    for count in (1, 2, 5, 32, 100):
        each = ahead_of(count)
        assert each.groups * each.group_bytes * count <= max(held, count * WHOLE_BYTES_MAX)
        assert 2 * each.block_bytes <= max(each.groups * each.group_bytes, 2 * GAP_BYTES_MAX)


# Promise: clients.md#consumer
def test_a_consumer_of_many_partitions_does_not_request_all_of_their_slices(
    store: SlowStore, log: spark_log.Log
) -> None:
    """It reads a few records of each in turn, and holds the rest of what it has requested."""
    numbers = pa.array([number % 20 for number in range(20 * 3)], pa.int32())
    rows = pa.table({"value": [os.urandom(400_000) for _ in range(len(numbers))], "partition": numbers})
    for _ in range(4):
        log.append("t", rows, compression="none")
    with log.consumer("t", auto_offset_reset="earliest") as consumer, store.watched() as requests:
        seen = {tp.partition for _ in range(20) for tp in consumer.poll(10_000, max_records=1)}
    assert len(seen) == 20
    assert data_gets(requests) <= 20 * 2
