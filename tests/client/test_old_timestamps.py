"""Records that are surprisingly old are written, and a warning in the log says so once."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

import spark_log
from spark_log import NewTopic
from tests.client.logs import new_log
from tests.logged import logged

SECONDS = 1_700_000_000


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """A topic that keeps its records for ever."""
    log = new_log(tmp_path)
    log.admin.create_topics([NewTopic("orders", 1, {"retention.ms": "-1"})])
    return log


# Promise: spark.md#columns
def test_seconds_that_are_given_for_milliseconds_are_a_warning(
    log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """With the column, both readings of the number and what to write; the record is kept as it was given."""
    for number in range(2):
        log.append("orders", [{"value": "v", "timestamp": SECONDS - number}])
    assert logged(caplog, "timestamps") == [
        "topic orders: records with timestamps up to 1970-01-20T16:13:20.000Z were written. A bigint column 'timestamp' is in "
        "milliseconds since 1970; 1700000000 seconds would be 2023-11-14T22:13:20.000Z: if these are seconds, write "
        "timestamp_seconds(column) in Spark, or 1000 times the number"
    ]
    first = log.read("orders")["timestamp"][0].as_py()
    assert first == datetime.datetime.fromtimestamp(SECONDS / 1000, datetime.timezone.utc)


@pytest.mark.parametrize("newest", [0, 86_400_000, 999_999_999, 4_102_444_800, 10**12, 1_790_000_000_000])
def test_other_times_are_none(log: spark_log.Log, caplog: pytest.LogCaptureFixture, newest: int) -> None:
    """The newest record of a run counts: times before 1970-01-12 and from 1970-02-17 on are what they are."""
    log.append("orders", [{"value": "v", "timestamp": ms} for ms in (0, newest)])
    assert not logged(caplog, "timestamps")


def test_the_times_that_the_log_gives_are_not_looked_at(log: spark_log.Log, caplog: pytest.LogCaptureFixture) -> None:
    """Under LogAppendTime nobody sees what was given."""
    log.admin.create_topics([NewTopic("appended", 1, {"message.timestamp.type": "LogAppendTime"})])
    log.append("appended", [{"value": "v", "timestamp": SECONDS}])
    assert not logged(caplog, "timestamps")


def test_records_that_expire_at_once_are_a_warning(log: spark_log.Log, caplog: pytest.LogCaptureFixture) -> None:
    """Of its own: a topic that had the other one gets this, too."""
    log.append("orders", [{"value": "v", "timestamp": SECONDS}])
    log.admin.incremental_alter_configs({"orders": {"retention.ms": "604800000"}})
    log.append("orders", [{"value": "v", "timestamp": 10**12}])
    assert [message.partition(" were ")[2].partition(":")[0] for message in logged(caplog, "timestamps")[1:]] == [
        "written, which are older than retention.ms=604800000"
    ]
