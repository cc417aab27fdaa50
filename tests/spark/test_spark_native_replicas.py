"""Reads in the JVM of logs with replicas: from any root that has an object, as Python reads them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark_pylog.native.plan import PythonReads, check_location
from pyspark_pylog.options.parse import Location

import spark_log
from tests.client.replicated import commit_copies, with_copies
from tests.replication.replicated_logs import add_broker, replicated_log
from tests.spark.builders import DEADLINE_S, load, load_stream
from tests.spark.native_paths import MARKS, counter, is_native, of_both, rows

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")]


@pytest.fixture
def left(classic: SparkSession) -> Callable[[], int]:
    """How many tasks Python has read since the last call."""
    return counter(classic)


@pytest.fixture
def roots(log: spark_log.Log, tmp_path: Path) -> list[Path]:
    """The own root, and those of two brokers."""
    disks = [tmp_path / "disk1", tmp_path / "disk2"]
    with_copies(log, disks)
    return [Path(log.url.removeprefix("file://")), *disks]


def copy_of(root: Path, name: str) -> Path:
    (found,) = root.rglob(Path(name).name)
    return found


# Promise: spark-read.md#read-in-the-jvm
def test_each_object_is_read_from_a_root_that_has_it(
    classic: SparkSession, url: str, log: spark_log.Log, roots: list[Path], left: Callable[[], int]
) -> None:
    """Also records that were added since the plan, and after two roots are lost."""
    held = [(0, 1, 2), (2,), (1, 2), (0, 2)]
    for number in range(3):
        commit_copies(log, "t", [b"%d" % number] * 50, held=held[number])
    frame = load(classic, url)
    assert frame.select("offset").count() == 150
    commit_copies(log, "t", [b"3"] * 50, held=held[3])
    assert len(rows(frame.select("offset", "value"))) == 200
    before, python = of_both(classic, url)
    assert before == python
    shutil.rmtree(roots[0] / "data")
    shutil.rmtree(roots[1])
    after, python = of_both(classic, url)
    assert after == python == before
    assert left() == 0


# Promise: spark-read.md#read-in-the-jvm
def test_a_stream_is_read_from_any_root(
    classic: SparkSession, url: str, log: spark_log.Log, roots: list[Path], left: Callable[[], int], tmp_path: Path
) -> None:
    found: list[str] = []
    for held in ((1,), (0, 1, 2), (2, 1)):
        commit_copies(log, "t", [b"a"] * 10, held=held)
        writer = load_stream(classic, url).writeStream.foreachBatch(lambda batch, number: found.extend(rows(batch)))
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination(DEADLINE_S)
        assert "natively" in query._jsq.explainInternal(False)  # type: ignore[attr-defined]
        shutil.rmtree(roots[0] / "data", ignore_errors=True)
    assert len(found) == 30
    assert left() == 0


# Promise: spark-read.md#read-in-the-jvm
def test_a_root_that_hangs_is_passed_over(
    classic: SparkSession, url: str, log: spark_log.Log, roots: list[Path], left: Callable[[], int]
) -> None:
    """Opening a pipe without a writer hangs.  Later reads try other roots first."""
    names = [commit_copies(log, "t", [b"%d" % number]) for number in range(3)]
    for name in names:
        path = copy_of(roots[0], name)
        path.unlink()
        os.mkfifo(path)
    assert len(load(classic, url).select("value").collect()) == 3
    assert left() == 0


# Promise: spark-read.md#read-in-the-jvm
def test_a_damaged_copy_is_left_to_python(
    classic: SparkSession, url: str, log: spark_log.Log, roots: list[Path], left: Callable[[], int]
) -> None:
    """It reads another one."""
    path = copy_of(roots[0], commit_copies(log, "t", [b"a"]))
    path.write_bytes(bytes(path.stat().st_size))
    frame = load(classic, url)
    assert is_native(frame)
    assert [bytes(row.value) for row in frame.collect()] == [b"a"]
    assert left() == 1


def test_an_object_without_a_copy_is_the_same_error(
    classic: SparkSession, url: str, log: spark_log.Log, roots: list[Path]
) -> None:
    name = commit_copies(log, "t", [b"a"])
    for root in roots:
        copy_of(root, name).unlink()
    errors = []
    for native in ("true", "false"):
        with pytest.raises(PySparkException) as error:
            load(classic, url, nativeRead=native).collect()
        errors.append(next(line for line in str(error.value).splitlines() if "spark_log.errors" in line))
    assert errors[0] == errors[1]
    assert name in errors[0]


# Promise: spark-read.md#read-in-the-jvm
def test_replicas_in_buckets_are_left_to_python(tmp_path: Path) -> None:
    """A memory counts as a bucket.  Other replicas may be on disks."""
    log = replicated_log(tmp_path, 1)
    check_location(Location(url=log.url, storage={}))
    add_broker(log, 2, "memory://native-replicas")
    with pytest.raises(PythonReads, match="not files"):
        check_location(Location(url=log.url, storage={}))
