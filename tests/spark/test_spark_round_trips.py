"""How often Spark's driver waits for an object store, without Spark: its calls, by processes that know the log.

`benchmarks/spark_round_trips.py` counts the same with Spark's own processes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_pylog import DefaultSource
from pyspark_pylog.log.open_log import KEPT
from pyspark_pylog.log.planned_log import PlannedLog, PlannedRoots
from pyspark_pylog.sink.writer import batch_writer, stream_writer
from pyspark_pylog.source.batch import LogReader
from pyspark_pylog.source.read_task import ReadTask
from pyspark_pylog.source.task_erasures import LOOK_MS, TaskErasures

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.slow_store import SlowStore, counts, round_trips
from spark_log.journal.journal import Journal
from spark_log.store.memory import MemoryStore
from tests.spark.driver import SCHEMA, OneStore, Stream, read_task

TRIES = 30
"""At most: on a busy machine, parallel requests start late and look like requests in a row, so the fewest count."""
LATENCY_MS = 50


VALUE = StructType([StructField("value", BinaryType())])
ROW = pa.record_batch({"value": [b"x"]})


class Near(NamedTuple):
    """A log in a store, without delay for the test itself and with one for the data source."""

    url: str
    log: spark_log.Log
    store: SlowStore
    roots: OneStore

    def append(self) -> None:
        """A record of another process."""
        self.log.append("t", [{"value": b"x"}])

    def for_tasks(self, log: PlannedLog) -> PlannedLog:
        """The log by way of the slow store."""
        return replace(log, roots=self.roots)


@pytest.fixture
def near() -> Iterator[Near]:
    """Topic t, of one partition with ten records.  This process knows the log."""
    inner = MemoryStore(uuid.uuid4().hex)
    log = spark_log.connect(inner.url)
    log.create_topic(spark_log.NewTopic("t", 1))
    log.append("t", [{"value": b"%d" % number} for number in range(10)])
    store = SlowStore(inner, get_ms=LATENCY_MS, put_ms=LATENCY_MS, jitter=False)
    roots, journal = OneStore(given=store), Journal.open(store, create=False)
    for known in (PlannedRoots(((0, inner.url),)), roots):
        KEPT.refreshed((inner.url, None, known), lambda: journal)
    yield Near(inner.url, log, store, roots)
    log.close()


def trips(store: SlowStore, expected: int, do: Callable[[], object], before: Callable[[], object] | None = None) -> int:
    """The fewest round trips of some tries, until one has the expected number.  `before` comes before each."""
    found = TRIES * expected
    for _ in range(TRIES):
        if before is not None:
            before()
        with store.watched() as requests:
            do()
        assert counts(requests)["get"], "the data source asks this store"
        found = min(found, round_trips(requests))
        if found <= expected:
            break
    return found


def planned(near: Near) -> int:
    """Plan a batch read, up to the start of its tasks: `load()`, and the plan.  Returns the number of records in it."""
    source = DefaultSource({"path": near.url, "subscribe": "t"})
    schema = source.schema()
    assert isinstance(schema, StructType)
    tasks = source.reader(schema).partitions()
    return sum(read.end - read.start for task in tasks for read in task.reads)  # type: ignore[attr-defined]


# Promise: measurements.md#object-stores
def test_a_batch_read_is_planned_in_two(near: Near) -> None:
    """A look at the schema, and one at the end of the log."""
    assert trips(near.store, 2, lambda: planned(near)) == 2


# Promise: measurements.md#object-stores
def test_a_batch_read_after_a_commit_is_planned_in_three(near: Near) -> None:
    """New records are confirmed before a read depends on them.  They are in the plan."""
    assert trips(near.store, 3, lambda: planned(near), near.append) == 3
    near.append()
    assert planned(near) == ends(near)


# Promise: measurements.md#object-stores
def test_tasks_of_a_query_wait_for_one_or_two(near: Near) -> None:
    """The first one asks for the pin, the log and its records together, and then claims the pin."""
    reader = DefaultSource({"path": near.url, "subscribe": "t"}).reader(from_arrow_schema(SCHEMA))
    assert isinstance(reader, LogReader)
    task = reader.partitions()[0]
    assert isinstance(task, ReadTask)
    task = ReadTask(0, near.for_tasks(task.log), task.reads, task._basis)
    queries = map(str, count())
    assert trips(near.store, 2, lambda: list(read_task(reader, task, next(queries)))) == 2
    assert trips(near.store, 1, lambda: list(read_task(reader, task, "0"))) == 1


def test_a_task_waits_for_one_more_if_a_second_has_passed_since_the_pin(near: Near) -> None:
    """It looks for erasures.  Until then, it does not: a fresh pin is from the time of the look."""
    reader = DefaultSource({"path": near.url, "subscribe": "t"}).reader(from_arrow_schema(SCHEMA))
    task = reader.partitions()[0]
    assert isinstance(reader, LogReader) and isinstance(task, ReadTask)
    task = ReadTask(0, near.for_tasks(task.log), task.reads, task._basis)
    list(read_task(reader, task, "pinned"))

    def wait() -> None:
        time.sleep(LOOK_MS / 1000 + 0.01)

    assert trips(near.store, 2, lambda: list(read_task(reader, task, "pinned")), wait) == 2


def test_tasks_of_an_old_plan_look_for_erasures_once_a_second_together(near: Near) -> None:
    """Not once each: a query may have a thousand, and each look is a request."""
    reader = DefaultSource({"path": near.url, "subscribe": "t"}).reader(from_arrow_schema(SCHEMA))
    task = reader.partitions()[0]
    assert isinstance(task, ReadTask)
    log, topic_id = (
        replace(near.for_tasks(task.log), time_ms=task.log.time_ms - 60_000),
        near.log.journal.state.names["t"],
    )
    began = time.monotonic()
    with near.store.watched() as requests:
        assert not any(TaskErasures(log).has(topic_id) for _ in range(200))
    looks = counts(requests)
    assert sum(looks.values()) <= 4 * (1 + time.monotonic() - began), looks
    near.log.append("t", [{"key": b"k", "value": b"x"}])
    near.log.admin.erase_records("t", ["k"])
    time.sleep(LOOK_MS / 1000 + 0.01)
    assert all(TaskErasures(log).has(topic_id) for _ in range(10))


# Promise: measurements.md#object-stores
def test_a_batch_write_takes_five(near: Near) -> None:
    """A look, the object, another look, the record and its read-back."""

    def write() -> None:
        writer: Any = batch_writer({"path": near.url, "topic": "t"}, VALUE, False)
        writer.begun = replace(writer.begun, log=near.for_tasks(writer.begun.log))
        writer.commit([writer.write(iter([ROW]))])

    before = ends(near)
    assert trips(near.store, 5, write, near.append) == 5
    assert ends(near) >= before + 2


# Promise: measurements.md#object-stores
def test_a_micro_batch_that_copies_a_record_takes_eight(near: Near) -> None:
    """The commit is found (2), the write begins (1), the record is read (1), the object put (1), the process that
    commits looks at the log (1), and puts the record and reads it back (2).
    """
    near.log.create_topic(spark_log.NewTopic("copy", 1))
    stream = Stream(near.url, startingOffsets="latest", clock=ManualClock())
    stream.reader._journal = Journal.open(near.store, create=False)
    assert stream.run() == []
    numbers = count()

    def copy() -> None:
        assert stream.plan()
        (task,) = stream.tasks()
        task = ReadTask(0, near.for_tasks(task.log), task.reads)
        written = begun(near).write(iter([ROW for _ in stream.reader.read(task)]))
        number = next(numbers)
        begun(near).commit([replace(written, query_id="q", batch_id=number)], number)

    assert trips(near.store, 8, copy, near.append) == 8
    assert ends(near, "copy") == next(numbers)


def begun(near: Near) -> Any:
    """A writer of a micro-batch.  Spark creates one in the process that begins, and one in that which commits."""
    writer: Any = stream_writer({"path": near.url, "topic": "copy"}, VALUE, False)
    writer.begun = replace(writer.begun, log=near.for_tasks(writer.begun.log))
    return writer


def ends(near: Near, topic: str = "t") -> int:
    state = near.log.journal.refresh()
    return state.partitions[state.names[topic], 0].end
