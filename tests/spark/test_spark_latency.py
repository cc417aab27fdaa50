"""docs/latency.md: what a micro-batch of one record waits for."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_pylog.sink.writer import TaskWritten, stream_writer

import spark_log
from tests.store.test_durability import calls_of

PAGE = (Path(__file__).parents[2] / "docs" / "latency.md").read_text(encoding="utf-8")
RECORD = pa.record_batch({"value": pa.array([b"v"], pa.binary())})
VALUE = StructType([StructField("value", BinaryType())])


def syncs(calls: list[str]) -> int:
    return sum(call.startswith("fsync") for call in calls)


@pytest.fixture
def log(url: str) -> spark_log.Log:
    """A log that exists, so that its own folders are not counted."""
    log = spark_log.connect(url)
    log.append("t", [{"value": b"first"}])
    return log


# Promise: latency.md#where-the-time-goes
def test_a_task_waits_for_three_syncs_and_the_sinks_commit_for_two(log: spark_log.Log, url: str) -> None:
    """The object, its folder and the folder's parent; the commit record and its folder."""
    writer = stream_writer({"path": url, "topic": "t"}, VALUE, False)
    messages: list[TaskWritten] = []

    written = calls_of(lambda: messages.append(cast(TaskWritten, writer.write(iter([RECORD])))))
    of_query = [replace(message, query_id=str(uuid.uuid4()), batch_id=0) for message in messages]
    committed = calls_of(lambda: writer.commit(of_query, 0))

    assert (syncs(written), syncs(committed)) == (3, 2)
    assert "| the task writes an object | pylog, 3 ms | 3 syncs |" in PAGE
    assert "pylog, 2 ms | 2 syncs |" in PAGE


# Promise: latency.md#where-the-time-goes
def test_an_append_waits_for_five_syncs(log: spark_log.Log) -> None:
    """An object in a new folder, and a commit record."""
    assert syncs(calls_of(lambda: log.append("t", [{"value": b"v"}]))) == 5
    assert "| `append` puts an object and a commit record | pylog | 5 syncs |" in PAGE


# Promise: latency.md#what-to-set
def test_a_log_that_leaves_syncs_to_the_system_waits_for_none(log: spark_log.Log, url: str) -> None:
    """`durability=os`, as the page recommends."""
    fast = spark_log.connect(url, durability="os")
    assert syncs(calls_of(lambda: fast.append("t", [{"value": b"v"}]))) == 0
