"""Spark's side of a stream and of a batch write, without Spark: the calls that it makes, in its order."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_pylog import DefaultSource
from pyspark_pylog.log.open_log import journal_of
from pyspark_pylog.log.planned_log import PlannedLog, PlannedRoots
from pyspark_pylog.options.parse import ReadOptions, read_options
from pyspark_pylog.source.batch import LogReader
from pyspark_pylog.source.latest_task import LatestTask, read_latest
from pyspark_pylog.source.latest_view import LatestReader
from pyspark_pylog.source.query_pins import PinNames
from pyspark_pylog.source.read_task import PinnedQuery, ReadTask, read_pinned
from pyspark_pylog.source.stream import LogStreamReader

from simulation.harness.clocks import ManualClock
from spark_log.runtime.clock import Clock
from spark_log.store.base import ObjectStore

SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])

Row = tuple[str, int]
"""("t-0", offset)."""


class Stream:
    """A query over one checkpoint, from the first record on unless the options say otherwise.

    trigger:  `default`, `available-now` or `once`, as Spark 4.2 and later run them; `4.0` as 4.0 and 4.1 do.
    """

    def __init__(self, url: str, topics: str | None = "t", /, clock: Clock | None = None, **options: Any) -> None:
        self.clock = clock or ManualClock()
        self.options = {"path": url, "startingoffsets": "earliest"}
        if topics is not None:
            self.options["subscribe"] = topics
        self.offsets: list[dict[str, Any]] = []
        """Spark's log of offsets: one for each batch."""
        self.batches: list[list[Row]] = []
        """The rows that each batch read."""
        self.restart(**options)

    def restart(self, trigger: str = "default", **options: Any) -> Stream:
        """A new run over the checkpoint, with these options beside those that there are."""
        self.options |= {name.lower(): str(value) for name, value in options.items()}
        self.trigger = trigger
        self.reader = self._new_reader(read_options(self.options, streaming=True))
        if trigger == "4.0":
            if self.offsets:
                assert self._tasks(self.offsets[-1], self.offsets[-1]) == []
            return self
        self.limit = ReadAllAvailable() if trigger == "once" else self.reader.getDefaultReadLimit()
        if trigger == "available-now":
            self.reader.prepareForTriggerAvailableNow()
        return self

    def _new_reader(self, options: ReadOptions) -> Any:
        return LogStreamReader(options, SCHEMA, self.clock)

    def plan(self) -> bool:
        """Whether the next batch is planned: its end is in the checkpoint then.  There always is a first batch."""
        start = self.offsets[-1] if self.offsets else _kept(self.reader.initialOffset())
        if self.trigger == "4.0":
            end = _kept(self.reader.latestOffset())
        else:
            end = _kept(self.reader.latestOffset(start, self.limit))
            assert self.reader.reportLatestOffset() is not None
        if self.offsets and end == start:
            return False
        self.offsets.append(end)
        if len(self.offsets) > 1:  # so late, and of the last batch of a run never
            self.reader.commit(self.offsets[-2])
        return True

    def tasks(self) -> list[ReadTask]:
        """Of the batch that was planned; also of one that was read before."""
        start = self.offsets[-2] if len(self.offsets) > 1 else _kept(self.reader.initialOffset())
        return self._tasks(start, self.offsets[-1])

    def read(self, tasks: list[ReadTask] | None = None) -> list[Row]:
        """The batch that was planned, by its tasks."""
        rows = [row for task in (self.tasks() if tasks is None else tasks) for row in self._read(task)]
        self.batches.append(rows)
        return rows

    def batch(self) -> list[Row] | None:
        """The next batch; None if there is none."""
        if not self.plan():
            return None
        return self.read()

    def run(self) -> list[Row]:
        """All batches until there is none; what they read."""
        rows: list[Row] = []
        while (more := self.batch()) is not None:
            rows += more
            if self.trigger == "once":
                break
        return rows

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        tasks: list[ReadTask] = pickle.loads(pickle.dumps(list(self.reader.partitions(start, end))))
        return tasks

    def _read(self, task: ReadTask) -> Iterator[Row]:
        reader: LogStreamReader = pickle.loads(pickle.dumps(self.reader))
        return rows_of(reader.read(task))


def read_task(
    reader: LogReader | LatestReader, task: InputPartition, query: str = "1", store: ObjectStore | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows that a task of a batch read returns to Spark, in a query of that name."""
    names = PinNames(f"meta/pin/{query}", f"meta/pin/{query}-{reader.scan}")
    if isinstance(reader, LatestReader):
        assert isinstance(task, LatestTask)
        return read_latest(reader.task_now(task, names), reader.schema, reader.options)
    assert isinstance(task, ReadTask)
    if store is not None:
        task = ReadTask(task.number, through(store, task.log), task.reads, task._basis)
    query = PinnedQuery(reader.options, reader.scan, names, task)
    return read_pinned(task, query, reader.schema, reader.options)


@dataclass(frozen=True, eq=False)
class OneStore(PlannedRoots):
    """Roots that are a store.  Journals over it are not shared with other tests."""

    urls: tuple[tuple[int, str], ...] = ()
    given: ObjectStore | None = None

    def store(self, broker: int = 0) -> ObjectStore:
        assert self.given is not None
        return self.given


def through(store: ObjectStore, log: PlannedLog) -> PlannedLog:
    """The same log, by way of a store."""
    return replace(log, roots=OneStore(given=store))


class Frame:
    """A batch read, planned by the driver as of now: of topics, its query options as texts."""

    def __init__(self, url: str, topics: str | None = "t", /, schema: pa.Schema = SCHEMA, **options: Any) -> None:
        given = {"path": url, **({} if topics is None else {"subscribe": topics}), **options}
        texts = {name.lower(): json.dumps(v) if isinstance(v, dict | list) else str(v) for name, v in given.items()}
        self.reader: LogReader | LatestReader = DefaultSource(texts).reader(from_arrow_schema(schema))  # type: ignore[assignment]
        self.tasks: list[ReadTask] = pickle.loads(pickle.dumps(self.reader.partitions()))
        self.store = journal_of(self.reader.options.location).objects

    def task(self, number: int, query: str = "1", store: ObjectStore | None = None) -> list[Row]:
        """The rows that one task reads in a query."""
        return list(rows_of(read_task(pickle.loads(pickle.dumps(self.reader)), self.tasks[number], query, store)))

    def run(self, query: str = "1", store: ObjectStore | None = None) -> list[Row]:
        """A query, sorted."""
        return sorted(row for number in range(len(self.tasks)) for row in self.task(number, query, store))


class Write:
    """A batch write of one frame, begun in the driver; each task writes all of it.  None options are left out."""

    def __init__(self, url: str, batch: pa.RecordBatch, **options: Any) -> None:
        self.batch = batch
        given = {"path": url, **options}
        texts = {name.lower(): str(value) for name, value in given.items() if value is not None}
        self.writer: Any = DefaultSource(texts).writer(from_arrow_schema(batch.schema), overwrite=False)

    def task(self) -> Any:
        """The message of a task."""
        return pickle.loads(pickle.dumps(self.writer)).write(iter([self.batch]))

    def commit(self, messages: list[Any]) -> None:
        self.writer.commit(pickle.loads(pickle.dumps(messages)))

    def run(self) -> None:
        """With one task."""
        self.commit([self.task()])


def rows_of(parts: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows that a task returned."""
    for part in parts:
        for row in part.to_pylist():
            yield f"{row['topic']}-{row['partition']}", row["offset"]


def _kept(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes out of a checkpoint."""
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept


def rows(tp: str, start: int, end: int) -> list[Row]:
    """Rows [start, end) of a partition."""
    return [(tp, offset) for offset in range(start, end)]
