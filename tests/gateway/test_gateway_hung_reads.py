"""A storage that hangs stops the readers of what is there, and nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import ControlledStore
from spark_log import NewTopic
from spark_log.gateway.api import FETCH, LIST_OFFSETS
from spark_log.gateway.error_codes import KAFKA_STORAGE_ERROR, NONE, REQUEST_TIMED_OUT
from spark_log.gateway.messages import (
    FetchedFrom,
    FetchedPartition,
    FetchedTopic,
    FetchRecordsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_log.gateway.storage_reads import HUNG_S, LEAST_S
from spark_log.journal.journal import Journal
from spark_log.store.open import open_store
from tests.gateway.running import Running, consumed

HUNG = "hung"
"""The topic whose objects cannot be read."""


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """The objects of `hung` hang while it exists."""
    return tmp_path / "control"


@pytest.fixture
def gateway(tmp_path: Path, control: Path) -> Iterator[Running]:
    url = str(tmp_path / "log")
    with spark_log.connect(url, durability="os") as log:
        log.create_topic(NewTopic(HUNG, 4))
        log.create_topic(NewTopic("orders", 1))
        log.append("orders", [{"value": "seen"}])
        log.append(HUNG, [{"value": "late", "partition": n, "timestamp": 1000} for n in range(4)])
        state = log.journal.refresh()
        (key,) = {entry.object for entry in state.partitions[state.names[HUNG], 0].entries}
    store = ControlledStore(open_store(url, None, "os"), control)
    log = spark_log.Log(Journal.open(store, create=False))
    control.write_text(f"hang {key}")
    running = Running(log)
    yield running
    control.unlink(missing_ok=True)
    running.close()
    log.close()


def fetched(gateway: Running, *asked: tuple[str, int], max_wait_ms: int = 300) -> list[FetchedPartition]:
    topics = [
        FetchedTopic(topic=name, partitions=[FetchedFrom(partition=number, partition_max_bytes=1 << 20)])
        for name, number in asked
    ]
    request = FetchRecordsRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)
    return [topic.partitions[0] for topic in gateway.ask(FETCH, 12, request).responses]


# Promise: gateway.md#what-differs
def test_reads_that_hang_do_not_stop_others(gateway: Running, control: Path) -> None:
    """Each client that waits for them gets an error after its time, and the records when the storage answers again."""
    codes: list[int] = []
    asking = [
        threading.Thread(target=lambda n=n: codes.append(fetched(gateway, (HUNG, n % 4))[0].error_code))
        for n in range(12)
    ]
    began = time.monotonic()
    for one in asking:
        one.start()
    assert [one.value() for one in consumed(gateway.address, "orders", {0: 0}, {0: 1})] == [b"seen"]
    for one in asking:
        one.join()
    assert codes == [KAFKA_STORAGE_ERROR] * 12
    assert time.monotonic() - began < 20 * LEAST_S
    control.unlink()
    found = fetched(gateway, (HUNG, 0), max_wait_ms=60_000)[0]
    assert found.error_code == NONE and b"late" in found.records


# Promise: gateway.md#what-differs
def test_a_client_of_both_gets_what_does_not_hang(gateway: Running) -> None:
    """After the first time without a wait: the gateway knows what hangs."""
    places = [(HUNG, 0), ("orders", 0)]
    for _ in range(3):
        hung, other = fetched(gateway, *places)
        assert hung.error_code == KAFKA_STORAGE_ERROR and other.error_code == NONE and b"seen" in other.records
    time.sleep(HUNG_S)
    began = time.monotonic()
    hung, other = fetched(gateway, *places, max_wait_ms=60_000)
    assert hung.error_code == KAFKA_STORAGE_ERROR and b"seen" in other.records
    assert time.monotonic() - began < 30
    began = time.monotonic()
    (alone,) = fetched(gateway, places[0], max_wait_ms=500)
    assert alone.error_code == KAFKA_STORAGE_ERROR and time.monotonic() - began >= 0.5, "no client asks again and again"


# Promise: gateway.md#what-differs
def test_times_that_cannot_be_looked_up_are_tried_again(gateway: Running, control: Path) -> None:
    """Within the client's time; the ends of a partition need no look at the storage."""

    def listed(time_ms: int) -> tuple[int, int]:
        place = ListOffsetsPartition(partition_index=0, timestamp=time_ms)
        request = ListOffsetsRequest(
            replica_id=-1, timeout_ms=300, topics=[ListOffsetsTopic(name=HUNG, partitions=[place])]
        )
        (found,) = gateway.ask(LIST_OFFSETS, 10, request).topics[0].partitions
        return found.error_code, found.offset

    assert listed(500) == (REQUEST_TIMED_OUT, -1)
    assert listed(-1) == (NONE, 1)
    control.unlink()
    assert listed(500) == (NONE, 0)
