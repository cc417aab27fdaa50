"""Tasks that fail or run twice, jobs that are killed: nothing of theirs is ever visible."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark_pylog.sink.writer import batch_writer, stream_writer

import spark_log
from spark_log import TopicPartition
from spark_log.errors import InvalidRecord, SequenceConflict, StorageError
from spark_log.maintenance.maintain import maintain_once
from tests.logged import logged, records_of
from tests.spark.builders import (
    DEADLINE_S,
    append,
    as_bytes,
    copy,
    load,
    load_stream,
    script,
    texts,
    values,
    wait_until,
)
from tests.spark.driver import Frame, rows


# Promise: ../README.md#why
def test_a_task_that_fails_at_its_last_row_leaves_nothing(spark: SparkSession, url: str, log: spark_log.Log) -> None:
    """Nor do the tasks of the job that had no error."""
    log.append("t", texts(2))

    def fails_late(number: int) -> str:
        if number == 19_999:
            raise RuntimeError("the last row")
        return str(number)

    frame = spark.range(0, 20_000, 1, 2).select(F.udf(fails_late, useArrow=False)("id").alias("value"))
    with pytest.raises(Exception, match="the last row"):
        append(frame, url)
    assert load(spark, url).count() == 2
    append(spark.range(2, 5).selectExpr("string(id) as value"), url)
    assert values(load(spark, url)) == as_bytes(range(5))


JOB = """
import sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import functions as F
folder = Path(sys.argv[1])
spark = session("local[2,3]")
def fails_once(number):
    if number == 4_999 and TaskContext.get().attemptNumber() == 0:
        (folder / "failed").touch()
        raise RuntimeError("first attempt")
    return str(number)
def waits(number):
    if number == 1_999:
        (folder / "waiting").touch()
        time.sleep(600)
    return str(number)
def write(function, rows, log):
    frame = spark.range(0, rows, 1, 2).select(F.udf(function, useArrow=False)("id").alias("value"))
    frame.write.format("pylog").mode("append").option("topic", "t").save(str(folder / log))
write(fails_once, 5_000, "retried")
write(waits, 2_000, "killed")
"""


@pytest.fixture(scope="module")
def killed_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two logs.  A job wrote to `retried`, where one attempt of a task failed.  While it wrote to
    `killed`, it got SIGKILL, with one task done.
    """
    folder = tmp_path_factory.mktemp("killed-job")
    spark_log.connect(str(folder / "killed"), durability="os").append("t", texts(2))
    job = subprocess.Popen(
        [sys.executable, str(script(folder / "job.py", JOB)), str(folder)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until((folder / "waiting").exists)
        assert wait_until(lambda: len(list((folder / "killed" / "data").rglob("*.seg"))) >= 2)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return folder


@pytest.mark.slow
def test_an_attempt_that_is_made_again_lands_once(killed_job: Path) -> None:
    """No commit names the objects of the first attempt."""
    assert (killed_job / "failed").exists()
    found = spark_log.connect(str(killed_job / "retried")).read("t").column("value").to_pylist()
    assert sorted(found) == as_bytes(range(5_000))


# Promise: ../README.md#why, spark-streams.md#exactly-once
@pytest.mark.slow
def test_a_job_that_is_killed_leaves_nothing(killed_job: Path) -> None:
    """SIGKILL in the middle of a write, with one task done."""
    log = spark_log.connect(str(killed_job / "killed"))
    assert log.read("t").num_rows == 2
    log.append("t", texts(2, 2))
    assert log.read("t").column("value").to_pylist() == as_bytes(range(4))


SCHEMA = StructType().add("value", "string")
SCHEMA_OF_TOPICS = StructType().add("value", "string").add("topic", "string")


def batches(first: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"value": [str(number) for number in range(first, first + 3)]})]


# Promise: ../README.md#why
def test_of_speculative_twins_one_is_committed(url: str) -> None:
    """Two attempts of one partition write; Spark names one of them, and one is there."""
    writer = batch_writer({"path": url, "topic": "t"}, SCHEMA, overwrite=False)
    writer.write(iter(batches(0)))
    twin, other = writer.write(iter(batches(0))), writer.write(iter(batches(3)))
    writer.commit([twin, None, other])
    assert spark_log.connect(url).read("t").column("value").to_pylist() == as_bytes(range(6))


def test_a_commit_that_is_made_again_is_recognised(url: str) -> None:
    """With txnAppId also when another job makes it, with rows written again."""
    options = {"path": url, "topic": "t", "txnappid": "a", "txnversion": "1"}
    for _ in range(2):
        writer = batch_writer(options, SCHEMA, overwrite=False)
        message = writer.write(iter(batches(0)))
        writer.commit([message])
        writer.commit([message])
    assert spark_log.connect(url).read("t").num_rows == 3


# Promise: spark-streams.md#exactly-once
def test_a_version_that_is_skipped_is_a_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the rows name their topics; an older one whichever those are."""
    for version, topic in (("2", "a"), ("2", "a"), ("1", "b")):
        write_version(url, version, topic)
    log = spark_log.connect(url)
    assert log.read("a").num_rows == 2 and log.read("b").num_rows == 0
    assert [
        record.message.partition(":")[0] for record in records_of(caplog, "txnVersion") if record.levelname == "WARNING"
    ] == [
        "txnVersion 2 of application 'etl' is skipped, 2 rows not written",
        "txnVersion 1 of application 'etl' is skipped, 2 rows not written",
    ]


# Promise: spark-streams.md#exactly-once
def test_a_version_with_other_content_is_a_conflict(url: str) -> None:
    """Rows of other topics, or another number of rows: they would be lost.  A version counts while its topics exist."""
    write_version(url, "2", "a")
    for topics, content in (
        (("b", "b"), "commit 2 has rows of 'b', and in the log it has rows of 'a'"),
        ("aaa", "has 3 rows"),
    ):
        with pytest.raises(SequenceConflict, match="txnVersion 2 of application 'etl' is in the log .*" + content):
            write_version(url, "2", *topics)
    log = spark_log.connect(url)
    assert log.read("a").num_rows == 2 and log.read("b").num_rows == 0
    log.admin.delete_topics(["a"])
    write_version(url, "2", "b")
    assert log.read("b").num_rows == 2


# Promise: spark-streams.md#exactly-once
def test_a_first_write_that_fails_leaves_an_empty_topic(url: str) -> None:
    """Tasks need its id and partitions, so it is created when the write begins; the next write uses it."""
    batch = pa.record_batch({"value": ["v"], "partition": pa.array([9], pa.int32())})
    schema = from_arrow_schema(batch.schema)
    with pytest.raises(InvalidRecord):
        batch_writer({"path": url, "topic": "t"}, schema, overwrite=False).write(iter([batch]))
    log = spark_log.connect(url)
    assert log.admin.list_topics() == ["t"] and log.read("t").num_rows == 0
    writer = batch_writer({"path": url, "topic": "t"}, SCHEMA, overwrite=False)
    writer.commit([writer.write(iter(batches(0)))])
    assert log.read("t").num_rows == 3


# Promise: spark.md#columns
def test_seconds_in_a_timestamp_column_are_a_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A bigint is milliseconds: the driver's log names the topic, both readings and the function that converts."""
    batch = pa.record_batch({"value": ["v"], "timestamp": pa.array([1_700_000_000], pa.int64())})
    writer = batch_writer({"path": url, "topic": "t"}, from_arrow_schema(batch.schema), overwrite=False)
    writer.commit([writer.write(iter([batch]))])
    (message,) = logged(caplog, "1700000000 seconds would be 2023-11-14T22:13:20.000Z")
    assert "timestamp_seconds(column)" in message


def write_version(url: str, version: str, *topics: str) -> None:
    """Of the application etl: one row for each topic, or two for the only one."""
    named = [*topics] if len(topics) > 1 else [*topics] * 2
    writer = batch_writer({"path": url, "txnappid": "etl", "txnversion": version}, SCHEMA_OF_TOPICS, overwrite=False)
    writer.commit([writer.write(iter([pa.record_batch({"value": ["v"] * len(named), "topic": named})]))])


def test_an_abort_undoes_nothing_and_never_raises(url: str) -> None:
    """Spark calls it after a commit that raised, too, which may be in."""
    writer = batch_writer({"path": url, "topic": "t"}, SCHEMA, overwrite=False)
    message = writer.write(iter(batches(0)))
    writer.commit([message])
    writer.abort([message, None])
    stream = stream_writer({"path": url, "topic": "t"}, SCHEMA, overwrite=False)
    stream.abort([message, None], 7)
    assert spark_log.connect(url).read("t").num_rows == 3


def test_a_batch_without_rows_commits_nothing(url: str) -> None:
    """A task may get no batch, or empty ones."""
    writer = batch_writer({"path": url, "topic": "t"}, SCHEMA, overwrite=False)
    empty = pa.record_batch({"value": pa.array([], pa.string())})
    writer.commit([writer.write(iter([])), writer.write(iter([empty])), None])
    log = spark_log.connect(url)
    assert log.read("t").num_rows == 0 and not list(Path(url).rglob("*.seg"))


STREAM = """
import sys
url, checkpoint = sys.argv[1:]
spark = session("local[2]")
stream = spark.readStream.format("pylog").option("subscribe", "t").option("startingOffsets", "earliest")
stream = stream.option("maxOffsetsPerTrigger", 10).load(url)
writer = stream.writeStream.format("pylog").option("topic", "copy").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start(url).awaitTermination()
"""


@pytest.mark.slow
def test_a_stream_that_is_stopped_while_the_fence_passes_resumes_without_loss_or_repeat(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """SIGSTOP of the driver and its workers while batches run, and maintenance merges and deletes their objects.
    Then the query continues, or reports that its upload is too old; a run to the end, in another driver, has each
    record once.
    """
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    log.append("t", texts(200))
    checkpoint, said, rng = tmp_path / "checkpoint", tmp_path / "stderr", random.Random(5)
    with said.open("w") as stderr:
        query = subprocess.Popen(
            [sys.executable, str(script(tmp_path / "job.py", STREAM)), url, str(checkpoint)],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        for _ in range(2):
            before = copied(url)
            assert wait_until(lambda count=before: query.poll() is not None or copied(url) > count)
            time.sleep(rng.random())
            if query.poll() is None:
                os.killpg(query.pid, signal.SIGSTOP)
                pass_by(log)
                os.killpg(query.pid, signal.SIGCONT)
        query.wait(DEADLINE_S)
    finally:
        if query.poll() is None:
            os.killpg(query.pid, signal.SIGKILL)
            query.wait()
    assert query.returncode == 0 or "older than the fence at" in said.read_text()
    copy(load_stream(classic, url, maxOffsetsPerTrigger=100), url, "copy", checkpoint)
    expected = log.read("t", columns=["value"]).column("value").to_pylist()
    assert sorted(log.read("copy").column("value").to_pylist()) == sorted(expected)
    assert len(expected) == len(set(expected)) > 200


def copied(url: str) -> int:
    found = spark_log.connect(url)
    return found.read("copy").num_rows if "copy" in found.admin.list_topics() else 0


def pass_by(log: spark_log.Log) -> None:
    """Append and maintain until the fence is past all that was begun before, and what was merged is deleted."""
    begun = log.journal.refresh().version
    while log.journal.refresh().fence <= begun:
        log.append("t", texts(2, log.read("t").num_rows))
        maintain_once(log)
    maintain_once(log)


# Promise: spark-read.md#options-of-a-read
def test_a_log_that_may_not_be_written_is_read_up_to_its_end_at_load(
    mount: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The version of a query cannot be pinned for all its tasks, so added and trimmed records are left out."""
    root = mount("size=4m")
    log = spark_log.connect(str(root))
    log.append("t", [{"key": b"k%d" % (number // 2), "value": b""} for number in range(4)])
    frame, fixed, view = Frame(str(root)), Frame(str(root), endingOffsets="3"), Frame(str(root), view="latest")
    log.append("t", texts(1, 4))
    log.admin.delete_records({TopicPartition("t", 0): 1})
    subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
    assert fixed.run() == rows("t-0", 1, 3) and "read only" not in caplog.text
    assert frame.run() == rows("t-0", 1, 4)
    assert view.run() == [("t-0", 1), ("t-0", 3)]
    assert "records added since this frame was planned are not read" in caplog.text


def test_a_full_disk_fails_the_write_in_a_sentence(mount: Callable[[str], Path]) -> None:
    """Existing records are read as before, the task leaves nothing, and smaller writes fit again."""
    root = mount("size=1m")
    log = spark_log.connect(str(root))
    log.append("t", texts(1))
    large = pa.record_batch({"value": [os.urandom(500_000).hex()] * 4})
    writer = batch_writer({"path": str(root), "topic": "t", "compression": "none"}, SCHEMA, overwrite=False)
    with pytest.raises(StorageError, match="No space left on device; free some space"):
        writer.write(iter([large]))
    writer.abort([None])
    assert log.read("t").num_rows == 1 and list(root.rglob(".tmp-*")) == []
    writer.commit([writer.write(iter(batches(1)))])
    assert log.read("t").column("value").to_pylist() == as_bytes(range(4))
