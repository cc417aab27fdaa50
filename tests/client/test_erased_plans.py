"""A read that was planned before an erasure, and is read after it, has none of the erased records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log import Log, NewTopic, TopicPartition
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.reader.erased_since import LOCAL_LOOK_MS, LOOK_MS
from spark_log.client.reader.latest import scan_latest
from spark_log.errors import ConcurrentChange
from tests.services import Services

ROWS = 6_000
LEFT = [n for n in range(ROWS) if n % 3 != 1]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Two objects, of which the first has several batches."""
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        log.create_topic(NewTopic("t", 1, {"cleanup.policy": "compact"}))
        for first in (0, ROWS // 2):
            log.append("t", [{"key": b"k%d" % (n % 3), "value": b"%d" % n} for n in range(first, first + ROWS // 2)])
        yield log


def erase_here(log: Log) -> None:
    assert log.admin.erase_records("t", ["k1"]).records == ROWS // 3


def erase_elsewhere(log: Log) -> None:
    """By another client, of which this one learns when it looks at the log."""
    with spark_log.connect(log.url, durability="os") as other:
        erase_here(other)
    log.journal.context.clock.sleep_ms(LOCAL_LOOK_MS + 5)


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("erase", [erase_here, erase_elsewhere])
def test_a_scan_that_was_planned_before(log: Log, erase: Callable[[Log], None]) -> None:
    """Also one of which a part was read; what it reads afterwards is planned again."""
    unread, begun = log.scan("t"), log.scan("t")
    first = begun.read_next_batch().column("offset").to_pylist()
    erase(log)
    assert unread.read_all().column("offset").to_pylist() == LEFT
    rest = begun.read_all().column("offset").to_pylist()
    assert rest == [n for n in LEFT if n > first[-1]]


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("erase", [erase_here, erase_elsewhere])
def test_a_consumer_with_a_batch_in_memory(log: Log, erase: Callable[[Log], None]) -> None:
    """The rest of a batch is read again."""
    with log.consumer("t", auto_offset_reset="earliest", max_poll_records=10) as consumer:
        found = [record.offset for records in consumer.poll(5_000).values() for record in records]
        assert found == list(range(10))
        erase(log)
        while found[-1] < ROWS - 1:
            found += [record.offset for records in consumer.poll(5_000).values() for record in records]
    assert found == [*range(10), *(n for n in LEFT if n >= 10)]


@pytest.mark.parametrize("erase", [erase_here, erase_elsewhere])
def test_a_consumer_that_iterates(log: Log, erase: Callable[[Log], None]) -> None:
    """Records that it has decoded in advance are read again.  Its position is after the last one that it returned."""
    with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=100) as consumer:
        found = [next(consumer).offset for _ in range(10)]
        erase(log)
        found += [record.offset for record in consumer]
        assert consumer.position(TopicPartition("t", 0)) == ROWS
    assert found == [*range(10), *(n for n in LEFT if n >= 10)]


# Promise: tasks/erase.md#when-the-records-are-gone
def test_a_view_of_the_latest_records_fails_with_a_sentence(log: Log) -> None:
    """It is of one version, so it is read again as a whole."""
    view = scan_latest(log.journal, "t", None, "latest", None, None)
    erase_here(log)
    with pytest.raises(ConcurrentChange, match="records were erased from topic 't'"):
        view.read_all()
    assert sorted(scan_latest(log.journal, "t", None, "latest", None, None).read_all().column("key").to_pylist()) == [
        b"k0",
        b"k2",
    ]


def test_an_erasure_of_another_topic_changes_nothing(log: Log) -> None:
    """The plan is used as it is."""
    log.append("other", [{"key": b"k1", "value": b"x"}])
    scan = log.scan("t")
    log.admin.erase_records("other", ["k1"])
    assert scan.read_all().num_rows == ROWS


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("erase", [erase_here, erase_elsewhere])
def test_a_consumer_of_partitions_that_share_requests(
    tmp_path: Path, erase: Callable[[Log], None], arrow: bool
) -> None:
    """One request has the records of all partitions of a commit: the first poll has read what the others return."""
    with spark_log.connect(tmp_path / "joint", durability="os") as log:
        log.create_topic(NewTopic("t", 12))
        log.append("t", [{"key": b"k%d" % (n % 3), "value": b"%d" % n, "partition": n % 12} for n in range(ROWS)])
        with log.consumer("t", auto_offset_reset="earliest", max_poll_records=40) as consumer:
            found = keys(consumer, arrow)
            erase(log)
            while some := keys(consumer, arrow):
                found += some
    assert b"k1" not in found[40:], [n for n, key in enumerate(found) if key == b"k1"]
    assert sum(key != b"k1" for key in found) == len(LEFT)


def keys(consumer: Consumer, arrow: bool) -> list[bytes | None]:
    if arrow:
        found: list[bytes | None] = consumer.poll_arrow(200, max_records=40).column("key").to_pylist()
        return found
    return [record.key for records in consumer.poll(200).values() for record in records]


def test_a_consumer_that_iterates_over_topics_of_which_another_one_was_erased_from(log: Log) -> None:
    """Of both, nothing that was erased is returned, whichever is erased from first."""
    log.create_topic(NewTopic("u", 1))
    log.append("u", [{"key": b"k%d" % (n % 3), "value": b"%d" % n} for n in range(ROWS)])
    with log.consumer("t", "u", auto_offset_reset="earliest", consumer_timeout_ms=100) as consumer:
        found = [next(consumer) for _ in range(10)]
        log.admin.erase_records("u", ["k1"])
        found += [next(consumer) for _ in range(10)]
        log.admin.erase_records("t", ["k1"])
        found += list(consumer)
    assert {record.topic for record in found[20:] if record.key == b"k1"} == set()
    for topic in ("t", "u"):
        assert [record.offset for record in found if record.topic == topic and record.key != b"k1"] == LEFT


def test_a_consumer_through_a_coordinator_looks_once_a_second(tmp_path: Path) -> None:
    """Its process learns of the erasure of another one by a request."""
    services = Services()
    try:
        url = services.url(tmp_path / "log")
        with spark_log.connect(url, durability="os") as log, spark_log.connect(url, durability="os") as other:
            log.create_topic(NewTopic("t", 1))
            log.append("t", [{"key": b"k%d" % (n % 3), "value": b"%d" % n} for n in range(ROWS)])
            with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=100) as consumer:
                found = [next(consumer).offset for _ in range(10)]
                assert other.admin.erase_records("t", ["k1"]).records == ROWS // 3
                other.journal.context.clock.sleep_ms(LOOK_MS + 5)
                found += [record.offset for record in consumer]
    finally:
        services.close()
    assert found == [*range(10), *(n for n in LEFT if n >= 10)]


def test_a_table_that_is_read_in_parts(log: Log) -> None:
    """Rows of batches that the reader has not returned yet; those that it has returned are the caller's."""
    reader = log.scan("t", columns=["key", "offset"])
    first = reader.read_next_batch()
    erase_elsewhere(log)
    rest = list(reader)
    assert b"k1" in first.column("key").to_pylist()
    assert all(b"k1" not in batch.column("key").to_pylist() for batch in rest)
    assert rest
