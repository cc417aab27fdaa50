"""How often an object store is waited for: bounds that hold whatever its latency.  docs/measurements.md has the same
figures.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest

import spark_log
from simulation.harness.slow_store import SlowStore, TimedRequest, counts, round_trips
from spark_log.client.reader.request_ahead import GROUP_BYTES_MAX, WHOLE_BYTES_MAX
from spark_log.client.topic_creation import create_topic
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.journal.storage.opening import HOLE_PROBES
from spark_log.journal.store_operations import Get, Steps, Stores, beside, run
from spark_log.maintenance.maintain import checkpoint
from spark_log.metadata.decision import Decision
from spark_log.metadata.records import FenceRecord, Piece
from spark_log.recovery.verify import verify
from spark_log.store.base import ObjectStore
from spark_log.store.memory import MemoryStore

TRIES = 4
LARGE_ROWS = 60_000


@pytest.fixture
def store() -> SlowStore:
    """Without delay; `trips` sets one for what is counted."""
    return SlowStore(MemoryStore(uuid.uuid4().hex), get_ms=0, put_ms=0, jitter=False)


def log_on(store: ObjectStore) -> spark_log.Log:
    return spark_log.Log(Journal.open(store, create=True))


def trips(store: SlowStore, do: Callable[[], object], latency_ms: float = 20) -> tuple[int, list[TimedRequest]]:
    """The fewest round trips of some tries, with their requests: on a busy machine, parallel requests start late."""
    found = []
    store._get_ms = store._put_ms = latency_ms
    for _ in range(TRIES):
        with store.watched() as requests:
            do()
        found.append((round_trips(requests), requests))
    store._get_ms = store._put_ms = 0
    return min(found, key=lambda one: one[0])


def fill(log: spark_log.Log, commits: int) -> None:
    log.create_topic(spark_log.NewTopic("t", 1))
    for number in range(commits):
        log.append("t", [{"value": b"%d" % number}])


def random_values(count: int) -> pa.Array:
    """32 bytes each, which do not compress."""
    data = pa.py_buffer(os.urandom(32 * count))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), count, [None, data]).cast(pa.binary())


def large(log: spark_log.Log) -> pa.Table:
    """Values that do not compress, in a run that is not read in one go."""
    rows = pa.table({"value": random_values(LARGE_ROWS)})
    assert rows.nbytes > WHOLE_BYTES_MAX
    log.append("t", rows)
    return rows


# Promise: measurements.md#object-stores
def test_a_small_commit_takes_three(store: SlowStore) -> None:
    """The object, its record, and the record read back beside the one before it and the listing of checkpoints."""
    log = log_on(store)
    fill(log, 3)
    found, requests = trips(store, lambda: log.append("t", [{"value": b"x"}]))
    assert found == 3
    assert counts(requests) == {"put": 1, "put_new": 1, "get": 2, "list": 1}


# Promise: measurements.md#object-stores
def test_a_commit_of_many_partitions_takes_three(store: SlowStore) -> None:
    """A task writes one object for all of them, and one record names it."""
    log = log_on(store)
    log.create_topic(spark_log.NewTopic("wide", 100))
    rows = [{"value": b"x", "partition": number} for number in range(100)]
    found, requests = trips(store, lambda: log.append("wide", rows))
    assert found == 3 and len(requests) == 5


def test_a_producer_s_commit_takes_three(store: SlowStore) -> None:
    """However many records were sent meanwhile."""
    log = log_on(store)
    fill(log, 1)
    with log.producer(linger_ms=1) as producer:

        def send() -> None:
            sent = [producer.send("t", b"x") for _ in range(10)]
            assert sent[-1].result(60).offset

        found, _ = trips(store, send)
    assert found == 3


# Promise: measurements.md#object-stores
def test_a_change_by_a_process_that_is_behind_takes_one_more(store: SlowStore) -> None:
    """A look, which is not confirmed alone, the record, and the read-back, which confirms both."""
    near, log = log_on(store.inner), log_on(store)
    fill(near, 1)
    names = iter(map(str, range(2 * TRIES)))

    def change() -> None:
        near.append("t", [{"value": b"x"}])
        near.append("t", [{"value": b"y"}])
        assert log.journal.refresh_if_there(peek=True)
        assert log.journal.newest == near.journal.state != log.journal.state
        create_topic(log.journal, spark_log.NewTopic(next(names), 1))
        near.journal.refresh()

    log.journal.refresh()
    found, _ = trips(store, change)
    assert found == 3
    assert log.journal.state == near.journal.state


def test_records_that_move_the_fence_are_confirmed_before_a_change(store: SlowStore) -> None:
    """One of those that were read could be a leftover, and the change would be decided on a wrong state."""
    near, log = log_on(store.inner), log_on(store)
    fill(near, 1)
    log.journal.refresh()
    near.append("t", [{"value": b"x"}])
    near.journal.propose(lambda state, now: Decision((FenceRecord(upto=1),), None))
    assert log.journal.refresh_if_there(peek=True)
    assert log.journal.state == log.journal.newest == near.journal.state


# Promise: measurements.md#object-stores
def test_maintenance_adds_less_than_one_request_to_a_commit(store: SlowStore) -> None:
    """Over many: it comes once in a hundred commits."""
    log = log_on(store)
    fill(log, 2)
    with store.watched() as requests:
        for number in range(200):
            log.append("t", [{"value": b"%d" % number}])
    assert 5 <= len(requests) / 200 < 6


def cold(store: SlowStore, start: int, end: int) -> tuple[int, list[TimedRequest]]:
    """Round trips of a read of a range by logs that were just opened."""
    logs = [log_on(store) for _ in range(TRIES)]
    return trips(store, lambda: _read(logs.pop(), start, end))


def _read(log: spark_log.Log, start: int, end: int) -> None:
    assert log.read("t", partition=0, start=start, end=end).num_rows == end - start


# Promise: measurements.md#object-stores
def test_a_cold_read_of_a_small_range_takes_two(store: SlowStore) -> None:
    """Whether the log is the same and has more, and the bytes: the state knows where they are."""
    fill(log_on(store), 10)
    found, requests = cold(store, 4, 5)
    assert found == 2 and counts(requests) == {"get": 3, "list": 1}


def test_a_cold_read_over_many_small_commits_asks_for_them_together(store: SlowStore) -> None:
    """Eight at a time."""
    fill(log_on(store.inner), 10)
    found, requests = cold(store, 1, 9)
    assert found <= 3 and counts(requests) == {"get": 10, "list": 1}


# Promise: measurements.md#object-stores
def test_a_cold_read_of_a_part_of_a_large_object_takes_three(store: SlowStore) -> None:
    """The object's index comes between."""
    log = log_on(store)
    fill(log, 1)
    large(log)
    found, requests = cold(store, 30_000, 30_010)
    assert found == 3 and counts(requests) == {"get": 4, "list": 1}


def slices_of_one_object(log: spark_log.Log) -> None:
    """16 partitions, as a task writes them."""
    log.create_topic(spark_log.NewTopic("t", 16))
    numbers = pa.array([number % 16 for number in range(16 * LARGE_ROWS)], pa.int32())
    log.append("t", pa.table({"value": random_values(len(numbers)), "partition": numbers}))
    assert all(read.slice.length > WHOLE_BYTES_MAX for read in log.plan("t"))


def test_larger_slices_are_fetched_four_at_a_time(store: SlowStore) -> None:
    """A range each, without the index of their object, since all of each one is read."""
    log = log_on(store)
    slices_of_one_object(log)
    found, requests = trips(store, lambda: log.read("t", columns=["offset"]), latency_ms=100)
    assert found <= 1 + 16 / 4 + 1 and counts(requests)["get"] == 2 + 16


def test_parts_of_larger_slices_of_one_object_share_its_index(store: SlowStore) -> None:
    """It is fetched once, in the background."""
    log = log_on(store)
    slices_of_one_object(log)
    _, requests = trips(store, lambda: log.read("t", start=LARGE_ROWS - 10, columns=["offset"]))
    assert counts(requests)["get"] == 2 + 1 + 16


def test_a_large_slice_is_fetched_four_ranges_at_a_time(store: SlowStore) -> None:
    """Its index, and two rounds for 42 MB: seven ranges of up to 8 MiB."""
    log = log_on(store)
    fill(log, 1)
    rows = pa.table({"value": [uuid.uuid4().bytes * 128 for _ in range(20_000)]})
    log.append("t", rows, compression="none")
    (read,) = log.plan("t", start=1)
    assert 4 * GROUP_BYTES_MAX["remote"] < read.slice.length < 7 * GROUP_BYTES_MAX["remote"]
    found, requests = trips(store, lambda: log.read("t", start=1), latency_ms=100)
    assert found <= 4 and counts(requests)["get"] == 2 + 1 + 7


def test_a_cold_read_through_a_sealed_index_takes_three(store: SlowStore) -> None:
    """The index of slices is read while the log is asked for more."""
    log = log_on(store.inner)
    fill(log, 1)
    large(log)
    for number in range(LIMITS.inline_slices + 200):
        log.append("t", [{"value": b"%d" % number}])
    checkpoint(log)
    log.append("t", [{"value": b"after the checkpoint"}])
    (_, part), *_ = log.journal.state.topic_partitions(log.journal.state.names["t"])
    assert isinstance(part.entries[0], Piece)
    found, requests = cold(store, 30_000, 30_010)
    assert found == 3 and counts(requests) == {"get": 5, "list": 1}


# Promise: measurements.md#object-stores
def test_opening_a_log_takes_three(store: SlowStore) -> None:
    """Format and checkpoints; the newest checkpoint with the records after it; the checkpoints again, with probes."""
    fill(log_on(store.inner), 130)
    found, requests = trips(store, lambda: log_on(store), latency_ms=200)
    assert found == 3
    assert counts(requests)["list"] == 2 and counts(requests)["get"] <= 34 + len(HOLE_PROBES)


def test_who_is_far_behind_does_not_read_what_a_checkpoint_has(store: SlowStore) -> None:
    """A handle that slept through 1,000 commits reads 63 records, sees a checkpoint beyond them, and opens the log
    again.  How far the newest checkpoint of a writer is behind depends on the machine, so this one has a known place.
    """
    log = log_on(store)
    fill(log, 3)
    asleep = [log_on(store) for _ in range(TRIES)]
    for number in range(1000):
        log.append("t", [{"value": b"%d" % number}])
    checkpoint(log)
    for number in range(10):
        log.append("t", [{"value": b"%d" % number}])
    found, requests = trips(store, lambda: asleep.pop().journal.refresh())
    assert found <= 12
    assert counts(requests)["get"] <= 63 + 2 * 100


# Promise: measurements.md#object-stores
def test_a_tailing_reader_that_finds_nothing_takes_one(store: SlowStore) -> None:
    """A get of the version that is next, and nothing else."""
    log = log_on(store)
    fill(log, 3)
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        assert sum(map(len, consumer.poll(60_000).values())) == 3
        found, requests = trips(store, lambda: consumer.poll(0))
    assert found == 1 and counts(requests) == {"get": 1}


# Promise: measurements.md#object-stores
def test_a_tailing_reader_that_finds_a_commit_takes_three(store: SlowStore) -> None:
    """The next version; the one after it, absent, beside the checkpoints; the records."""
    log, writer = log_on(store), log_on(SlowStore(store.inner, get_ms=0, put_ms=0))
    fill(writer, 3)
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        consumer.poll(60_000)

        def find() -> None:
            writer.append("t", [{"value": b"x"}])
            assert sum(map(len, consumer.poll(60_000).values())) == 1

        found, requests = trips(store, find)
    assert found == 3 and counts(requests)["list"] == 1


def test_steps_beside_each_other_share_their_rounds(store: SlowStore) -> None:
    """Each gets its own answers; the longer ones continue alone."""

    clock = log_on(store).journal.context.clock
    store.put("a", [b"A"])
    store.put("b", [b"B"])

    found, _ = trips(store, lambda: run(beside(_gets("a"), _gets("b", "a", "b")), Stores.of(store), clock))
    assert found == 4
    both = run(beside(_gets("a"), _gets("b", "a")), Stores.of(store), clock)
    assert both == ([b"A", b"A", b"B"], [b"B", b"A", b"A", b"B"])


def _gets(*keys: str) -> Steps[list[bytes]]:
    """One by one, and at last two at a time."""
    found = []
    for key in keys:
        found.append((yield Get(key)))
    return found + (yield [Get("a"), Get("b")])


def test_verify_asks_for_the_sizes_of_objects_together(store: SlowStore) -> None:
    """Not one object after the other: 40 objects take a few round trips, besides about 18 of the metadata log."""
    log = log_on(store)
    fill(log, 40)
    found, requests = trips(store, lambda: verify(log))
    assert counts(requests)["size"] == 40
    assert found < 40, "one after the other they would be 40 besides the others; a busy machine runs some of them later"
