"""Datetimes and timedeltas as positions; topics by name; topics that do not exist."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log.errors import InvalidRequest
from spark_log.model import NewTopic, TopicPartition
from spark_log.positions import format_timestamp_ms
from tests.client.logs import new_log
from tests.logged import logged

P0 = TopicPartition("orders", 0)
START = datetime(2026, 1, 31, 10, tzinfo=timezone.utc)
HELSINKI = timezone(timedelta(hours=2))
THIRD = [START + timedelta(hours=3), datetime(2026, 1, 31, 13), datetime(2026, 1, 31, 15, tzinfo=HELSINKI)]
"""The time of record 3, in UTC, without a zone, and in another zone."""


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """Ten records, an hour apart; record 3 is of 13:00 UTC."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"key": "k", "value": b"%d" % n, "timestamp": START + timedelta(hours=n)} for n in range(10)])
    return log


# Promise: clients.md#positions
@pytest.mark.parametrize("at", THIRD)
def test_a_datetime_is_a_position_wherever_one_is_taken(log: spark_log.Log, at: datetime) -> None:
    """In reads, tables, and in the admin's calls."""
    assert log.read("orders", start=at).num_rows == 7 and log.read("orders", end=at).num_rows == 3
    assert sum(batch.num_rows for batch in log.scan("orders", start=at)) == 7
    assert log.table("orders", at=at)["value"].to_pylist() == [b"2"]
    assert [read.start for read in log.plan("orders", start=at)] == [3]
    assert log.admin.list_offsets({P0: at}) == {P0: 3}
    log.admin.alter_consumer_group_offsets("billing", {P0: at})
    assert log.admin.list_consumer_group_offsets("billing")[P0].offset == 3
    assert log.admin.erase_records("orders", ["k"], at, dry_run=True).records == 3
    found = log.consumer("orders").offsets_for_times({P0: at})[P0]
    assert found is not None and found.offset == 3
    assert log.admin.delete_records({P0: at}) == {P0: 3}


# Promise: clients.md#positions
def test_a_timedelta_is_how_long_ago(log: spark_log.Log) -> None:
    """The newest records are of now."""
    log.append("orders", [{"value": "new"}])
    assert log.read("orders", start=timedelta(hours=1))["value"].to_pylist() == [b"new"]
    assert log.read("orders", end=timedelta(hours=1)).num_rows == 10
    assert log.admin.list_offsets({P0: timedelta(hours=1)}) == {P0: 10}
    with pytest.raises(InvalidRequest, match=r"how long ago"):
        log.read("orders", start=timedelta(hours=-1))


def test_a_datetime_after_the_last_record_is_the_end(log: spark_log.Log) -> None:
    """A datetime does what a time in text does; Kafka's -1 is for numbers."""
    late = START + timedelta(days=1)
    assert log.admin.list_offsets({P0: late}) == log.admin.list_offsets({P0: f"@{late:%Y-%m-%d}"}) == {P0: 10}
    assert format_timestamp_ms(1769853600000) == f"{START:%Y-%m-%dT%H:%M:%S}.000Z"


# Promise: clients.md#positions
def test_topics_are_listed_by_name(log: spark_log.Log) -> None:
    """Sorted, with what the metadata has of them, and as a table in a notebook."""
    log.create_topic(NewTopic("bills", 3, {"retention.ms": "1000"}))
    topics = log.topics()
    assert list(topics) == ["bills", "orders"] and "orders" in topics
    assert (topics["orders"].partitions, topics["orders"].records) == (1, 10)
    assert (topics["bills"].partitions, topics["bills"].configs) == (3, {"retention.ms": "1000"})
    page = topics._repr_html_()  # type: ignore[attr-defined]
    assert "<td>bills</td>" in page and f"<td>{format_timestamp_ms(topics['bills'].created_ms)}</td>" in page


@pytest.mark.parametrize("given", ["b", None, ("b", 3)])
def test_a_topic_needs_more_than_a_name(log: spark_log.Log, given: Any) -> None:
    """The sentence says what is missing, and what to write."""
    for call in (log.create_topic, lambda one: log.admin.create_topics([one])):
        with pytest.raises(
            InvalidRequest, match=r"is not a NewTopic, which has a name, a number of .*, num_partitions=3"
        ):
            call(given)
    assert list(log.topics()) == ["orders"]


# Promise: clients.md#consumer
def test_polling_a_topic_that_does_not_exist_says_so(log: spark_log.Log, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the nearest name; when the topic is created, it is read, and nothing is said."""
    with log.consumer("order", "orders", auto_offset_reset="earliest") as consumer:
        assert sum(map(len, consumer.poll(1000).values())) == 10
        consumer.poll(50)
        assert logged(caplog, "does not exist") == [
            "topic 'order' does not exist (the nearest name is 'orders'); this consumer reads it as soon as it is created"
        ]
        log.append("order", [{"value": "x"}])
        assert [record.value for record in consumer.poll(5000)[TopicPartition("order", 0)]] == [b"x"]
        assert len(logged(caplog, "does not exist")) == 1
        log.admin.delete_topics(["order"])
        consumer.poll(200)
        assert len(logged(caplog, "does not exist")) == 2


# Promise: clients.md#consumer
def test_polling_a_pattern_that_matches_nothing_says_so(log: spark_log.Log, caplog: pytest.LogCaptureFixture) -> None:
    """Once, until a topic matches."""
    with log.consumer() as consumer:
        consumer.subscribe(pattern="bill.*")
        consumer.poll()
        consumer.poll()
        assert logged(caplog, "bill") == [
            "no topic matches 'bill.*' yet; this consumer reads it as soon as it is created"
        ]
