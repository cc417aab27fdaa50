"""Where a batch read starts and ends, and how it is split."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark_pylog.options import read_options
from pyspark_pylog.ranges import batch_ranges, wanted_partitions

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.client.resolve import partition_of
from tests.spark.builders import load, texts

START = datetime(2026, 1, 31, tzinfo=timezone.utc)
START_MS = int(START.timestamp() * 1000)


@pytest.fixture
def filled(log: spark_log.Log) -> spark_log.Log:
    """Topic t, partitions 0 and 1, 10 records each, one a minute from START on; topic u, 5 records."""
    log.admin.create_topics([NewTopic("t", 2), NewTopic("u", 1)])
    for half in (0, 1):  # two commits, so that there are several slices
        rows = [
            {"value": str(minute), "partition": number, "timestamp": START + timedelta(minutes=minute)}
            for number in (0, 1)
            for minute in range(5 * half, 5 * half + 5)
        ]
        log.append("t", rows)
    log.append("u", texts(5))
    return log


def offsets(frame: DataFrame) -> dict[str, list[int]]:
    """`{"t-0": [start, end]}` of what a frame holds."""
    name = F.concat_ws("-", "topic", "partition").alias("tp")
    rows = frame.groupBy(name).agg(F.min("offset"), F.max("offset") + 1, F.count("*")).collect()
    assert all(row[2] - row[1] == row[3] for row in rows)
    return {row[0]: [row[1], row[2]] for row in rows}


def minute(number: int) -> str:
    return str(START_MS + 60_000 * number)


CASES: list[tuple[dict[str, Any], dict[str, list[int]]]] = [
    ({}, {"t-0": [0, 10], "t-1": [0, 10]}),
    ({"startingOffsets": "EARLIEST", "endingOffsets": "latest"}, {"t-0": [0, 10], "t-1": [0, 10]}),
    ({"startingOffsets": "latest-3"}, {"t-0": [7, 10], "t-1": [7, 10]}),
    ({"startingOffsets": "latest-99"}, {"t-0": [0, 10], "t-1": [0, 10]}),
    ({"startingOffsets": "4", "endingOffsets": "6"}, {"t-0": [4, 6], "t-1": [4, 6]}),
    ({"startingOffsets": {"t": {"0": 8, "1": -2}}}, {"t-0": [8, 10], "t-1": [0, 10]}),
    ({"startingOffsets": {"t": {"1": 8}}}, {"t-0": [0, 10], "t-1": [8, 10]}),
    ({"startingOffsets": {"t": {"0": "latest-2"}}}, {"t-0": [8, 10], "t-1": [0, 10]}),
    ({"startingOffsets": {"t": "earliest"}, "endingOffsets": {"t": {"0": 3, "1": -1}}}, {"t-0": [0, 3], "t-1": [0, 10]}),
    ({"endingOffsets": {"t": {"0": 3}}}, {"t-0": [0, 3], "t-1": [0, 10]}),
    ({"endingOffsets": "99"}, {"t-0": [0, 10], "t-1": [0, 10]}),
    ({"startingOffsets": "@2026-01-31T00:03Z"}, {"t-0": [3, 10], "t-1": [3, 10]}),
    ({"startingOffsets": "@" + minute(3), "endingOffsets": "@" + minute(5)}, {"t-0": [3, 5], "t-1": [3, 5]}),
    ({"startingTimestamp": minute(7)}, {"t-0": [7, 10], "t-1": [7, 10]}),
    ({"startingTimestamp": "2026-01-31T00:06:30Z"}, {"t-0": [7, 10], "t-1": [7, 10]}),
    ({"startingTimestamp": minute(2), "endingTimestamp": minute(4)}, {"t-0": [2, 4], "t-1": [2, 4]}),
    ({"endingTimestamp": minute(99)}, {"t-0": [0, 10], "t-1": [0, 10]}),
    ({"startingOffsetsByTimestamp": {"t": {"0": START_MS + 60_000}}}, {"t-0": [1, 10], "t-1": [0, 10]}),
    ({"endingOffsetsByTimestamp": {"t": {"0": minute(1)}}}, {"t-0": [0, 1], "t-1": [0, 10]}),
    ({"startingTimestamp": minute(99), "startingOffsetsByTimestampStrategy": "latest"}, {}),
    # what is more exact goes before what is less, which is ignored
    ({"startingTimestamp": minute(9), "startingOffsetsByTimestamp": {"t": {"0": 0}}, "startingOffsets": "2"},
     {"t-0": [9, 10], "t-1": [9, 10]}),
    ({"startingOffsetsByTimestamp": {"t": {"0": minute(8)}}, "startingOffsets": "2"}, {"t-0": [8, 10], "t-1": [0, 10]}),
    ({"subscribe": " t , u "}, {"t-0": [0, 10], "t-1": [0, 10], "u-0": [0, 5]}),
    ({"subscribe": "t,u", "startingOffsets": {"u": "latest-1", "t": {"0": 9}}},
     {"t-0": [9, 10], "t-1": [0, 10], "u-0": [4, 5]}),
    ({"subscribePattern": "t|u"}, {"t-0": [0, 10], "t-1": [0, 10], "u-0": [0, 5]}),
    ({"subscribePattern": "nothing"}, {}),
    ({"assign": {"t": [1], "u": [0]}}, {"t-1": [0, 10], "u-0": [0, 5]}),
    ({"assign": {"t": [1, 7]}}, {"t-1": [0, 10]}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), CASES, ids=[json.dumps(case[0]) for case in CASES])
def test_a_read_covers_what_its_options_say(
    url: str, filled: spark_log.Log, options: dict[str, Any], expected: dict[str, list[int]]
) -> None:
    """Every position, for all partitions, per topic and per partition; what is left out has its default."""
    given = {name.lower(): json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
    if not {"subscribe", "subscribepattern", "assign"} & set(given):
        given["subscribe"] = "t"
    parsed, journal = read_options({"path": url, **given}, streaming=False), filled.journal
    tps = wanted_partitions(journal.state, parsed)
    ends = {tp: partition_of(journal.state, tp)[1].end for tp in tps}
    ranges = batch_ranges(journal, parsed, ends)
    assert {f"{rng.topic}-{rng.partition}": [rng.start, rng.end] for rng in ranges} == expected


def tasks_of(frame: DataFrame) -> int:
    """How many tasks had rows."""
    return frame.select(F.spark_partition_id()).distinct().count()


def test_spark_reads_the_range(spark: SparkSession, url: str, filled: spark_log.Log) -> None:
    """Starts, ends and defaults of several topics in one load."""
    starts, ends = '{"t":{"0":8},"u":"latest-2"}', '{"t":{"1":3}}'
    found = offsets(load(spark, url, "t,u", startingOffsets=starts, endingOffsets=ends))
    assert found == {"t-0": [8, 10], "t-1": [0, 3], "u-0": [3, 5]}


def test_now_minus_counts_from_the_query(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """now-10m is the first record of the last ten minutes."""
    now = datetime.now(timezone.utc)
    log.append("t", [{"value": str(n), "timestamp": now - timedelta(minutes=30 - 6 * n)} for n in range(6)])
    assert offsets(load(spark, url, startingOffsets="now-10m")) == {"t-0": [4, 6]}
    assert offsets(load(spark, url, endingOffsets="now-10m")) == {"t-0": [0, 4]}


def test_a_group_is_a_position(spark: SparkSession, url: str, filled: spark_log.Log) -> None:
    """group:NAME starts where the group stands; a partition without a position at its start."""
    filled.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 6})
    assert offsets(load(spark, url, startingOffsets="group:g")) == {"t-0": [6, 10], "t-1": [0, 10]}


def test_min_partitions_and_max_records_split(spark: SparkSession, url: str, filled: spark_log.Log) -> None:
    """And each row is still read once."""
    for options, tasks in (({}, 1), ({"minPartitions": 4}, 4), ({"maxRecordsPerPartition": 3}, 8)):
        frame = load(spark, url, **options)
        assert tasks_of(frame) == tasks
        assert offsets(frame) == {"t-0": [0, 10], "t-1": [0, 10]}


def test_max_bytes_per_partition_splits_by_bytes(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """A large commit is cut inside."""
    log.append("t", [{"value": b"%06d" % n * 100} for n in range(2000)], compression="none")
    frame = load(spark, url, maxBytesPerPartition="300k")
    assert 3 <= tasks_of(frame) <= 6
    assert offsets(frame) == {"t-0": [0, 2000]}
    sizes = frame.groupBy(F.spark_partition_id()).count().collect()
    assert max(row["count"] for row in sizes) < 2 * min(row["count"] for row in sizes)


def test_trimmed_records_are_a_loss_only_where_they_are_asked_for(
    spark: SparkSession, url: str, filled: spark_log.Log
) -> None:
    """earliest begins behind the trim; a number before it fails, or goes on with failOnDataLoss=false."""
    filled.admin.delete_records({TopicPartition("t", 0): 4})
    assert offsets(load(spark, url)) == {"t-0": [4, 10], "t-1": [0, 10]}
    with pytest.raises(Exception, match=r"offsets \[2, 4\) of t-0 are gone, 2 records: .*failOnDataLoss=false"):
        load(spark, url, startingOffsets="2").count()
    found = offsets(load(spark, url, startingOffsets="2", failOnDataLoss="false"))
    assert found == {"t-0": [4, 10], "t-1": [2, 10]}


def test_a_fixed_range_stays_what_it_is(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Later records do not join in when the frame is used again."""
    log.append("t", texts(100))
    frame = load(spark, url, startingOffsets="10", endingOffsets="20")
    assert frame.count() == 10
    log.append("t", texts(100))
    assert offsets(frame) == {"t-0": [10, 20]}
