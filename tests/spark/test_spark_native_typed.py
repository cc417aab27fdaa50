"""Reads of topics with schemas in the JVM: the same rows as through Python, and which values are left to Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_log
from spark_log import NewTopic
from spark_log.maintenance.maintain import maintain_once
from tests.spark.builders import load
from tests.spark.native_paths import MARKS, counter, is_native, of_both, rows
from tests.thinning import thin

pytestmark = MARKS
SCHEMA = """
    flag BOOLEAN, tiny TINYINT, small SMALLINT, number INT, large BIGINT, single FLOAT, double DOUBLE, money DECIMAL(9, 2),
    huge DECIMAL(38, 10), text STRING, few STRING, some BINARY, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ,
    numbers ARRAY<INT>, things ARRAY<STRUCT<name: STRING, sizes: ARRAY<BIGINT>>>, words MAP<STRING, ARRAY<STRING>>,
    place STRUCT<x: DOUBLE, y: STRUCT<z: STRING, flags: ARRAY<BOOLEAN>>>, `key` STRING
"""
"""Each type that a column of a topic has."""
FIRST = datetime(2023, 11, 14, tzinfo=UTC)


@pytest.fixture
def left(classic: SparkSession) -> Callable[[], int]:
    """How many tasks Python has read since the last call."""
    return counter(classic)


def text(rng: random.Random) -> str:
    return rng.choice(["", "a", "ä€", "long " * 50, str(rng.random())])


def thing(rng: random.Random) -> dict[str, Any] | None:
    sizes = None if rng.random() < 0.2 else [rng.choice([None, 2**40]) for _ in range(rng.randrange(3))]
    return None if rng.random() < 0.1 else {"name": rng.choice([None, text(rng)]), "sizes": sizes}


def values(rng: random.Random) -> dict[str, Any]:
    """A value for each column."""
    seconds = timedelta(seconds=rng.randrange(10**6), microseconds=rng.randrange(10**6))
    inner = rng.choice([None, {"z": text(rng), "flags": rng.choice([None, [], [True, None, False]])}])
    return {
        "flag": rng.random() < 0.5,
        "tiny": rng.randrange(-128, 128),
        "small": rng.randrange(-(2**15), 2**15),
        "number": rng.randrange(-(2**31), 2**31),
        "large": rng.randrange(-(2**63), 2**63),
        "single": rng.choice([0.5, float("inf"), -0.0]),
        "double": rng.choice([rng.random(), float("nan")]),
        "money": Decimal(rng.randrange(-(10**9) + 1, 10**9)) / 100,
        "huge": Decimal(rng.randrange(10**20)) / 10**10,
        "text": text(rng),
        "few": rng.choice(["", "ä", "DE", "a longer one"]),
        "some": rng.randbytes(rng.randrange(4)),
        "day": date(1900, 1, 1) + timedelta(days=rng.randrange(90_000)),
        "at": FIRST + seconds,
        "wall": (FIRST + seconds).replace(tzinfo=None),
        "numbers": [rng.choice([None, 1, -7]) for _ in range(rng.randrange(4))],
        "things": [thing(rng) for _ in range(rng.randrange(3))],
        "words": {word: rng.choice([None, [], ["x", None]]) for word in rng.sample(["a", "b", ""], rng.randrange(3))},
        "place": {"x": rng.choice([None, rng.random()]), "y": inner},
        "value.key": text(rng),
    }


def record(rng: random.Random, number: int) -> dict[str, Any]:
    """With a null here and there."""
    found = {name: None if rng.random() < 0.15 else value for name, value in values(rng).items()}
    return {"key": b"k%d" % (number % 5), "headers": [("h", b"x")] * rng.randrange(3), **found}


def append_randomly(log: spark_log.Log, rng: random.Random, commits: int) -> None:
    """With tombstones."""
    for _ in range(commits):
        count = rng.choice([1, 30, 400])
        log.append("t", [record(rng, number) for number in range(count)])
        log.append("t", [{"key": b"k%d" % rng.randrange(5), "value": None}])


def both(spark: SparkSession, url: str, **options: Any) -> list[str]:
    """The rows of both paths, which are the same."""
    native, python = of_both(spark, url, **options)
    assert native == python != []
    return native


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
def test_random_typed_logs_have_the_same_rows(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int], codec: str
) -> None:
    """Columns of all types, after appends, with holes, after an erasure and merges; nothing is left to Python."""
    rng = random.Random(codec)
    configs = {"compression.type": codec, "retention.ms": "-1"}
    log.create_topic(NewTopic("t", 2, configs, schema=SCHEMA))
    append_randomly(log, rng, 8)
    both(classic, url, includeHeaders="true")
    thin(log, "t", lambda offset: offset % 3 != 1, first=0, last=4, batch_rows=7)
    log.admin.erase_records("t", ["k1"])
    append_randomly(log, rng, 2)
    struct = both(classic, url, **{"value.format": "struct", "minPartitions": "7"})
    for frame, other in zip(*(_queries(classic, url, native=n) for n in ("true", "false")), strict=True):
        assert rows(frame) == rows(other)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    maintain_once(log)
    assert both(classic, url, **{"value.format": "struct", "maxRecordsPerPartition": "100"}) == struct
    assert left() == 0


def _queries(spark: SparkSession, url: str, native: str) -> Iterator[DataFrame]:
    frame = load(spark, url, nativeRead=native)
    struct = load(spark, url, nativeRead=native, **{"value.format": "struct"})
    assert is_native(frame) == is_native(struct) == (native == "true")
    yield frame.select("few", "`value.key`", "KEY")
    yield frame.where("large > 0 and day < date'1950-01-01' or few = 'DE'").select("offset", "large", "things.name")
    yield frame.groupBy("few", "flag").count()
    yield frame.select("key", "offset", "timestamp")
    yield struct.select("value.few", "value.place.y.z", "value.words")
    yield struct.where("value.number < 0 and value is not null").select("offset", "value.number")
    yield struct.where("value is null").select("offset", "key")


# Promise: spark-read.md#read-in-the-jvm
def test_columns_that_came_later_are_null(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int]
) -> None:
    """A column whose type has changed is left to Python, which converts it."""
    log.create_topic(NewTopic("t", 1, schema="id INT, text STRING"))
    log.append("t", [{"id": n, "text": "a"} for n in range(3)])
    log.admin.alter_schema("t", "id INT, text STRING, note STRING, inner STRUCT<a: INT>")
    log.append("t", [{"id": n, "text": "b", "note": "x", "inner": {"a": n}} for n in range(3)])
    both(classic, url)
    both(classic, url, **{"value.format": "struct"})
    assert left() == 0
    log.admin.alter_schema("t", "id BIGINT, text STRING, note STRING, inner STRUCT<a: INT, b: INT>")
    log.append("t", [{"id": 2**40, "inner": {"a": 1, "b": 2}}])
    both(classic, url)
    both(classic, url, **{"value.format": "struct"})
    both(classic, url, columns="note, text")
    assert left() > 0


# Promise: spark-read.md#read-in-the-jvm
def test_bytes_from_before_the_schema_are_left_to_python(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int]
) -> None:
    log.append("t", [{"key": b"k", "value": b'{"id": 7, "many": [1, null], "inner": {"a": "x"}, "of": {"k": 1.5}}'}])
    log.admin.alter_schema("t", "id INT, many ARRAY<INT>, inner STRUCT<a: STRING>, of MAP<STRING, DOUBLE>")
    log.append("t", [{"id": 8, "many": [3]}])
    found = both(classic, url, **{"value.parse": "json"})
    assert len(found) == 2
    assert "id=7, many=[1, None]" in found[1]
    both(classic, url, **{"value.parse": "json", "value.format": "struct"})
    assert left() > 0
