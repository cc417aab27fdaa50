"""Streams that are read in the JVM: the same batches and errors as through Python, also across restarts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark_pylog.options.start_and_end import LATEST_PER_KEY

import spark_log
from spark_log import NewTopic
from spark_log.maintenance.maintain import maintain_once
from tests.spark.builders import DEADLINE_S, last_commit, load_stream, texts
from tests.spark.native_paths import MARKS, counter
from tests.thinning import thin

pytestmark = MARKS


@pytest.fixture
def left(classic: SparkSession) -> Callable[[], int]:
    """How many tasks Python has read since the last call."""
    return counter(classic)


class Query:
    """A query whose rows are kept by batch; a batch that is run again must have the same ones."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, **options: Any) -> None:
        self._spark, self._url, self._checkpoint = spark, url, checkpoint
        self._options = {"maxOffsetsPerTrigger": "200", "includeHeaders": "true", **options}
        self.batches: dict[int, list[str]] = {}
        self.natively: set[bool] = set()

    def run(self, **options: Any) -> None:
        """Up to the end of the log."""
        frame = load_stream(self._spark, self._url, **{**self._options, **options})
        writer = frame.writeStream.foreachBatch(self._take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        query.awaitTermination(DEADLINE_S)
        if query.lastProgress is not None:
            self.natively.add("natively" in query._jsq.explainInternal(False))  # type: ignore[attr-defined]

    def _take(self, batch: DataFrame, number: int) -> None:
        found = sorted(map(str, batch.collect()))
        assert self.batches.setdefault(number, found) == found

    @property
    def rows(self) -> list[str]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def record(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "key": rng.choice([None, b"k%d" % (number % 5)]),
        "value": rng.choice([None, b"v" * rng.randrange(300)]),
        "timestamp": 1_700_000_000_000 + rng.randrange(5_000),
        "headers": rng.choice([None, [], [("h", b"x"), ("h", None)]]),
    }


def append_randomly(log: spark_log.Log, rng: random.Random) -> None:
    for _ in range(rng.randrange(2, 6)):
        log.append("t", [record(rng, number) for number in range(rng.choice([1, 30, 400]))])


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.parametrize("seed", range(2))
def test_a_query_changes_its_path_across_restarts(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, left: Callable[[], int], seed: int
) -> None:
    """Over appends, holes, erasures and merges, also with a condition: its batches are those that Python reads."""
    rng = random.Random(seed)
    where = {"where": "timestamp >= '2023-11-14 22:13:21' and offset > 7", "timeZone": "UTC"} if seed else {}
    log.create_topic(NewTopic("t", 2, {"retention.ms": "-1"}))
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    changing = Query(classic, url, tmp_path / "changing", **where)
    python = Query(classic, url, tmp_path / "python", nativeRead="false", **where)
    for native in ("true", "false", "true", "false"):
        append_randomly(log, rng)
        thin(log, "t", lambda offset: offset % 3 != 1, partition=rng.randrange(2), first=-2)
        if rng.random() < 0.5:
            log.admin.erase_records("t", [b"k1"])
        if rng.random() < 0.5:
            maintain_once(log)
        changing.run(nativeRead=native)
        python.run()
        assert changing.rows == python.rows != []
    assert (changing.natively, python.natively) == ({True, False}, {False})
    assert left() == 0


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.parametrize("first", ["true", "false"])
def test_a_batch_that_is_run_again_by_the_other_path_has_the_same_rows(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, first: str
) -> None:
    """Spark runs a batch again whose commit it does not find; more records were added meanwhile."""
    log.append("t", texts(30))
    query = Query(classic, url, tmp_path / "checkpoint")
    query.run(nativeRead=first)
    last_commit(tmp_path / "checkpoint").unlink()
    log.append("t", texts(5))
    query.run(nativeRead="true" if first == "false" else "false")
    assert len(query.rows) == 35


def test_a_typed_stream_has_the_same_rows(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, left: Callable[[], int]
) -> None:
    """A row of another version of the schema is left to Python."""
    log.create_topic(NewTopic("t", 1, schema="id INT, tags ARRAY<STRING>, inner STRUCT<a: STRING>"))
    log.append("t", [{"id": n, "tags": ["x", None], "inner": {"a": "b"}} for n in range(300)])
    log.append("t", [{"key": "k", "value": None}])
    ways: Mapping[str, Mapping[str, Any]] = {"columns": {}, "struct": {"value.format": "struct"}}
    for name, options in ways.items():
        native = Query(classic, url, tmp_path / name, **options)
        python = Query(classic, url, tmp_path / f"{name}-python", nativeRead="false", **options)
        native.run()
        python.run()
        assert native.batches == python.batches
        assert len(native.rows) == 301
        assert (native.natively, python.natively) == ({True}, {False})
    assert left() == 0
    log.admin.alter_schema("t", "id BIGINT, tags ARRAY<STRING>, inner STRUCT<a: STRING>")
    log.append("t", [{"id": 7}])
    native.run()
    assert len(native.rows) == 302
    assert left() == 0  # the query's columns are those of its start


def test_a_damaged_object_is_the_same_error(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    log.append("t", texts(300))
    (read,) = log.plan("t")
    path = Path(log.url.removeprefix("file://")) / read.slice.object
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    found = []
    for native in ("true", "false"):
        with pytest.raises(PySparkException) as error:
            Query(classic, url, tmp_path / native, nativeRead=native).run()
        lines = str(error.value).splitlines()
        found.append(next(line.rpartition("spark_log.errors")[2] for line in lines if "spark_log.errors" in line))
    assert found[0] == found[1]
    assert "CorruptObject" in found[0]


@pytest.mark.parametrize("options", [{"where": "offset in (0, 2)"}, {"nativeRead": "false"}], ids=str)
def test_what_is_left_to_python(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, options: Mapping[str, str]
) -> None:
    log.append("t", [{"key": b"k%d" % n, "value": b"v"} for n in range(3)])
    query = Query(classic, url, tmp_path / "checkpoint", **options)
    query.run()
    assert query.natively == {False}
    assert len(query.rows) >= 2


def test_the_view_that_a_stream_begins_with_is_left_to_python(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path, left: Callable[[], int]
) -> None:
    """Later batches are read in the JVM."""
    log.append("t", [{"key": b"k%d" % (n % 3), "value": b"v"} for n in range(9)])
    query = Query(classic, url, tmp_path / "checkpoint", startingOffsets=LATEST_PER_KEY, maxOffsetsPerTrigger="9")
    query.run()
    assert len(query.rows) == 3
    assert left() > 0
    log.append("t", texts(4))
    query.run()
    assert len(query.rows) == 7
    assert left() == 0
    assert query.natively == {True}
