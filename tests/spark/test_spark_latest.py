"""The latest record of each key: `view=latest` of a batch, and `startingOffsets=latest-per-key` of a stream."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pyspark.sql import DataFrame, SparkSession

import spark_log
from spark_log import NewTopic
from spark_log.errors import ConcurrentChange
from tests.spark.builders import Batches, load, load_stream, to_sink
from tests.spark.driver import Stream, rows
from tests.thinning import thin

Rows = list[dict[str, Any]]


def changes(count: int, keys: int, seed: int = 1, partition: int | None = None) -> Rows:
    """Records of a changelog: a tenth are deletions, and some have no key."""
    rng = random.Random(seed)
    found: Rows = []
    for number in range(count):
        key = None if rng.random() < 0.02 else b"k%d" % rng.randrange(keys)
        value = None if rng.random() < 0.1 else b"%d" % number
        found.append({"key": key, "value": value} | ({} if partition is None else {"partition": partition}))
    return found


def latest(records: Rows, first: int = 0, end: int | None = None) -> list[int]:
    """Offsets of the latest records of a partition, from an offset on."""
    newest = {row["key"]: (offset, row["value"]) for offset, row in enumerate(records[:end])}
    kept = (offset for key, (offset, value) in newest.items() if key is not None and value is not None)
    return sorted(offset for offset in kept if offset >= first)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


@pytest.fixture
def records(log: spark_log.Log) -> Rows:
    """Of partition 0 of the topic t, in 20 commits."""
    log.create_topic(NewTopic("t", 1))
    found = changes(200, keys=30)
    for first in range(0, 200, 10):
        log.append("t", found[first : first + 10])
    return found


# ------------------------------------------------------------------------------------------------------------- batches


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_batch_has_the_latest_record_of_each_key(
    spark: SparkSession, url: str, log: spark_log.Log, records: Rows
) -> None:
    """All columns as in other reads; a projection, a count and a filter of Spark as well."""
    frame = load(spark, url, view="latest", includeHeaders=True)
    assert sorted((row.offset, bytes(row.key), bytes(row.value)) for row in frame.collect()) == [
        (offset, records[offset]["key"], records[offset]["value"]) for offset in latest(records)
    ]
    assert frame.columns == load(spark, url, includeHeaders=True).columns
    assert frame.count() == len(latest(records))
    assert offsets(frame.where("offset >= 150")) == latest(records, 150)
    keys = spark.read.format("pylog").schema("key binary").option("subscribe", "t").option("view", "latest").load(url)
    assert sorted(bytes(row.key) for row in keys.collect()) == sorted(records[o]["key"] for o in latest(records))


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_frame_shows_the_table_as_of_each_query(
    spark: SparkSession, url: str, log: spark_log.Log, records: Rows
) -> None:
    """Records and partitions that are added after `load()` count in later queries."""
    frame = load(spark, url, view="latest")
    assert offsets(frame) == latest(records)
    more = changes(50, keys=40, seed=2)
    log.append("t", more)
    assert offsets(frame) == latest(records + more)
    log.admin.create_partitions({"t": 2})
    log.append("t", [{"key": b"new", "value": b"", "partition": 1}])
    assert sorted((row.partition, row.offset) for row in frame.collect()) == [
        *((0, offset) for offset in latest(records + more)),
        (1, 0),
    ]


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_join_of_two_views_is_of_one_version(
    spark: SparkSession, url: str, log: spark_log.Log, records: Rows
) -> None:
    """All scans of a query read the version that it pins."""
    left, right = load(spark, url, view="latest"), load(spark, url, view="latest")
    log.append("t", changes(50, keys=40, seed=2))
    joined = left.alias("a").join(right.alias("b"), "offset", "full_outer")
    assert joined.where("a.key is null or b.key is null").count() == 0


# Promise: spark-read.md#the-latest-record-of-each-key
@pytest.mark.parametrize("bounds", [(0, 200), (0, 57), (40, 120), (199, 200), (60, 60)])
def test_bounds_of_a_view(
    spark: SparkSession, url: str, log: spark_log.Log, records: Rows, bounds: tuple[int, int]
) -> None:
    """The end is the table at that offset; the start leaves out keys that have not changed since."""
    start, end = bounds
    frame = load(
        spark,
        url,
        view="latest",
        startingOffsets=json.dumps({"t": {"0": start}}),
        endingOffsets=json.dumps({"t": {"0": end}}),
    )
    assert offsets(frame) == latest(records, start, end)
    log.append("t", changes(50, keys=40, seed=2))
    assert offsets(frame) == latest(records, start, end)


# Promise: spark-read.md#the-latest-record-of-each-key
@pytest.mark.parametrize(
    ("where", "low", "high"),
    [("offset >= 150", 150, 200), ("offset < 100", 0, 100), ("offset between 50 and 160", 50, 161)],
)
def test_a_condition_chooses_among_the_latest(
    spark: SparkSession, url: str, records: Rows, where: str, low: int, high: int
) -> None:
    """As a filter of Spark does: an older record never takes the place of one that does not match."""
    frame = load(spark, url, view="latest", where=where)
    assert offsets(frame) == [offset for offset in latest(records) if low <= offset < high]
    assert offsets(frame) == offsets(load(spark, url, view="latest").where(where))


def test_a_view_of_a_thinned_topic(spark: SparkSession, url: str, log: spark_log.Log, records: Rows) -> None:
    """A topic has the same view after compaction."""
    before = offsets(load(spark, url, view="latest"))
    newest = {row["key"]: offset for offset, row in enumerate(records)}
    thin(log, "t", {*newest.values(), *range(3, 200, 7)}.__contains__)
    assert offsets(load(spark, url, view="latest")) == before == latest(records)


def test_a_frame_planned_before_a_compaction(spark: SparkSession, url: str, log: spark_log.Log, records: Rows) -> None:
    """A query reads the objects of the version that it pins, not those of the plan."""
    end = json.dumps({"t": {"0": 200}})
    frame = load(spark, url, view="latest", endingOffsets=end)
    planned = {read.slice.object for read in log.plan("t")}
    thin(log, "t", set(latest(records)).__contains__)
    log.journal.objects.delete(planned)
    assert offsets(frame) == latest(records)


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_large_partition_is_read_by_several_tasks(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Each record once, by one of them."""
    log.create_topic(NewTopic("t", 1, {"compression.type": "none"}))
    rng = random.Random(1)
    for _ in range(6):
        log.append("t", [{"key": b"%d" % rng.randrange(900), "value": rng.randbytes(4000)} for _ in range(300)])
    frame = load(spark, url, view="latest", parallelism=3)
    keys = [row["key"] for row in log.read("t", columns=["key"]).to_pylist()]
    assert offsets(frame) == sorted({key: offset for offset, key in enumerate(keys)}.values())
    assert frame.selectExpr("spark_partition_id() id").distinct().count() == 3


# Promise: spark-read.md#the-latest-record-of-each-key
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"view": "table"}, "option view: 'table' is not one of latest"),
        ({"view": "latest", "minPartitions": 7}, "option minPartitions: a view has few tasks"),
        ({"view": "latest", "maxRecordsPerPartition": 7}, "option maxRecordsPerPartition: a view has few tasks"),
        ({"startingOffsets": "latest-per-key"}, "for a batch of the latest record of each key use view=latest"),
        ({"view": "latest", "endingOffsets": "latest-per-key"}, "is not a position"),
    ],
)
def test_options_that_a_view_cannot_have_are_refused(
    spark: SparkSession, url: str, records: Rows, options: dict[str, Any], expected: str
) -> None:
    """With the valid name, or what to use."""
    with pytest.raises(Exception, match=expected):
        load(spark, url, **options).count()


# Promise: spark-read.md#the-latest-record-of-each-key
@pytest.mark.parametrize(
    ("topic", "options", "expected"),
    [
        ("t", {"view": "latest"}, "option view is for batches; a stream begins with .* startingOffsets=latest-per-key"),
        ("__consumer_offsets", {"startingOffsets": "latest-per-key"}, "has no meaning for __consumer_offsets"),
        (
            "t",
            {"startingOffsets": "latest-per-key", "startingTimestamp": "0"},
            "option startingTimestamp: '0' contradicts startingOffsets=latest-per-key",
        ),
        (
            "t",
            {"startingOffsets": "latest-per-key", "startingOffsetsByTimestamp": '{"t":0}'},
            "option startingOffsetsByTimestamp: .* contradicts startingOffsets=latest-per-key",
        ),
    ],
)
def test_a_stream_that_cannot_have_a_view_is_refused(
    spark: SparkSession, url: str, records: Rows, tmp_path: Path, topic: str, options: dict[str, Any], expected: str
) -> None:
    """As soon as it runs."""
    with pytest.raises(Exception, match=expected):
        to_sink(load_stream(spark, url, topic, **options), Batches(), tmp_path / "checkpoint")


# ------------------------------------------------------------------------------------------------------------- streams


def of_stream(stream: Stream) -> list[int]:
    return [offset for _, offset in stream.run()]


# Promise: spark-read.md#the-latest-record-of-each-key
@pytest.mark.parametrize("trigger", ["default", "available-now", "once", "4.0"])
@pytest.mark.parametrize("limit", [1000, 37])
def test_a_stream_begins_with_the_latest_of_each_key(
    url: str, log: spark_log.Log, records: Rows, trigger: str, limit: int
) -> None:
    """Then all records that follow, deletions and records without a key too."""
    stream = Stream(url, startingOffsets="latest-per-key", maxOffsetsPerTrigger=limit).restart(trigger)
    assert of_stream(stream) == latest(records)
    log.append("t", changes(30, keys=30, seed=2))
    assert of_stream(stream.restart(trigger)) == list(range(200, 230))
    assert "@latest" not in stream.offsets[-1]


# Promise: spark-read.md#the-latest-record-of-each-key
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_changes_during_the_first_batches_come_after_them(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """With restarts, replayed batches and compaction in between, each record of the view comes once."""
    rng = random.Random(seed)
    url = str(tmp_path_factory.mktemp("log"))
    log = spark_log.connect(url, durability="os")
    log.create_topic(NewTopic("t", 2))
    both = [changes(rng.randint(0, 60), keys=10, seed=seed + number, partition=number) for number in (0, 1)]
    for part in both:
        if part:
            log.append("t", part)
    sizes = [len(part) for part in both]
    stream = Stream(url, startingOffsets="latest-per-key", maxOffsetsPerTrigger=rng.randint(5, 50))
    found: list[tuple[str, int]] = []
    while stream.plan():
        action = rng.randrange(5)
        if action == 0 and sum(map(len, both)) < 300:
            more = changes(
                rng.randint(1, 20), keys=10, seed=rng.randrange(1000), partition=(number := rng.randrange(2))
            )
            log.append("t", more)
            both[number] += more
        elif action == 1:
            stream.restart()
        elif action == 2:
            assert stream.read() == stream.read()
        found += stream.read()
    assert len(found) == len(set(found))
    for number, (size, part) in enumerate(zip(sizes, both, strict=True)):
        expected = [*latest(part[:size]), *range(size, len(part))]
        assert sorted(offset for tp, offset in found if tp == f"t-{number}") == expected


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_stream_of_a_topic_that_is_compacted_meanwhile(url: str, log: spark_log.Log, records: Rows) -> None:
    """A record that a later one replaced may be missing from the first batches: then the later one follows."""
    stream = Stream(url, startingOffsets="latest-per-key", maxOffsetsPerTrigger=50)
    found = [offset for _, offset in stream.batch() or ()]
    more = changes(40, keys=30, seed=2)
    log.append("t", more)
    thin(log, "t", set(latest(records + more)).__contains__)
    found += of_stream(stream)
    assert len(found) == len(set(found))
    whole = records + more
    newest = {whole[offset]["key"]: offset for offset in sorted(found)}
    assert {offset for key, offset in newest.items() if whole[offset]["value"] is not None} == set(latest(whole))


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_task_whose_objects_are_gone_fails_if_the_topic_is_compacted(
    url: str, log: spark_log.Log, records: Rows
) -> None:
    """Its plan was of one version, which cannot be read any more.  The next run plans the batch again."""
    with pytest.warns(UserWarning, match="records without a key"):
        log.admin.incremental_alter_configs({"t": {"cleanup.policy": "compact"}})
    stream = Stream(url, startingOffsets="latest-per-key")
    stream.plan()
    tasks, planned = stream.tasks(), {read.slice.object for read in log.plan("t")}
    thin(log, "t", set(latest(records)).__contains__)
    log.journal.objects.delete(planned)
    with pytest.raises(ConcurrentChange, match="t-0 was compacted while .* run the query again"):
        stream.read(tasks)
    assert [offset for _, offset in stream.restart().read()] == latest(records)


def test_a_merged_topic_is_read_by_the_plan(url: str, log: spark_log.Log, records: Rows) -> None:
    """Merging removes no record: tasks continue in the new objects."""
    stream = Stream(url, startingOffsets="latest-per-key")
    stream.plan()
    tasks, planned = stream.tasks(), {read.slice.object for read in log.plan("t")}
    thin(log, "t", lambda offset: True)
    log.journal.objects.delete(planned)
    assert [offset for _, offset in stream.read(tasks)] == latest(records)


def test_a_topic_created_again_is_read_whole(url: str, log: spark_log.Log, records: Rows) -> None:
    """The view that the stream began with was of the former topic."""
    stream = Stream(url, startingOffsets="latest-per-key", maxOffsetsPerTrigger=50, failOnDataLoss="false")
    assert stream.batch() is not None
    log.admin.delete_topics(["t"])
    log.create_topic(NewTopic("t", 1))
    log.append("t", [{"key": b"k", "value": b""}] * 3)
    assert stream.run() == rows("t-0", 0, 3)


# Promise: spark-read.md#the-latest-record-of-each-key
def test_a_group_with_offsets_continues_there(url: str, log: spark_log.Log, records: Rows) -> None:
    """With every record from there on; the view is for partitions without a committed offset."""
    first = Stream(url, startingOffsets="latest-per-key", **{"group.id": "g"})
    assert of_stream(first) == latest(records)
    first.reader.stop()
    log.admin.alter_consumer_group_offsets("g", {spark_log.TopicPartition("t", 0): 150})
    second = Stream(url, startingOffsets="latest-per-key", **{"group.id": "g"})
    assert second.run() == rows("t-0", 150, 200)
    second.reader.stop()


def test_spark_streams_the_latest_and_then_changes(
    spark: SparkSession, url: str, log: spark_log.Log, records: Rows, tmp_path: Path
) -> None:
    """Two available-now runs over one checkpoint, each in several micro-batches."""
    sink, options = Batches(), {"startingOffsets": "latest-per-key", "maxOffsetsPerTrigger": 60}
    frame = load_stream(spark, url, **options).where("value is not null")
    to_sink(frame, sink, tmp_path / "checkpoint")
    assert sorted(sink.rows) == latest(records)
    more = [{"key": b"k1", "value": b"%d" % number} for number in range(200, 210)]
    log.append("t", more)
    to_sink(load_stream(spark, url, **options).where("value is not null"), sink, tmp_path / "checkpoint")
    assert sorted(sink.rows) == [*latest(records), *range(200, 210)]
