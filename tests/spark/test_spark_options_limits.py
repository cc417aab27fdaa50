"""Limits, splitting, patience, and options without effect."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark_pylog.log.open_log import patiently
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.source.batch import LogReader
from pyspark_pylog.source.read_task import ReadTask
from pyspark_pylog.source.splits import task_bytes

import spark_log
from simulation.harness.clocks import ManualClock
from spark_log import NewTopic
from spark_log.errors import InvalidRequest, StorageUnavailable
from tests.logged import logged
from tests.spark.builders import asked, load, texts
from tests.spark.driver import SCHEMA, Stream

MIB = 1 << 20


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"minPartitions": "0"}, "option minPartitions: '0' is not 1 or more"),
        ({"minPartitions": "1.5"}, "option minPartitions: '1.5' is not a whole number"),
        ({"minPartitions": "-1"}, "option minPartitions: '-1' is not a whole number"),
        ({"maxRecordsPerPartition": "0"}, "option maxRecordsPerPartition: '0' is not 1 or more"),
        ({"maxRecordsPerPartition": "few"}, "option maxRecordsPerPartition: 'few' is not a whole number"),
        ({"maxBytesPerPartition": "1 house"}, "option maxBytesPerPartition: '1 house' is not a size"),
        ({"parallelism": "0"}, "option parallelism: '0' is not 1 or more"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger: '0' is not 1 or more"),
        ({"minOffsetsPerTrigger": "x"}, "option minOffsetsPerTrigger: 'x' is not a whole number"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
         "option minOffsetsPerTrigger: 9 is more than maxOffsetsPerTrigger, 8"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay: 'soon' is not a duration"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss: 'yes' is not true or false"),
        ({"includeHeaders": "1"}, "option includeHeaders: '1' is not true or false"),
        ({"fetchOffset.numRetries": "0"}, "option fetchOffset.numRetries: '0' is not 1 or more"),
        ({"fetchOffset.numRetries": "often"}, "option fetchOffset.numRetries: 'often' is not a whole number"),
        ({"fetchOffset.retryIntervalMs": "1s"}, "option fetchOffset.retryIntervalMs: '1s' is not a whole number"),
        ({"kafkaConsumer.pollTimeoutMs": "long"}, "option kafkaConsumer.pollTimeoutMs: 'long' is not a whole number"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streaming", [False, True])
def test_a_value_that_cannot_be_is_refused_with_the_option(
    options: dict[str, str], expected: str, streaming: bool
) -> None:
    """In batches as in streams, whether or not it would have an effect."""
    with pytest.raises(InvalidRequest) as error:
        read_options(asked(**options), streaming=streaming)
    assert expected in str(error.value)


# Promise: from-kafka.md#option-by-option
@pytest.mark.parametrize(
    "option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"]
)
def test_a_limit_of_streams_is_told_to_have_no_effect_on_a_batch(option: str) -> None:
    """As with Kafka's connector; a stream gets no message."""
    (note,) = read_options(asked(**{option: "5"}), streaming=False).notes
    assert note == f"{option}: for streams; this batch reads all of its range, whatever the limits"
    assert read_options(asked(**{option: "5"}), streaming=True).notes == ()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kafkaConsumer.pollTimeoutMs": "9"}, "tasks read from the storage"),
        ({"groupIdPrefix": "x"}, "no consumer group"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_an_option_for_consumers_is_told_to_have_no_effect(
    options: dict[str, str], expected: str, streaming: bool
) -> None:
    """Never ignored without notice."""
    (note,) = read_options(asked(**options), streaming=streaming).notes
    assert note.startswith(f"{next(iter(options))}: without effect, ") and expected in note


def test_a_batch_warns_of_options_without_effect(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the driver's log for each."""
    log.append("t", texts(3))
    options = read_options(asked(url, groupIdPrefix="x", maxOffsetsPerTrigger=1), streaming=False)
    with caplog.at_level(logging.WARNING, "spark_log"):
        LogReader(options, SCHEMA).partitions()
    assert [message.split(":")[0] for message in logged(caplog, "option ")] == [
        "option maxOffsetsPerTrigger",
        "option groupIdPrefix",
    ]


def test_a_stream_warns_once_of_options_without_effect(
    url: str, log: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """However many batches it runs."""
    stream = Stream(url, groupIdPrefix="x")
    with caplog.at_level(logging.WARNING, "spark_log"):
        for _ in range(3):
            log.append("t", texts(1))
            stream.batch()
    assert logged(caplog, "option ") == ["option groupIdPrefix: without effect, tasks join no consumer group"]


# ------------------------------------------------------------------------------------------------------------- patience


class Mute:
    """A storage that does not answer so many times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked = 0

    def look(self) -> str:
        self.asked += 1
        if self.asked <= self.times:
            raise StorageUnavailable("no answer")
        return "seen"


# Promise: spark-read.md#options-of-a-read
def test_the_driver_asks_again_while_the_storage_does_not_answer() -> None:
    """fetchOffset.numRetries is the number of looks, with fetchOffset.retryIntervalMs in between."""
    options = read_options(asked(**{"fetchOffset.numRetries": 4, "fetchOffset.retryIntervalMs": 250}), streaming=True)
    storage, clock = Mute(3), ManualClock()
    before = clock.ms
    assert patiently(storage.look, options, clock) == "seen"
    assert (storage.asked, clock.ms - before) == (4, 750)


# Promise: spark-read.md#options-of-a-read
def test_the_driver_gives_up_after_the_last_look() -> None:
    """Three of them, a second apart, unless the options say otherwise; then the storage's own error."""
    storage, clock = Mute(99), ManualClock()
    before = clock.ms
    with pytest.raises(StorageUnavailable):
        patiently(storage.look, read_options(asked(), streaming=False), clock)
    assert (storage.asked, clock.ms - before) == (3, 2000)


# ------------------------------------------------------------------------------------------------------------ splitting


@pytest.mark.parametrize(
    ("total", "tasks", "most", "expected"),
    [
        (100 * MIB, 16, 32 * MIB, 100 * MIB // 16),
        (20 * MIB, 16, 32 * MIB, 2 * MIB),
        (5 * MIB, 2, 32 * MIB, 5 * MIB // 2),
        (1600 * MIB, 16, 32 * MIB, 25 * MIB),
        (400 * MIB, 16, 32 * MIB, 25 * MIB),
        (100 * MIB, 2, 32 * MIB, 25 * MIB),
        (132 * MIB, 2, 32 * MIB, 22 * MIB),
        (1 * MIB, 16, 32 * MIB, 2 * MIB),
        (100 * MIB, 16, 1 * MIB, 1 * MIB),
        (0, 16, 32 * MIB, 2 * MIB),
    ],
)
def test_a_task_reads_its_share_within_limits(total: int, tasks: int, most: int, expected: int) -> None:
    """No core idles over a large partition or in the last round, no task reads more than its limit, and none is too
    small to be worth it.
    """
    assert task_bytes(total, tasks, most) == expected


def large(log: spark_log.Log) -> None:
    """24 MB in one partition."""
    log.append("t", [{"value": b"%06d" % n * 10_000} for n in range(400)], compression="none")


@pytest.mark.parametrize(("parallelism", "tasks"), [(1, 1), (2, 2), (16, 12)])
def test_a_large_partition_is_cut_for_as_many_tasks_as_run_at_once(
    url: str, log: spark_log.Log, parallelism: int, tasks: int
) -> None:
    """Of 2 MiB at least."""
    large(log)
    reader = LogReader(read_options(asked(url, parallelism=parallelism), streaming=False), SCHEMA)
    assert sum(bool(task.reads) for task in reader.partitions() if isinstance(task, ReadTask)) == tasks


def test_a_micro_batch_is_cut_as_a_batch_is(url: str, log: spark_log.Log) -> None:
    """By bytes, for as many tasks as run at the same time."""
    large(log)
    stream = Stream(url, parallelism=2)
    start = stream.reader.initialOffset()
    end = stream.reader.latestOffset(start, stream.reader.getDefaultReadLimit())
    assert len(stream.reader.partitions(start, end)) == 2


def tasks_of(frame: DataFrame) -> int:
    """How many tasks had rows."""
    return frame.select(F.spark_partition_id()).distinct().count()


# Promise: from-kafka.md#what-differs
@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 1), ({"minPartitions": 4}, 4), ({"maxRecordsPerPartition": 3}, 8)],
    ids=["by bytes", "minPartitions", "maxRecordsPerPartition"],
)
def test_a_read_with_open_ends_is_split_and_sees_new_rows(
    spark: SparkSession, url: str, log: spark_log.Log, options: dict[str, Any], tasks: int
) -> None:
    """Each row is read once, also those that came after load()."""
    log.admin.create_topics([NewTopic("t", 2)])
    log.append("t", [{"value": str(n), "partition": n % 2} for n in range(20)])
    frame = load(spark, url, **options)
    assert tasks_of(frame) == tasks
    log.append("t", [{"value": str(n), "partition": n % 2} for n in range(20, 30)])
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(30))


# Promise: spark-read.md#options-of-a-read
def test_max_bytes_per_partition_splits_by_bytes(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """A large commit is cut inside."""
    log.append("t", [{"value": b"%06d" % n * 100} for n in range(2000)], compression="none")
    frame = load(spark, url, maxBytesPerPartition="300k")
    sizes = [row["count"] for row in frame.groupBy(F.spark_partition_id()).count().collect()]
    assert 3 <= len(sizes) <= 6 and sum(sizes) == 2000
    assert max(sizes) < 2 * min(sizes)
