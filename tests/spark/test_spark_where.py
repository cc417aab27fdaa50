"""The option `where`: the rows that `df.where` gives of the same text, and fewer bytes."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.options.where_condition import zone_named
from pyspark_pylog.source.batch import LogReader
from pyspark_pylog.source.read_columns import TYPES
from pyspark_pylog.source.read_task import ReadTask, read_batches

import spark_log
from simulation.harness.stores import CountingStore
from spark_log import NewTopic
from spark_log.conditions import parse_condition
from spark_log.errors import InvalidRequest
from spark_log.maintenance.maintain import merge
from tests.literals import LITERALS
from tests.spark.builders import as_bytes, copy, load, load_stream, texts, values
from tests.spark.driver import read_task, through

START = datetime(2026, 1, 31, tzinfo=timezone.utc)
FIXED = {"endingoffsets": "1000000"}
"""Nothing is added to what tasks carry."""


def fill(log: spark_log.Log, seed: int, *, partitions: int = 3, commits: int = 6, rows: int = 40) -> None:
    """Topic t: records of about a day around START, in no order of time but in some commits."""
    rng = random.Random(seed)
    log.admin.create_topics([NewTopic("t", partitions, {"retention.ms": "-1"})])
    for number in range(commits):
        times = [START + timedelta(hours=number, seconds=rng.randrange(-40_000, 40_000)) for _ in range(rows)]
        if rng.random() < 0.5:
            times.sort()
        log.append(
            "t",
            [
                {"value": f"{number}-{n}", "timestamp": time, "partition": rng.randrange(partitions)}
                for n, time in enumerate(times)
            ],
        )


def reader(url: str, *columns: str, **options: Any) -> LogReader:
    schema = pa.schema([(name, TYPES[name][1]) for name in columns])
    return LogReader(read_options({"path": url, "subscribe": "t", **FIXED, **options}, streaming=False), schema)


def tasks_of(found: LogReader) -> list[ReadTask]:
    return [task for task in found.partitions() if isinstance(task, ReadTask)]


def rows_of(url: str, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    """The rows that the tasks of a read return, sorted."""
    found = reader(url, *columns, **options)
    batches = [batch for task in tasks_of(found) for batch in read_task(found, task, uuid.uuid4().hex)]
    assert all(batch.schema == found.schema for batch in batches)
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


# ---------------------------------------------------------------------------------------------------- without Spark


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A log as it was written, and one that was merged."""
    made = []
    for seed in range(2):
        made.append(str(tmp_path_factory.mktemp(f"log-{seed}") / "log"))
        log = spark_log.connect(made[-1], durability="os")
        fill(log, seed)
        if seed:
            merge(log)
    return made


SECONDS = st.integers(-45_000, 70_000)
OFFSETS = st.integers(-3, 100)


@st.composite
def conditions(draw: st.DrawFn) -> tuple[str, Any]:
    """A text, and what it says of a row (partition, offset, timestamp) in Python."""
    parts: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        column = draw(st.sampled_from(["timestamp", "offset", "partition"]))
        numbers = {"timestamp": SECONDS, "offset": OFFSETS, "partition": st.integers(-1, 4)}[column]
        parts.append(draw(comparisons(column, numbers)))
    return " and ".join(text for text, _ in parts), lambda row: all(check(row) for _, check in parts)


@st.composite
def comparisons(draw: st.DrawFn, column: str, numbers: st.SearchStrategy[int]) -> tuple[str, Any]:
    at = ("partition", "offset", "timestamp").index(column)
    one, other = draw(numbers), draw(numbers)
    low, high = (value(column, number) for number in (one, other))
    kind = draw(st.sampled_from(["<", "<=", ">", ">=", "=", "between", *(["in"] if column != "timestamp" else [])]))
    match kind:
        case "between":
            return f"{column} between {sql(low)} and {sql(high)}", lambda row: low <= row[at] <= high
        case "in":
            return f"{column} in ({one}, {other})", lambda row: row[at] in (low, high)
        case "=":
            return f"{column} = {sql(low)}", lambda row: row[at] == low
        case "<":
            return f"{column} < {sql(low)}", lambda row: row[at] < low
        case "<=":
            return f"{column} <= {sql(low)}", lambda row: row[at] <= low
        case ">":
            return f"{sql(low)} < {column}", lambda row: row[at] > low
        case _:
            return f"{column} >= {sql(low)}", lambda row: row[at] >= low


def value(column: str, number: int) -> Any:
    return START + timedelta(seconds=number) if column == "timestamp" else number


def sql(constant: Any) -> str:
    return f"'{constant:%Y-%m-%d %H:%M:%S}'" if isinstance(constant, datetime) else str(constant)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conditions(), st.integers(0, 1), st.sampled_from([{}, {"minpartitions": "7"}, {"maxrecordsperpartition": "11"}]))
def test_rows_are_those_for_which_the_condition_is_true(
    urls: list[str], condition: tuple[str, Any], log: int, splitting: dict[str, str]
) -> None:
    """Whatever the order of timestamps, the slices and the tasks."""
    text, check = condition
    everything = rows_of(urls[log], "partition", "offset", "timestamp")
    assert len(everything) == 240
    found = rows_of(urls[log], "partition", "offset", "timestamp", where=text, timezone="UTC", **splitting)
    assert found == [row for row in everything if check(row)]


def test_a_projection_without_the_columns_of_the_condition(urls: list[str]) -> None:
    """They are looked at and not given."""
    text, zone = "timestamp >= '2026-01-31 03:00' and offset >= 10 and partition = 1", {"timezone": "UTC"}
    expected = [
        row[3:]
        for row in rows_of(urls[0], "partition", "offset", "timestamp", "value")
        if row[0] == 1 and row[1] >= 10 and row[2] >= START + timedelta(hours=3)
    ]
    assert 0 < len(expected) < 60
    assert rows_of(urls[0], "value", where=text, **zone) == sorted(expected)
    assert rows_of(urls[0], "topic", where=text, **zone) == [("t",)] * len(expected)


def test_a_condition_narrows_what_positions_and_partitions_ask_for(urls: list[str]) -> None:
    """Both hold; a past or future offset in a condition is not an error."""
    options = {"startingoffsets": json.dumps({"t": {"0": 20, "1": 20, "2": 20}}), "where": "offset < 25"}
    assert {row[0] for row in rows_of(urls[0], "offset", **options)} == set(range(20, 25))
    assert rows_of(urls[0], "offset", where="offset > 5000") == []
    assert rows_of(urls[0], "offset", where="partition = 77") == []


def test_tasks_are_cut_from_what_is_read(urls: list[str]) -> None:
    """minPartitions and maxRecordsPerPartition count offsets that may match; there is no task without any."""
    for options, count in (({"minpartitions": "5"}, 5), ({"maxrecordsperpartition": "3"}, 4), ({}, 1)):
        tasks = tasks_of(reader(urls[0], "offset", where="partition = 1 and offset between 20 and 29", **options))
        assert len(tasks) == count
        assert sum(read.end - read.start for task in tasks for read in task.reads) == 10
    assert tasks_of(reader(urls[0], "offset", where="partition = 1 and offset < 0")) == []


def test_tasks_are_cut_without_planning_again(urls: list[str]) -> None:
    """Together they read what one task would, piece by piece, whatever the number of pieces."""
    text = {"where": "timestamp >= '2026-01-31 02:00' and offset < 60", "timezone": "UTC"}

    def offsets_of(**options: str) -> set[tuple[int, int]]:
        reads = [read for task in tasks_of(reader(urls[0], "offset", **text, **options)) for read in task.reads]
        spans = [(read.partition, offset) for read in reads for offset in range(read.start, read.end)]
        assert len(spans) == len(set(spans))
        return set(spans)

    alone = offsets_of()
    for options in ({"minpartitions": "2"}, {"minpartitions": "50"}, {"maxrecordsperpartition": "1"}):
        assert offsets_of(**options) == alone


# Promise: spark.md#limits-of-spark-and-workarounds
def test_spark_pushes_no_filter_down() -> None:
    """It would keep what came of one query's filter for the next query of the frame."""
    pushed = getattr(DataSourceReader, "pushFilters", None)
    assert getattr(LogReader, "pushFilters", None) is pushed


# Promise: spark-read.md#reading-less
def test_what_cannot_match_is_not_fetched(url: str, log: spark_log.Log) -> None:
    """One day of four, each a commit: the bytes of that commit alone."""
    for day in range(4):
        log.append("t", [{"value": b"%04d" % n, "timestamp": START + timedelta(days=day)} for n in range(500)])
    found = reader(url, "value", where="timestamp between '2026-02-01' and '2026-02-01 12:00'", timezone="UTC")
    (task,) = tasks_of(found)
    counting = CountingStore(log.journal.objects)
    batches = list(read_batches(through(counting, task.log), task.reads, found.schema, found.options))
    assert sum(batch.num_rows for batch in batches) == 500
    sizes = [read.slice.length for read in log.plan("t")]
    assert counting.read.total() == sizes[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"where": "timestamp > '2026-01-31'"}, "'2026-01-31' has no zone.*option timeZone"),
        ({"where": "value = 'x'"}, "option where: \"value = 'x'\" cannot be used by a read"),
        (
            {"where": "timestamp > '2026-01-31'", "timezone": "Mars/Base"},
            "option timeZone: 'Mars/Base' is an unknown time zone",
        ),
        ({"timezone": "+99:00"}, "option timeZone: '\\+99:00' is an unknown time zone"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True, None])
def test_a_wrong_condition_is_refused_at_load(options: dict[str, str], sentence: str, streaming: bool | None) -> None:
    """In batches and streams."""
    with pytest.raises(InvalidRequest, match=sentence):
        read_options({"path": "/nowhere", "subscribe": "t", **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("name", "hours"),
    [("UTC", 0), ("Z", 0), ("GMT+2", 2), ("+01:00", 1), ("UTC-01:00", -1), ("Europe/Berlin", 1), ("Asia/Tokyo", 9)],
)
def test_time_zones_have_sparks_names(name: str, hours: int) -> None:
    """Regions and offsets."""
    assert START.astimezone(zone_named(name)).utcoffset() == timedelta(hours=hours)


# ------------------------------------------------------------------------------------------------------- with Spark


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with another zone than the test's process has."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


TEXTS = [
    "timestamp >= '2026-01-31'",
    "timestamp between '2026-01-31 01:30' and '2026-01-31T04:00:00.5' and partition in (0, 2)",
    "'2026-01-31 03:00:00Z' > timestamp and offset >= 7",
    "timestamp < date '2026-01-31' and `offset` in (1, 5, 33)",
    "(timestamp > timestamp '2026-1-31 2:0:0+03:00') and (partition = 1 and offset <= 99999999999999999999)",
    "offset between 7 and 3",
]


# Promise: spark-read.md#reading-less, tasks/late-data.md#handle-late-data
def test_rows_are_those_of_df_where(berlin: SparkSession, url: str, log: spark_log.Log) -> None:
    """The same text, in the session's time zone."""
    fill(log, 3)
    columns = ("partition", "offset", "timestamp", "value")
    everything = load(berlin, url).select(*columns)
    found, expected = (
        sorted(map(tuple, reduce(DataFrame.union, frames).collect()))
        for frames in (
            [load(berlin, url, **spark_log.where(text)).select(F.lit(text), *columns) for text in TEXTS],
            [everything.where(text).select(F.lit(text), *columns) for text in TEXTS],
        )
    )
    assert found == expected
    counts = Counter(row[0] for row in found)
    assert set(counts) == set(TEXTS[:-1]) and max(counts.values()) < 240


TIMES = [
    "2026-01-31",
    "2026-1-5",
    " 2026-01-31 10:00 ",
    "2026-01-31T1:2:3",
    "2026-01-31 10:00:00.1234567",
    "2026-01-31 10:00:00Z",
    "2026-01-31T10:00:00.5-01:30",
    "2026-03-29 02:30",
    "2026-10-25 02:30",
    "1969-12-31 23:59:59.5Z",
    "1800-01-01",
    "0001-01-01",
    "9999-12-31 23:59:59.999999",
]
REFUSED_TIMES = ["2026-01-31 10:00Z", "2026-01-31 24:00", "2026-02-30", "1400-02-29"]


@pytest.mark.tasks
def test_times_are_what_spark_makes_of_them(berlin: SparkSession) -> None:
    """Where clocks are put forward and back, and before there were zones; what Spark takes for no time is refused."""
    texts = ", ".join(f"('{text}')" for text in (*TIMES, *REFUSED_TIMES))
    rows = berlin.sql(
        f"select text, unix_micros(try_cast(text as timestamp)) from values {texts} as t (text)"
    ).collect()
    found = {row[0]: row[1] for row in rows}
    zone = zone_named("Europe/Berlin")
    for text in TIMES:
        assert parse_condition(f"timestamp = '{text}'", "where", zone).time_us.first == found[text], text
    for text in REFUSED_TIMES:
        assert found[text] is None
        with pytest.raises(InvalidRequest):
            parse_condition(f"timestamp = '{text}'", "where", zone)


def test_the_helper_takes_the_sessions_zone(berlin: SparkSession) -> None:
    """Of the active session or of a given one; an invalid condition is refused immediately."""
    text = "timestamp >= '2026-01-31'"
    expected = {"where": text, "timeZone": "Europe/Berlin"}
    assert spark_log.where(text) == spark_log.where(text, berlin) == expected
    with pytest.raises(InvalidRequest, match="'partition \\+ 1 = 2' cannot be used by a read"):
        spark_log.where("partition + 1 = 2")


@pytest.mark.tasks
def test_a_frame_that_is_used_again_sees_new_records_that_match(
    spark: SparkSession, url: str, log: spark_log.Log
) -> None:
    """In a view, next to one without a condition, and with other tasks than the records that come later would need."""
    log.append("t", texts(10))
    frame = load(spark, url, where="offset >= 6", maxRecordsPerPartition=2)
    options = f"path '{url}', subscribe 't', where 'offset >= 6', maxRecordsPerPartition 2"
    spark.sql(f"create or replace temporary view some using pylog options ({options})")
    load(spark, url).createOrReplaceTempView("every")
    counts = "select (select count(*) from some), (select count(*) from every), (select count(*) from some)"
    assert tuple(spark.sql(counts).first()) == (4, 10, 4)
    log.append("t", texts(6))
    assert tuple(spark.sql(counts).first()) == (10, 16, 10)
    assert frame.where("offset % 2 = 0").count() == 5


# Promise: spark-read.md#reading-less
@pytest.mark.tasks
def test_a_stream_leaves_out_what_does_not_match(
    spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """In each micro-batch, also in one without matches; offsets continue over the rows left out."""
    log.admin.create_topics([NewTopic("t", 2), NewTopic("u", 2)])
    days = [{"value": str(n), "partition": n % 2, "timestamp": START + timedelta(days=n // 10)} for n in range(40)]
    options = spark_log.where("timestamp >= '2026-02-01' and timestamp < '2026-02-03' and partition = 1", spark)
    for first in (0, 20):
        for row in (days[first : first + 10], days[first + 10 : first + 20]):
            log.append("t", row)
        query = copy(load_stream(spark, url, maxOffsetsPerTrigger=15, **options), url, "u", tmp_path / "checkpoint")
        assert query.exception() is None
    assert values(load(spark, url, "u")) == as_bytes(range(11, 30, 2))
    ends = json.loads((query.lastProgress or {})["sources"][0]["endOffset"])
    assert ends["t"] == {"0": 20, "1": 20}


# Promise: tasks/typed.md#skip-what-cannot-match
def test_texts_are_those_of_spark(spark: SparkSession) -> None:
    """With doubled quotes and backslashes."""
    found = spark.sql(f"SELECT {', '.join(literal for literal, _ in LITERALS)}").collect()[0]
    assert list(found) == [value for _, value in LITERALS]
