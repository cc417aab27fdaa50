"""A storage that does not answer: polls and records end in their time all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import CommitUnknown, CorruptObject, RequestTimedOut
from spark_log.journal.journal import Journal
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.testing.slow_store import SlowStore
from spark_log.testing.stores import ControlledStore
from tests.services import Services

BOUND_S = 20.0
"""Far below the minutes for which a storage may hang, and far above the second that a poll may be late."""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "control"
    yield path
    path.unlink(missing_ok=True)  # threads that hang in the storage end


@pytest.fixture
def log(tmp_path: Path, control: Path) -> spark_log.Log:
    """In a store as far away as a bucket."""
    bucket = SlowStore(LocalStore(str(tmp_path / "log"), "os"), get_ms=1, put_ms=1)
    log = spark_log.Log(Journal.open(ControlledStore(bucket, control), create=True))
    log.admin.create_topics([spark_log.NewTopic("t")])
    return log


def values(consumer: spark_log.Consumer, **limits: float) -> list[bytes]:
    return [record.value for records in consumer.poll(**limits).values() for record in records]


@pytest.mark.parametrize("timeout_ms", [0, 100])
def test_a_poll_ends_in_its_time_and_a_later_one_has_the_records(
    log: spark_log.Log, control: Path, timeout_ms: float
) -> None:
    """What was read before is given meanwhile; nothing is lost or given twice."""
    log.append("t", [{"value": b"%d" % number} for number in range(3)])
    consumer = log.consumer("t", auto_offset_reset="earliest")
    assert values(consumer, timeout_ms=BOUND_S * 1000, max_records=1) == [b"0"]
    log.append("t", [{"value": b"3"}])
    control.write_text("hang")
    began = time.monotonic()
    given = [values(consumer, timeout_ms=timeout_ms) for _ in range(3)]
    assert time.monotonic() - began < BOUND_S
    assert [value for some in given for value in some] == [b"1", b"2"]
    control.unlink()
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"3"]
    assert values(consumer, timeout_ms=0) == []


def test_an_error_of_a_read_that_went_on_is_raised_by_a_later_poll(log: spark_log.Log, control: Path) -> None:
    """With the name of the storage; the one after reads again."""
    log.append("t", [{"value": b"0"}])
    consumer = log.consumer("t", auto_offset_reset="earliest")
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"0"]
    log.append("t", [{"value": b"1"}])
    (read,) = log.plan("t", start=1)
    file = Path(log.url.removeprefix("file://")) / read.slice.object
    data = file.read_bytes()
    control.write_text("hang")
    assert values(consumer, timeout_ms=0) == []
    file.write_bytes(bytes(len(data)))
    control.unlink()
    with pytest.raises(CorruptObject, match=read.slice.object):
        consumer.poll(BOUND_S * 1000)
    file.write_bytes(data)
    assert values(consumer, timeout_ms=BOUND_S * 1000) == [b"1"]


@pytest.mark.parametrize("hangs", ["before the upload", "before the commit"])
def test_a_record_ends_near_its_delivery_timeout(tmp_path: Path, control: Path, hangs: str) -> None:
    """With an error that names the storage and says whether it may be in; it is in once at most."""
    bucket = SlowStore(LocalStore(str(tmp_path / "log"), "os"), get_ms=1, put_ms=1)
    held = HeldStore(bucket, control, "data/" if hangs == "before the upload" else "meta/log/")
    log = spark_log.Log(Journal.open(held, create=True))
    log.admin.create_topics([spark_log.NewTopic("t")])
    producer = log.producer(delivery_timeout_ms=1500, linger_ms=0)
    assert producer.send("t", b"0").result(60).offset == 0
    control.write_text("hang")
    began = time.monotonic()
    with pytest.raises(RequestTimedOut if hangs == "before the upload" else CommitUnknown, match="log did not answer"):
        producer.send("t", b"1").result(60)
    assert time.monotonic() - began < BOUND_S
    control.unlink()
    again = log.producer(linger_ms=0)
    assert again.send("t", b"2").result(60).offset > 0
    assert [value for value in log.read("t")["value"].to_pylist() if value != b"1"] == [b"0", b"2"]
    producer.close()
    again.close()


class HeldStore(ControlledStore):
    """Hangs at puts under a prefix only."""

    def __init__(self, inner: ObjectStore, control: Path, prefix: str) -> None:
        super().__init__(inner, control)
        self._prefix = prefix

    def _pass(self, key: str, *, writes: bool = False) -> None:
        if writes and key.startswith(self._prefix):
            super()._pass(key, writes=writes)


def test_a_coordinator_that_is_slow_does_not_keep_a_record_beyond_its_delivery_timeout(
    services: Services, tmp_path: Path, control: Path
) -> None:
    """Its process answers, its storage does not: what became of the record is not known, and it is in once in the end."""
    running = services.start(
        tmp_path / "led",
        ControlledStore(LocalStore(str(tmp_path / "led"), "os"), control),
        storage_timeout_ms=3_600_000,
    )
    with spark_log.connect(f"pylog://{running.coordinator.address}") as client:
        client.admin.create_topics([spark_log.NewTopic("t")])
        producer = client.producer(delivery_timeout_ms=1500, linger_ms=0)
        assert producer.send("t", b"0").result(60).offset == 0
        control.write_text("hang")
        began = time.monotonic()
        with pytest.raises(CommitUnknown, match=running.coordinator.address):
            producer.send("t", b"1").result(60)
        assert time.monotonic() - began < BOUND_S
        control.unlink()
        again = client.producer(linger_ms=0)
        assert again.send("t", b"2").result(60).offset == 2
        producer.close()
        again.close()
    services.stop(running)
