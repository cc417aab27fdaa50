"""A client at the end of a partition reads from memory, and gets the records that the storage has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spark_log
from simulation.harness.broker_roots import register_broker
from simulation.harness.stores import Wrapper
from spark_log import NewTopic
from spark_log.gateway.error_codes import NONE
from spark_log.gateway.produced_batches import parse_batch, records_of, uncompressed
from spark_log.gateway.rounds import RoundWriter, Waiting
from spark_log.gateway.stored_batches import StoredBatches
from spark_log.journal.journal import Journal
from spark_log.store.object_names import DATA
from spark_log.store.open import open_store
from tests.gateway.running import DEADLINE_S, Running, consumed
from tests.gateway.test_produced_batches import RECORDS, Record, made


@pytest.fixture
def any_times(log: spark_log.Log) -> spark_log.Log:
    """The topic `orders` takes any times."""
    log.admin.incremental_alter_configs({"orders": {"message.timestamp.after.max.ms": str((1 << 63) - 1)}})
    return log


def rows(log: spark_log.Log, batches: StoredBatches, start: int = 0) -> list[tuple[Any, ...]]:
    """Offset, time, key, value and headers of the records of partition 0 of `orders`."""
    state, found = log.journal.refresh(), list[tuple[Any, ...]]()
    key = state.names["orders"], 0
    while start < state.partitions[key].readable_end:
        for data in batches.read(state, key, start, 1 << 20):
            parsed = parse_batch(data)
            records = records_of([parsed], [uncompressed(parsed)], 0).records
            read = records.set_column(2, "timestamp", records["timestamp"].view(pa.int64())).to_pylist()
            found += [
                (start + at, row["timestamp"], row["key"], row["value"], row.get("headers"))
                for at, row in enumerate(read)
            ]
            start += parsed.records
    return found


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(RECORDS, st.sampled_from([0, 1])), min_size=1, max_size=3))
def test_memory_and_storage_have_the_same_records(
    any_times: spark_log.Log, sent: list[tuple[list[Record], int]]
) -> None:
    """Of batches of all kinds: compressed, with nulls, headers and any times."""
    log = any_times
    kept, state, loop = StoredBatches(log.journal), log.journal.refresh(), asyncio.new_event_loop()
    start = state.partitions[state.names["orders"], 0].readable_end
    batches = [parse_batch(made(*one)) for one in sent]
    RoundWriter(log.journal, kept).write(
        [Waiting("orders", state.names["orders"], 0, one, -1, 5000, loop.create_future()) for one in batches]
    )
    loop.close()
    assert len(kept) == len(sent)
    found = rows(log, kept, start)
    assert len(kept) == len(sent), "nothing was read from the storage"
    assert found == rows(log, StoredBatches(log.journal), start)


def test_times_of_the_log_and_of_the_gateway_are_read_from_the_storage(log: spark_log.Log) -> None:
    """The batches of producers do not have them."""
    log.create_topic(NewTopic("appended", 1, {"message.timestamp.type": "LogAppendTime"}))
    kept, state, loop = StoredBatches(log.journal), log.journal.refresh(), asyncio.new_event_loop()
    for topic, data in (("appended", made([(1000, None, b"x", [])])), ("orders", made([(-1, None, b"x", [])]))):
        one = Waiting(topic, state.names[topic], 0, parse_batch(data), -1, 5000, loop.create_future())
        RoundWriter(log.journal, kept).write([one])
        assert one.outcome is not None and one.outcome.code == NONE
    loop.close()
    assert len(kept) == 0


def test_a_time_type_that_was_just_changed_counts(log: spark_log.Log) -> None:
    """By another process: the gateway has not noticed when it uploads, and the log gives the records its time."""
    kept, state, loop = StoredBatches(log.journal), log.journal.refresh(), asyncio.new_event_loop()
    with spark_log.connect(log.url) as other:
        other.admin.incremental_alter_configs({"orders": {"message.timestamp.type": "LogAppendTime"}})
    batch = parse_batch(made([(1000, None, b"x", [])]))
    one = Waiting("orders", state.names["orders"], 0, batch, -1, 5000, loop.create_future())
    RoundWriter(log.journal, kept).write([one])
    loop.close()
    (record,) = log.read("orders")["timestamp"].cast("int64").to_pylist()
    assert one.outcome is not None and one.outcome.time_ms == record // 1000 > 1000
    assert len(kept) == 0


def test_records_that_may_be_given_up_are_not_kept(log: spark_log.Log, tmp_path: Path) -> None:
    """Records of acks=1 that only one replica has are skipped by readers if it is lost."""
    for broker in (1, 2):
        register_broker(log, broker, str(tmp_path / f"broker{broker}"))
    log.create_topic(NewTopic("copied", 1, replica_assignment={0: (1, 2)}))
    kept, state, loop = StoredBatches(log.journal), log.journal.refresh(), asyncio.new_event_loop()
    (tmp_path / "broker2").rename(tmp_path / "away")
    batch = parse_batch(made([(1000, None, b"x", [])]))
    one = Waiting("copied", state.names["copied"], 0, batch, 1, 5000, loop.create_future())
    RoundWriter(log.journal, kept).write([one])
    loop.close()
    assert one.outcome is not None and one.outcome.code == NONE and log.journal.refresh().pending
    assert len(kept) == 0


class CountingStore(Wrapper):
    """Counts reads of records."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.reads = 0

    def _pass(self, key: str, *, writes: bool = False) -> None:
        self.reads += key.startswith(DATA) and not writes


# Promise: gateway.md#limits
def test_a_client_at_the_end_causes_no_read_of_the_storage(tmp_path: Path) -> None:
    """librdkafka reads what another one has just written."""
    url = str(tmp_path / "log")
    with spark_log.connect(url, durability="os") as log:
        log.create_topic(NewTopic("orders", 2))
    store = CountingStore(open_store(url, None, "os"))
    log = spark_log.Log(Journal.open(store, create=False))
    gateway = Running(log)
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "linger.ms": 1, "log_level": 0})
    for n in range(500):
        producer.produce("orders", b"%d" % n, partition=n % 2)
        if n % 100 == 99:
            assert producer.flush(DEADLINE_S) == 0
    found = consumed(gateway.address, "orders", {0: 0, 1: 0}, {0: 250, 1: 250})
    assert sorted(int(one.value()) for one in found) == list(range(500))
    assert store.reads == 0
    gateway.close()
    log.close()
