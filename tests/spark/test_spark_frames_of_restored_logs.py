"""Frames that were planned before their log was restored from an older copy, and pins that queries of before left,
without Spark."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark_pylog import DefaultSource
from pyspark_pylog.source.batch import LogReader
from pyspark_pylog.source.latest_view import LatestReader

import spark_log
from spark_log import NewTopic
from tests.restored import copy_of, restored
from tests.spark.driver import read_task

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
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

    def values(self, query: str) -> list[str]:
        batches = chain.from_iterable(read_task(self._reader, task, query) for task in self._tasks)
        return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("more", [1, 7])
def test_frames_of_before_have_the_records_of_the_restored_log(tmp_path: Path, more: int) -> None:
    """Also those with a fixed end, whether the log has reached the planned end again or not.  The folder still has the
    pins of queries that have ended, and no later query has their names."""
    url, pins = str(tmp_path / "log"), tmp_path / "log" / "meta" / "pin"
    log = spark_log.connect(url, durability="os")
    log.create_topic(NewTopic("t", 1))
    append(log, KEPT)
    copy = copy_of(log, tmp_path / "copy")
    append(log, LOST)
    frame, fixed = Frame(url), Frame(url, endingoffsets='{"t":{"0":4}}')
    latest = Frame(url, view="latest")
    assert frame.values("1") == [*KEPT, *LOST] and fixed.values("2") == [*KEPT, LOST[0]]
    assert latest.values("3") == LOST[-1:]
    shutil.copytree(pins, tmp_path / "pins")
    new = [f"new{number}" for number in range(more)]
    with restored(url, copy) as log:
        append(log, new)
    shutil.copytree(tmp_path / "pins", pins, dirs_exist_ok=True)
    assert frame.values("4") == [*KEPT, *new]
    assert fixed.values("5") == [*KEPT, new[0]]
    assert latest.values("6") == new[-1:]
    assert Frame(url).values("7") == [*KEPT, *new]
