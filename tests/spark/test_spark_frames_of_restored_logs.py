"""Frames that were planned before their log was restored from an older copy, and queries that run meanwhile, without
Spark."""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark_pylog import DefaultSource
from pyspark_pylog.source.batch import LogReader
from pyspark_pylog.source.latest_view import LatestReader

import spark_log
from spark_log import NewTopic
from spark_log.errors import ConcurrentChange
from tests.restored import copy_of, restored
from tests.spark.driver import read_task

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
EVERY = slice(None)
KEPT, LOST = ["kept0", "kept1", "kept2"], ["lost0", "lost1", "lost2", "lost3"]


def append(log: spark_log.Log, values: list[str]) -> None:
    """An object for each record."""
    for value in values:
        log.append("t", [{"key": b"k", "value": value.encode()}])


class Frame:
    """A planned read, which queries execute."""

    def __init__(self, url: str, **options: str) -> None:
        source = DefaultSource({"path": url, "subscribe": "t", **options})
        reader = source.reader(from_arrow_schema(SCHEMA))
        assert isinstance(reader, LogReader | LatestReader)
        self._reader = reader
        self._tasks = self._reader.partitions()

    def values(self, query: str, tasks: slice = EVERY) -> list[str]:
        batches = chain.from_iterable(read_task(self._reader, task, query) for task in self._tasks[tasks])
        return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]

    def refused(self, query: str, tasks: slice = EVERY) -> None:
        with pytest.raises(ConcurrentChange, match="restored from a copy since this frame was planned.*: load again"):
            self.values(query, tasks)

    def refused_elsewhere(self, query: str, tasks: slice = EVERY) -> None:
        """By tasks in another process, which has not read the pin of the query."""
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(self.refused, query, tasks).result()


class Lost:
    """A log of which a copy has three records, and that has four more."""

    def __init__(self, folder: Path) -> None:
        self.url, self._folder = str(folder / "log"), folder
        self.log = spark_log.connect(self.url, durability="os")
        self.log.create_topic(NewTopic("t", 1))
        append(self.log, KEPT)
        self._copy = copy_of(self.log, folder / "copy")

    def grow(self) -> None:
        append(self.log, LOST)

    def restore(self, more: int) -> list[str]:
        """The copy takes its place, and has some new records, which are returned."""
        new = [f"new{number}" for number in range(more)]
        with restored(self.url, self._copy) as log:
            append(log, new)
        return new


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("more", [4, 12])
def test_a_frame_of_before_is_loaded_again(tmp_path: Path, more: int) -> None:
    """Whether the log has reached the planned end again or not.  The folder still has the pins of queries that have
    ended.  A frame that ends where the copy has all of its records has them.
    """
    lost, pins = Lost(tmp_path), tmp_path / "log" / "meta" / "pin"
    lost.grow()
    frames = [Frame(lost.url), Frame(lost.url, endingoffsets='{"t":{"0":4}}')]
    frames += [Frame(lost.url, view="latest"), Frame(lost.url, view="latest", endingoffsets='{"t":{"0":4}}')]
    known, latest = (Frame(lost.url, endingoffsets='{"t":{"0":3}}', **view) for view in ({}, {"view": "latest"}))
    assert [one.values(f"before-{number}") for number, one in enumerate(frames)] == [
        [*KEPT, *LOST],
        [*KEPT, LOST[0]],
        LOST[-1:],
        LOST[:1],
    ]
    shutil.copytree(pins, tmp_path / "pins")
    new = lost.restore(more)
    shutil.copytree(tmp_path / "pins", pins, dirs_exist_ok=True)
    for number, one in enumerate(frames):
        one.refused(f"after-{number}")
    assert (known.values("known"), latest.values("latest")) == (KEPT, KEPT[-1:])
    assert Frame(lost.url).values("new") == [*KEPT, *new]


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize(
    "options", [{}, {"endingoffsets": '{"t":{"0":7}}'}, {"view": "latest"}], ids=["open", "fixed", "latest"]
)
def test_tasks_before_and_after_a_restore_have_no_records_of_two_logs(tmp_path: Path, options: dict[str, str]) -> None:
    """The pin was lost, so a task in another process would make another one."""
    lost = Lost(tmp_path)
    lost.grow()
    frame = Frame(lost.url, **({"minpartitions": "4"} if "view" not in options else {}), **options)
    first = frame.values("query", slice(1))
    assert first and set(first) <= {*KEPT, *LOST}
    lost.restore(12)
    frame.refused_elsewhere("query", slice(1, None) if "view" not in options else EVERY)


# Promise: copies.md#restore-a-log-from-a-copy
def test_records_that_were_added_after_a_plan_are_of_one_log(tmp_path: Path) -> None:
    """The copy has all that was planned, and the first task has read records that were added, and lost.  A task of
    another frame of the query knows the pin, and finds other records at those offsets.
    """
    lost = Lost(tmp_path)
    one, other = Frame(lost.url), Frame(lost.url)
    lost.grow()
    assert one.values("query") == [*KEPT, *LOST]
    lost.restore(12)
    other.refused("query")
    other.refused_elsewhere("query")
