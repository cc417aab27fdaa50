"""Where a read starts and ends: positions, times, maps of them, and their precedence."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.source.ranges import batch_ranges
from pyspark_pylog.source.stream import LogStreamReader

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.positions import AtTime
from tests.spark.builders import asked, copy, load, load_stream, texts
from tests.spark.driver import SCHEMA, Row, rows

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
    # the more exact option takes precedence, and the other one is ignored
    ({"startingTimestamp": minute(9), "startingOffsetsByTimestamp": {"t": {"0": 0}}, "startingOffsets": "2"},
     {"t-0": [9, 10], "t-1": [9, 10]}),
    ({"startingOffsetsByTimestamp": {"t": {"0": minute(8)}}, "startingOffsets": "2"}, {"t-0": [8, 10], "t-1": [0, 10]}),
    ({"subscribe": " t , u "}, {"t-0": [0, 10], "t-1": [0, 10], "u-0": [0, 5]}),
    ({"subscribe": "t,u", "startingOffsets": {"u": "latest-1", "t": {"0": 9}}},
     {"t-0": [9, 10], "t-1": [0, 10], "u-0": [4, 5]}),
    ({"startingOffsets": {"t": "EARLIEST "}, "endingOffsets": " Latest"}, {"t-0": [0, 10], "t-1": [0, 10]}),
    ({"endingTimestamp": minute(5), "endingOffsetsByTimestamp": {"t": {"0": 0}}, "endingOffsets": "2"},
     {"t-0": [0, 5], "t-1": [0, 5]}),
    ({"endingOffsetsByTimestamp": {"t": {"0": minute(8)}}, "endingOffsets": "2"}, {"t-0": [0, 8], "t-1": [0, 10]}),
    ({"startingOffsetsByTimestamp": {"t": minute(8)}}, {"t-0": [8, 10], "t-1": [8, 10]}),
    ({"startingOffsets": {"t": {"0": 4}}, "endingOffsets": {"t": {"1": 4}}}, {"t-0": [4, 10], "t-1": [0, 4]}),
    ({"subscribePattern": "t|u"}, {"t-0": [0, 10], "t-1": [0, 10], "u-0": [0, 5]}),
    ({"subscribePattern": "nothing"}, {}),
    ({"assign": {"t": [1], "u": [0]}}, {"t-1": [0, 10], "u-0": [0, 5]}),
    ({"assign": {"t": [1, 7]}}, {"t-1": [0, 10]}),
]  # fmt: skip


# Promise: options.md#reading, spark-read.md#options-of-a-read
@pytest.mark.parametrize(("options", "expected"), CASES, ids=[json.dumps(case[0]) for case in CASES])
def test_a_read_covers_what_its_options_say(
    url: str, filled: spark_log.Log, options: dict[str, Any], expected: dict[str, list[int]]
) -> None:
    """Every position, for all partitions, per topic and per partition; what is left out has its default."""
    assert covered(filled, **options) == expected


def covered(log: spark_log.Log, **options: Any) -> dict[str, list[int]]:
    """`{"t-0": [start, end]}` of what a batch is to read; of topic t unless the options say otherwise."""
    strategies = {"subscribe", "subscribePattern", "assign"}
    parsed = read_options(asked("/log", None if strategies & set(options) else "t", **options), streaming=False)
    journal = log.journal
    journal.refresh()
    _, ranges = batch_ranges(journal, parsed)
    return {f"{rng.topic}-{rng.partition}": [rng.start, rng.end] for rng in ranges if rng.start < rng.end}


STREAMS: list[tuple[dict[str, Any], list[Row]]] = [
    ({}, []),
    ({"startingOffsets": " Earliest "}, [*rows("t-0", 0, 10), *rows("t-1", 0, 10)]),
    ({"startingOffsets": {"t": {"0": 8}}}, rows("t-0", 8, 10)),
    ({"startingOffsets": {"t": {"0": 8, "1": -2}}}, [*rows("t-0", 8, 10), *rows("t-1", 0, 10)]),
    ({"startingOffsets": {"t": {"0": -1, "1": "latest-2"}}}, rows("t-1", 8, 10)),
    ({"subscribe": "t,u", "startingOffsets": {"t": "latest", "u": "EARLIEST"}}, rows("u-0", 0, 5)),
    ({"startingTimestamp": minute(9), "startingOffsets": "earliest"}, [("t-0", 9), ("t-1", 9)]),
    ({"startingOffsetsByTimestamp": {"t": {"1": minute(8)}}}, rows("t-1", 8, 10)),
    ({"startingOffsetsByTimestamp": {"t": int(minute(9))}}, [("t-0", 9), ("t-1", 9)]),
]


@pytest.mark.parametrize(("options", "expected"), STREAMS, ids=[json.dumps(case[0]) for case in STREAMS])
def test_a_stream_starts_where_its_options_say(
    url: str, filled: spark_log.Log, options: dict[str, Any], expected: list[Row]
) -> None:
    """As a batch; what is left out of a map starts at the latest, a stream's default."""
    given = asked(url, None if "subscribe" in options else "t", **options)
    reader = LogStreamReader(read_options(given, streaming=True), SCHEMA)
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    found = [
        (f"{row['topic']}-{row['partition']}", row["offset"])
        for task in tasks
        for part in reader.read(task)
        for row in part.to_pylist()
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"t":'}, "option startingOffsets: not JSON"),
        (
            {"startingOffsets": {"t": {"zero": 1}}},
            "option startingOffsets: 'zero' is not a partition number; the shape is",
        ),
        (
            {"startingOffsets": {"t": {"0": "soon"}}},
            "option startingOffsets, t-0: 'soon' is not a position; expected",
        ),
        ({"startingOffsets": {"t": {"0": -3}}}, "option startingOffsets, t-0: -3 is not a position"),
        ({"startingOffsets": {"t": {"0": 1.5}}}, "option startingOffsets, t-0: 1.5 is not a position"),
        ({"startingOffsets": "yesterday"}, "option startingOffsets: 'yesterday' is not a position"),
        ({"startingTimestamp": "noon"}, "option startingTimestamp: 'noon' is not a time"),
        (
            {"startingOffsetsByTimestamp": {"t": {"0": "noon"}}},
            "option startingOffsetsByTimestamp, t-0: 'noon' is not a time",
        ),
        (
            {"startingOffsetsByTimestampStrategy": "first"},
            "option startingOffsetsByTimestampStrategy: 'first' is not one of",
        ),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_no_position_is_refused_before_the_log_is_opened(
    options: dict[str, Any], expected: str, streaming: bool
) -> None:
    """With the option, the partition, the value and what is possible; in streams as in batches."""
    with pytest.raises(InvalidRequest) as error:
        read_options(asked(**options), streaming=streaming)
    assert expected in str(error.value)


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize("value", ["latest", " LATEST", '{"t":{"0":-1}}', '{"t":"latest"}', '{"t":{"0":"Latest"}}'])
def test_a_batch_cannot_start_at_latest(value: str) -> None:
    """In whatever form; a stream can."""
    with pytest.raises(InvalidRequest, match="option startingOffsets: a batch cannot start at latest"):
        read_options(asked(startingOffsets=value), streaming=False)
    assert read_options(asked(startingOffsets=value), streaming=True)


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize("value", ["earliest", '{"t":{"0":-2}}', '{"t":"earliest"}'])
def test_a_batch_cannot_end_at_earliest(value: str) -> None:
    """In whatever form."""
    with pytest.raises(InvalidRequest, match="option endingOffsets: a batch cannot end at earliest"):
        read_options(asked(endingOffsets=value), streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    """Refused, where Kafka's connector ignores one of the three."""
    with pytest.raises(InvalidRequest, match=f"option {name}: a stream has no end"):
        read_options(asked(**{name: "1"}), streaming=True)


def test_spark_says_that_a_stream_has_no_end(spark: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """When it starts: at `load()` the source does not know what kind of read it is."""
    log.append("t", texts(1))
    with pytest.raises(Exception, match="option endingOffsets: a stream has no end"):
        copy(load_stream(spark, url, endingOffsets="latest"), url, "copy", tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (
            {"startingOffsets": "2"},
            {"endingOffsets": "1"},
            "option startingOffsets: every partition would start at 2, beyond",
        ),
        (
            {"startingOffsets": {"t": {"0": 2}}},
            {"endingOffsets": {"t": {"0": 1}}},
            "t-0 would start at 2, beyond its end by",
        ),
        (
            {"startingOffsets": {"t": {"0": 2}}},
            {"endingOffsets": "1"},
            "t-0 would start at 2, beyond its end by endingOffsets, 1",
        ),
        ({"startingOffsets": {"t": 2}}, {"endingOffsets": {"t": 1}}, "topic 't' would start at 2, beyond"),
        (
            {"startingOffsets": "latest-1"},
            {"endingOffsets": "latest-2"},
            "every partition would start at latest-1, beyond",
        ),
        ({"startingOffsets": "now-1m"}, {"endingOffsets": "now-1h"}, "every partition would start at now-1m, beyond"),
        (
            {"startingTimestamp": "2000"},
            {"endingTimestamp": "1000"},
            "option startingTimestamp: every partition would start at @",
        ),
        (
            {"startingOffsetsByTimestamp": {"t": {"0": 2000}}},
            {"endingOffsetsByTimestamp": {"t": {"0": 1000}}},
            "option startingOffsetsByTimestamp: t-0 would start at @1970-01-01T00:00:02.000Z, beyond its end by "
            "endingOffsetsByTimestamp, @1970-01-01T00:00:01.000Z",
        ),
        ({"startingTimestamp": "2000"}, {"endingOffsets": "@1000"}, "beyond its end by endingOffsets, @1970"),
    ],
)
def test_a_start_beyond_its_end_is_refused_before_the_log_is_opened(
    start: dict[str, Any], end: dict[str, Any], expected: str
) -> None:
    """Wherever the options alone say so: offsets, times, and distances from the end or from now."""
    with pytest.raises(InvalidRequest) as error:
        read_options(asked(**start, **end), streaming=False)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "99"}, "option startingOffsets: 99 is beyond the end of t-0, 10"),
        ({"startingOffsets": "4", "endingOffsets": "latest-8"},
         "option startingOffsets: the start of t-0, 4, is beyond its end by endingOffsets, 2"),
        ({"startingTimestamp": minute(6), "endingOffsets": "5"},
         "option startingTimestamp: the start of t-0, 6, is beyond its end by endingOffsets, 5"),
        ({"startingTimestamp": minute(99)}, "option startingTimestamp: no record of t-0 is at or after"),
        ({"startingOffsetsByTimestamp": {"t": {"1": minute(99)}}},
         "option startingOffsetsByTimestamp: no record of t-1 is at or after"),
        ({"startingOffsets": "group:none"}, "group 'none' has committed nothing"),
    ],
)  # fmt: skip
def test_what_only_the_log_can_say_is_refused_when_it_is_planned(
    filled: spark_log.Log, options: dict[str, Any], expected: str
) -> None:
    """A start beyond the end, and a time beyond the last record."""
    with pytest.raises(SparkLogError) as error:
        covered(filled, **options)
    assert expected in str(error.value)


def test_equal_start_and_end_read_nothing(filled: spark_log.Log) -> None:
    """It is not an error."""
    assert covered(filled, startingOffsets="4", endingOffsets="4") == {}
    assert covered(filled, startingTimestamp=minute(4), endingTimestamp=minute(4)) == {}


@pytest.mark.parametrize("strategy", ["LATEST", " latest "])
def test_a_time_beyond_the_last_record_may_start_at_the_end(filled: spark_log.Log, strategy: str) -> None:
    """startingOffsetsByTimestampStrategy=latest, for one time and for times by partition."""
    assert covered(filled, startingTimestamp=minute(99), startingOffsetsByTimestampStrategy=strategy) == {}
    starts = {"t": {"0": minute(99)}}
    found = covered(filled, startingOffsetsByTimestamp=starts, startingOffsetsByTimestampStrategy=strategy)
    assert found == {"t-1": [0, 10]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": {"u": {"0": 1}}}, "option startingOffsets names 'u', which is not read"),
        ({"endingOffsets": {"u": "latest"}}, "option endingOffsets names 'u', which is not read"),
        (
            {"startingOffsetsByTimestamp": {"u": {"0": 1}}},
            "option startingOffsetsByTimestamp names 'u', which is not read",
        ),
        (
            {"subscribePattern": "t", "startingOffsets": {"u": {"0": 1}}},
            "option startingOffsets names 'u', which is not read",
        ),
        (
            {"assign": {"t": [1]}, "startingOffsets": {"t": {"0": 1}}},
            "option startingOffsets names t-0, which is not assigned",
        ),
        (
            {"startingOffsets": {"t": {"7": 1}}},
            "option startingOffsets names t-7, and topic 't' has 2 partitions (0 to 1)",
        ),
        ({"endingOffsetsByTimestamp": {"t": {"7": 1}}}, "option endingOffsetsByTimestamp names t-7, and topic 't' has"),
        ({"subscribePattern": "t", "startingOffsets": {"tt": "earliest"}}, "names 'tt', and there is no such topic"),
    ],
)
def test_a_position_for_what_is_not_read_is_refused(
    filled: spark_log.Log, options: dict[str, Any], expected: str
) -> None:
    """Otherwise it would be ignored without notice."""
    with pytest.raises(InvalidRequest) as error:
        covered(filled, **options)
    assert expected in str(error.value)


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


def test_trimmed_records_are_a_loss_only_where_they_are_asked_for(
    spark: SparkSession, url: str, filled: spark_log.Log
) -> None:
    """earliest begins behind the trim; a number before it fails, or continues with failOnDataLoss=false."""
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


@pytest.mark.parametrize("name", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingTimestamp"])
@pytest.mark.parametrize("time", [-1, -2, "-1"])
def test_a_time_below_zero_is_refused(name: str, time: object) -> None:
    """Kafka's connector refuses them, too: -1 and -2 are positions, and with times all records would be read."""
    given = str(time) if name == "startingTimestamp" else json.dumps({"t": {"0": time}})
    with pytest.raises(InvalidRequest, match="is below 0: give the end and the start with startingOffsets"):
        read_options({"subscribe": "t", "path": "/tmp/x", name.lower(): given}, streaming=False)


def test_a_time_before_1970_is_a_text() -> None:
    """Records may be that old."""
    given = {"subscribe": "t", "path": "/tmp/x", "startingtimestamp": "1969-12-31T23:59:59Z"}
    assert read_options(given, streaming=False).start.default == AtTime(-1000)
