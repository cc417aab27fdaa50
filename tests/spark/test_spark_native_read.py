"""Reads in the JVM: the same rows and errors as through Python, and which reads are left to Python."""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.native.plan import PIECE, NativePlanner
from pyspark_pylog.options.parse import Location, read_options
from pyspark_pylog.source.native_task import ErasureLook, PinnedTask, read_rest, rest_of
from pyspark_pylog.source.task_erasures import LOOK_MS

import spark_log
from spark_log import NewTopic
from spark_log.maintenance.maintain import maintain_once
from tests.spark.builders import asked, load, texts
from tests.spark.native_paths import MARKS, counter, is_native, of_both, rows
from tests.thinning import thin

pytestmark = MARKS
KEYS = 5
LARGE = {"max.message.bytes": str(10 << 20)}


@pytest.fixture
def left(classic: SparkSession) -> Callable[[], int]:
    """How many tasks Python has read since the last call."""
    return counter(classic)


def record(rng: random.Random, number: int, headers: bool) -> dict[str, Any]:
    """A record with a null here and there, and now and then a large value."""
    size = rng.choice([0, 1, 20, 20, 20, 500, 70_000 if rng.random() < 0.05 else 3])
    one: dict[str, Any] = {
        "key": rng.choice([None, b"", b"k%d" % (number % KEYS), b"k%d" % number]),
        "value": rng.choice([None, b"v%d" % number + rng.randbytes(size), b"same" * size]),
        "timestamp": 1_700_000_000_000 + rng.randrange(-5_000, 5_000),
    }
    if headers:
        one["headers"] = [("h", b"x")] * rng.randrange(3)
    return one


def append_randomly(log: spark_log.Log, topic: str, rng: random.Random, commits: int) -> None:
    for _ in range(commits):
        count, headers = rng.choice([1, 2, 30, 30, 400]), rng.random() < 0.3
        log.append(topic, [record(rng, number, headers) for number in range(count)])


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
def test_random_logs_have_the_same_rows(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int], codec: str, time_type: str
) -> None:
    """After appends, with holes, after an erasure, and after merges; none of it is left to Python."""
    rng = random.Random(f"{codec}-{time_type}")
    configs = {"compression.type": codec, "message.timestamp.type": time_type, "retention.ms": "-1"}
    log.create_topic(NewTopic("t", 2, configs=configs))
    append_randomly(log, "t", rng, 12)
    native, python = of_both(classic, url, includeHeaders="true")
    assert native == python != []
    if time_type == "CreateTime":
        thin(log, "t", lambda offset: offset % 3 != 1, first=0, last=4, batch_rows=7)
        thin(log, "t", lambda offset: offset % 50 == 9, partition=1, first=1, last=3)
    log.admin.erase_records("t", ["k1"])
    append_randomly(log, "t", rng, 3)
    before, after = of_both(classic, url, minPartitions="7", includeHeaders="true")
    assert before == after != native
    for frame, other in zip(*(_queries(classic, url, native=n) for n in ("true", "false")), strict=True):
        assert rows(frame) == rows(other)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    maintain_once(log)
    merged, expected = of_both(classic, url, maxRecordsPerPartition="100", includeHeaders="true")
    assert merged == expected == before
    assert left() == 0


def _queries(spark: SparkSession, url: str, native: str) -> Iterator[DataFrame]:
    frame = load(spark, url, nativeRead=native)
    yield frame.where("offset >= 20 and offset < 90 and partition = 0")
    yield frame.where("timestamp >= timestamp'2023-11-14 22:13:20' and timestamp < timestamp'2023-11-14 22:13:21'")
    yield frame.where("offset in (3, 40, 41) or key is null").select("key", "offset")
    yield frame.select("timestampType", "topic", "timestamp")
    yield frame.groupBy("partition").count()
    yield frame.join(frame.where("offset < 30"), ["partition", "offset"]).selectExpr("count(*)")


# Promise: spark-read.md#read-in-the-jvm
def test_large_slices_and_large_records(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int]
) -> None:
    """Slices of many batches are read by their index, in parts too; a value may be larger than a batch."""
    log.create_topic(NewTopic("t", 1, configs=LARGE))
    rng = random.Random(3)
    numbers = range(30_000)
    log.append("t", pa.table({"value": pa.array([rng.randbytes(200) for _ in numbers], pa.binary())}))
    log.append("t", [{"value": rng.randbytes(9 << 20)}, {"value": b"small"}])
    for options in ({}, {"minPartitions": "5"}):
        frame, other = (
            load(classic, url, nativeRead=native, **options).selectExpr("offset", "sha2(value, 256)")
            for native in ("true", "false")
        )
        assert rows(frame) == rows(other)
    assert left() == 0


# Promise: spark-read.md#read-in-the-jvm
def test_a_frame_that_is_run_again_sees_added_records(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int]
) -> None:
    """Its tasks were planned for its first query; Python agrees on a version for the second one."""
    log.append("t", texts(3))
    frame = load(classic, url).select("offset")
    assert len(frame.collect()) == 3
    assert left() == 0
    log.append("t", texts(2))
    assert len(frame.collect()) == 5
    assert left() > 0
    assert frame.rdd.count() == 5
    frame.cache()
    assert frame.count() == 5


# Promise: spark-read.md#read-in-the-jvm
def test_a_self_join_reads_one_version(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    """Also if Python reads one side."""
    log.append("t", texts(30))
    stop = threading.Event()

    def appending() -> None:
        while not stop.wait(0.05):  # a task that begins many commits later could not read the same version
            log.append("t", texts(1))

    thread = threading.Thread(target=appending)
    thread.start()
    try:
        for native in ("true", "false", "true", "false"):
            one = load(classic, url).select("offset")
            other = load(classic, url, nativeRead=native).select("offset", "value")
            joined = one.join(other.hint("shuffle_merge"), "offset", "full_outer").where("value is null")
            assert joined.count() == 0
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "positions",
    [
        {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":25}}'},
        {"startingOffsets": "latest-7"},
        {"startingTimestamp": "1700000000010", "endingTimestamp": "1700000000020"},
    ],
    ids=str,
)
def test_loads_with_any_positions(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int], positions: Mapping[str, str]
) -> None:
    """They are planned once for all queries of their frame."""
    log.append("t", [{"value": b"%d" % n, "timestamp": 1_700_000_000_000 + n} for n in range(30)])
    log.create_topic(NewTopic("u", 1))
    native, python = of_both(classic, url, **positions)
    assert native == python != []
    frame = load(classic, url, **positions)
    found = rows(frame.select("offset"))
    log.append("t", [{"value": b"x", "timestamp": 1_700_000_000_015}])
    added = rows(frame.select("offset"))
    assert added == found if any("ending" in name for name in positions) else len(added) == len(found) + 1
    assert left() == 0


def objects_of(log: spark_log.Log, topic: str = "t") -> list[Path]:
    root = Path(log.url.removeprefix("file://"))
    return [root / read.slice.object for read in log.plan(topic)]


def errors_of_both(spark: SparkSession, url: str, change: Callable[[], object]) -> list[str]:
    """The error of a query whose frame was planned before a change, by both readers."""
    frames = [load(spark, url, nativeRead=native).select("value") for native in ("true", "false")]
    for frame in frames:
        frame._jdf.queryExecution().executedPlan().execute().partitions()  # type: ignore[operator]
    change()
    found = []
    for frame in frames:
        with pytest.raises(PySparkException) as error:
            frame.collect()
        found.append(next(line for line in str(error.value).splitlines() if "spark_log.errors" in line))
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.parametrize("records", [3, 30_000])
def test_a_damaged_object_is_the_same_error(classic: SparkSession, url: str, log: spark_log.Log, records: int) -> None:
    """Of a slice that is read whole, and of one that is read by its index."""
    rng = random.Random(1)
    log.append("t", pa.table({"value": pa.array([rng.randbytes(200) for _ in range(records)], pa.binary())}))
    (path,) = objects_of(log)
    errors = errors_of_both(classic, url, lambda: flip(path, path.stat().st_size // 2 if records > 3 else 500))
    assert errors[0] == errors[1]
    assert "CorruptObject" in errors[0]


# Promise: spark-read.md#read-in-the-jvm
def test_a_damaged_index_is_the_same_error(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    rng = random.Random(1)
    log.append("t", pa.table({"value": pa.array([rng.randbytes(200) for _ in range(30_000)], pa.binary())}))
    (path,) = objects_of(log)
    errors = errors_of_both(classic, url, lambda: flip(path, path.stat().st_size - 100))
    assert errors[0] == errors[1]
    assert "the index" in errors[0]


# Promise: spark-read.md#read-in-the-jvm
def test_an_object_that_is_gone_is_the_same_error(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    log.append("t", texts(3))
    (path,) = objects_of(log)
    errors = errors_of_both(classic, url, path.unlink)
    assert errors[0] == errors[1]
    assert path.name in errors[0]


# Promise: spark-read.md#read-in-the-jvm
def test_an_object_that_was_replaced_is_found(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int]
) -> None:
    """Python plans the rest of a task again."""
    for first in range(0, 30, 10):
        log.append("t", texts(10, first=first))
    frame = load(classic, url).select("offset", "value")
    native = load(classic, url, nativeRead="true").select("offset", "value")
    for one in (frame, native):
        one._jdf.queryExecution().executedPlan().execute().partitions()  # type: ignore[operator]
    (_, second, _) = objects_of(log)
    thin(log, "t", lambda offset: True, first=1, last=3)
    second.unlink()
    left()
    assert [(row.offset, int(row.value)) for row in sorted(frame.collect())] == [(n, n) for n in range(30)]
    assert left() > 0


# Promise: spark-read.md#read-in-the-jvm
def test_records_that_are_erased_while_a_query_runs_are_not_read(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """Values are so large that Spark reads few of them ahead."""
    gate, count = tmp_path / "gate", 12
    log.create_topic(NewTopic("t", 1, configs=LARGE))
    for number in range(count):
        log.append("t", [{"key": b"k%d" % (number % 2), "value": bytes(4 << 20)}])
    path = str(gate)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while not os.path.exists(path):
                time.sleep(0.05)
            yield batch.select(["offset"])

    frame = load(classic, url, parallelism="1", nativeRead="true").select("offset", "value")
    assert is_native(frame)
    before = classic.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    classic.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    found: list[int] = []
    query = threading.Thread(
        target=lambda: found.extend(row.offset for row in frame.mapInArrow(wait, "offset bigint").collect())
    )
    try:
        query.start()
        time.sleep(3)  # nothing depends on what the query has read by now
        log.admin.erase_records("t", ["k1"])
        time.sleep(2 * LOOK_MS / 1000)
        gate.touch()
        query.join()
    finally:
        classic.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(before))
    assert [n for n in range(count) if n % 2 == 0] == [n for n in found if n % 2 == 0]
    assert count - 1 not in found


def test_the_look_for_erasures(url: str, log: spark_log.Log) -> None:
    log.append("t", [{"key": b"k%d" % n, "value": b"v"} for n in range(3)])
    planned = planned_log(Location(url=url, storage={}), journal_of(Location(url=url, storage={})))
    task = pickle.dumps(PinnedTask(planned, log.plan("t"), None, {}, 0))
    schema, options = pa.schema([("offset", pa.int64())]), read_options(asked(url), streaming=False)
    look = rest_of(task, -1, 0)
    assert isinstance(look, ErasureLook)
    assert list(read_rest(look, schema, options)) == []
    rest = rest_of(task, 0, 2)
    assert isinstance(rest, PinnedTask)
    (batch,) = read_rest(rest, schema, options)
    assert batch.to_pydict() == {"offset": [2]}
    log.admin.erase_records("t", ["k1"])
    time.sleep(LOOK_MS / 1000)
    (found,) = read_rest(look, schema, options)
    assert found.num_rows == 1


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.parametrize(
    "options",
    [
        {"view": "latest"},
        {"where": "offset in (0, 2)"},
        {"nativeRead": "false"},
        {"pushDown": "false"},
    ],
    ids=str,
)
def test_what_is_left_to_python(
    classic: SparkSession, url: str, log: spark_log.Log, options: Mapping[str, str]
) -> None:
    log.append("t", [{"key": b"k%d" % n, "value": b"v"} for n in range(3)])
    frame = load(classic, url, **options)
    assert not is_native(frame)
    assert frame.count() >= 2


def test_other_topics_and_columns_are_left_to_python(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    log.admin.create_topics([NewTopic("typed", 1, schema="id INT"), NewTopic("t", 1)])
    log.append("typed", [{"id": 1}])
    log.append("t", texts(2))
    json = load(classic, url, "typed", **{"value.format": "json"})
    assert not is_native(json)
    assert [bytes(row.value) for row in json.select("value").collect()] == [b'{"id":1}']
    not_null = classic.read.format("pylog").schema("value binary NOT NULL").option("subscribe", "t").load(url)
    assert not is_native(not_null)
    assert not_null.count() == 2


def test_an_invalid_setting_is_named(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    log.append("t", texts(1))
    classic.conf.set("spark.pylog.nativeRead", "maybe")
    try:
        with pytest.raises(PySparkException, match="setting spark.pylog.nativeRead: 'maybe' is not true or false"):
            load(classic, url).count()
    finally:
        classic.conf.set("spark.pylog.nativeRead", "true")


def test_the_planner_answers_whatever_it_is_asked() -> None:
    """Python reads what it does not understand."""
    planner = NativePlanner()
    for request in (b"", b"\0\0\0\5check", zlib.compress(b"\0\0\0\5check")):
        for first in (b"", PIECE.pack(1, False), PIECE.pack(1, True)):
            assert planner.apply(first + request) is None


# Promise: spark-read.md#read-in-the-jvm
def test_a_long_request_is_given_in_pieces(
    classic: SparkSession, url: str, log: spark_log.Log, left: Callable[[], int]
) -> None:
    """Options of random bytes, and many tasks; also a request that is given whole."""
    log.create_topic(NewTopic("t", 20))
    log.append("t", [{"key": b"%d" % number, "value": b"%d" % number} for number in range(400)])
    for size in (0, 5_900, 6_000, 12_000, 600_000):
        unused = {"kafka.client.id": random.Random(size).randbytes(size // 2).hex()}
        frame = load(classic, url, minPartitions="40", **unused)
        assert is_native(frame)
        assert frame.count() == 400
    assert left() == 0
