"""Settings of consumers: which are honoured, and what is said of the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_log.client.client_settings import CONSUMER
from spark_log.client.consumer.member_settings import member_settings
from spark_log.errors import InvalidRequest
from tests.client.logs import new_log
from tests.client.test_consumer import reader


# Promise: clients.md#consumer
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"group_protocol": "consumer"}, "classic group protocol"),
        ({"check_crcs": False}, "each batch is checked"),
        ({"allow_auto_create_topics": True}, "creates no topics"),
        ({"exclude_internal_topics": False}, "log.read and Spark read __consumer_offsets"),
        ({"retry_backoff_ms": 5}, "the storage layer decides"),
        ({"receive_buffer_bytes": 1}, "keeps no connections to brokers"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(tmp_path: Path, settings: dict[str, object], reason: str) -> None:
    """With the value that says what pylog does, and why."""
    (name,) = settings
    with pytest.raises(InvalidRequest, match=f"{name}: .* or leave it out: .*{reason}"):
        new_log(tmp_path, orders=1).consumer("orders", **settings)


# Promise: clients.md#consumer
def test_a_consumer_waits_for_as_many_bytes_as_it_wants(tmp_path: Path) -> None:
    """`fetch_min_bytes`: records come when there are so many, or `fetch_max_wait_ms` after the last ones."""
    log = new_log(tmp_path, orders=1)
    patient = reader(log, "orders", fetch_min_bytes=100_000, fetch_max_wait_ms=3_600_000)
    log.append("orders", [{"value": b"first"}])
    assert patient.poll(timeout_ms=50) == {}
    log.append("orders", [{"value": os.urandom(200_000)}])
    assert [len(some) for some in patient.poll(timeout_ms=50, max_records=1).values()] == [1]
    assert [len(some) for some in patient.poll(timeout_ms=50).values()] == [1]
    log.append("orders", [{"value": b"last"}])
    assert patient.poll(timeout_ms=50) == {}
    hasty = reader(log, "orders", fetch_min_bytes=10_000_000, fetch_max_wait_ms=20)
    assert [len(some) for some in hasty.poll(timeout_ms=60_000).values()] == [3]


def test_a_partition_gives_so_many_bytes_at_a_time(tmp_path: Path) -> None:
    """`max_partition_fetch_bytes`, and at least one batch; others have their turn in the same poll."""
    log = new_log(tmp_path, orders=2)
    for partition in (0, 1):
        for _ in range(3):
            log.append("orders", [{"value": bytes(1000), "partition": partition}])
    with reader(log, "orders", max_partition_fetch_bytes=1500) as consumer:
        assert [consumer.poll_arrow(timeout_ms=5000)["partition"].to_pylist() for _ in range(2)] == [
            [0, 0, 1, 1],
            [0, 1],
        ]


# Promise: clients.md#python-clients
def test_settings_of_kafkas_clients_are_taken_over(tmp_path: Path) -> None:
    """Those of the coordinator change nothing; an unknown one is an error with the nearest name."""
    log = new_log(tmp_path, orders=1)
    reader(
        log,
        "orders",
        partition_assignment_strategy=["cooperative-sticky"],
        session_timeout_ms=10_000,
        heartbeat_interval_ms=1000,
        max_poll_interval_ms=60_000,
        isolation_level="read_committed",
    ).close()
    with pytest.raises(InvalidRequest, match="did you mean group_id"):
        log.consumer("orders", groupid="x")
    with pytest.raises(
        InvalidRequest, match="unknown consumer setting 'enable_idempotence'; it is a producer's setting"
    ):
        log.consumer("orders", enable_idempotence=True)
    with pytest.raises(InvalidRequest, match="'earliest'"):
        log.consumer("orders", auto_offset_reset="first")
    closed = reader(log, "orders")
    closed.close()
    with pytest.raises(InvalidRequest, match="closed"):
        closed.poll()


# Promise: service.md#groups
def test_heartbeats_are_a_third_of_the_session_unless_set() -> None:
    """The coordinator answers a waiting heartbeat when something has changed, so frequent ones only cost it time."""

    def heartbeat_ms(**given: int) -> int:
        return member_settings({**{name: known.default for name, known in CONSUMER.items()}, **given}).heartbeat_ms

    assert (heartbeat_ms(), heartbeat_ms(session_timeout_ms=9_000)) == (15_000, 3_000)
    assert heartbeat_ms(heartbeat_interval_ms=500) == 500
    with pytest.raises(InvalidRequest, match="heartbeat_interval_ms: 9000 is not less"):
        heartbeat_ms(session_timeout_ms=9_000, heartbeat_interval_ms=9_000)


def test_an_object_that_only_deserializes_is_a_deserializer(tmp_path: Path) -> None:
    """It need not have a method `serialize`."""

    class Text:
        def deserialize(self, data: bytes) -> str:
            return data.decode()

    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"value": "x"}])
    consumer = log.consumer("orders", auto_offset_reset="earliest", value_deserializer=Text())
    assert next(consumer).value == "x"
