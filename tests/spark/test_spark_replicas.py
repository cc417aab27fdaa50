"""Reads of a log with copies on several roots: the plan ships where they are, and tasks continue with another copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.options.parse import Location
from pyspark_pylog.source.read_task import ReadTask

import spark_log
from spark_log.client.admin.brokers import add_broker
from spark_log.client.log import Log
from spark_log.errors import ObjectNotFound, StorageUnavailable
from spark_log.metadata.replicas.replica_commands import FenceBroker
from tests.client.replicated import commit_copies, create_replicated, with_copies
from tests.spark.builders import load, load_stream, values
from tests.spark.driver import Frame, Stream

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    return [tmp_path / "disk1", tmp_path / "disk2"]


def _lose_own(log: Log) -> None:
    shutil.rmtree(Path(log.url.removeprefix("file://")) / "data")


def test_tasks_know_the_copies_of_their_objects_alone(log: Log, url: str, roots: list[Path]) -> None:
    with_copies(log, roots)
    first, second = commit_copies(log, "t", [b"a"], held=(0, 2)), commit_copies(log, "t", [b"b"], held=(2,))
    journal = journal_of(Location(url=url, storage={}, rack="r"))
    planned = planned_log(Location(url=url, storage={}, rack="r"), journal)
    assert [broker for broker, _ in planned.brokers] == [1, 2] and planned.rack == "r"
    reads = log.plan("t")
    assert ReadTask(0, planned, reads[:1]).log.holders == {first: (0, 2, 1)}
    assert ReadTask(0, planned, reads).log.holders == {first: (0, 2, 1), second: (2, 0, 1)}


def test_a_log_without_brokers_ships_what_it_did(log: Log, url: str) -> None:
    """The same plan, and reads of the root itself."""
    log.append("t", [{"value": "a"}])
    planned = planned_log(Location(url=url, storage={}), journal_of(Location(url=url, storage={})))
    assert (planned.brokers, planned.holders) == ((), {})
    assert ReadTask(0, planned, log.plan("t")).log is planned


@pytest.mark.parametrize("held", [(0, 1, 2), (1, 2), (2,)])
def test_a_batch_reads_any_copy(log: Log, url: str, roots: list[Path], held: tuple[int, ...]) -> None:
    """The own root is lost, and with it the objects that were there alone."""
    with_copies(log, roots)
    for number in range(4):
        commit_copies(log, "t", [b"%d" % number], held=held)
    frame = Frame(url)
    if 0 in held:
        _lose_own(log)
    assert frame.run() == [("t-0", number) for number in range(4)]
    commit_copies(log, "t", [b"4"], held=held[-1:])
    assert frame.run("2") == [("t-0", number) for number in range(5)], "what was added is on a root that the plan knows"


def test_records_on_a_broker_that_came_after_the_plan(log: Log, url: str, roots: list[Path], tmp_path: Path) -> None:
    """The task asks the newest state for its root."""
    with_copies(log, roots)
    create_replicated(log.journal, "u", (0, 1))
    commit_copies(log, "u", [b"a"])
    frame = Frame(url, None, subscribePattern="u.*")
    add_broker(log.journal, 3, str(tmp_path / "disk3"))
    create_replicated(log.journal, "u2", (0, 3))
    commit_copies(log, "u2", [b"b"], held=(3,))
    assert frame.run() == [("u-0", 0), ("u2-0", 0)]


def test_a_stream_and_its_first_view_read_any_copy(log: Log, url: str, roots: list[Path]) -> None:
    with_copies(log, roots)
    stream, latest = Stream(url), Stream(url, startingOffsets="latest-per-key")
    commit_copies(log, "t", [b"a", b"b"])
    commit_copies(log, "t", [b"c"], held=(1, 2))
    _lose_own(log)
    assert stream.run() == [("t-0", 0), ("t-0", 1), ("t-0", 2)]
    assert latest.run() == [("t-0", 2)]


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.parametrize("latest", [False, True])
def test_records_whose_roots_are_away_are_not_skipped(log: Log, url: str, roots: list[Path], latest: bool) -> None:
    """Although failOnDataLoss is false: they are not lost, and are read when a root is back."""
    with_copies(log, roots)
    create_replicated(log.journal, "u", (1, 2))
    for value in (b"a", b"b"):
        commit_copies(log, "u", [value])
    expected = [("u-0", 1)] if latest else [("u-0", 0), ("u-0", 1)]
    frame = Frame(url, "u", failOnDataLoss="false", **({"view": "latest"} if latest else {}))
    start = "latest-per-key" if latest else "earliest"
    stream = Stream(url, "u", failOnDataLoss="false", startingOffsets=start)
    assert stream.plan()
    tasks = stream.tasks()
    for root in roots:
        root.rename(root.with_suffix(".away"))
    with pytest.raises(StorageUnavailable, match=r"is its disk mounted\?"):
        frame.run()
    with pytest.raises(StorageUnavailable, match=r"is its disk mounted\?"):
        stream.read(tasks)
    roots[1].with_suffix(".away").rename(roots[1])
    assert frame.run("2") == expected
    assert stream.read(tasks) == expected


def test_records_on_fenced_brokers_are_not_skipped(log: Log, url: str, roots: list[Path]) -> None:
    with_copies(log, roots)
    commit_copies(log, "t", [b"a"], held=(1,))
    commit_copies(log, "t", [b"b"])
    frame = Frame(url, "t", failOnDataLoss="false")
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    away = roots[0].rename(roots[0].with_suffix(".away"))
    with pytest.raises(StorageUnavailable, match="is fenced: by hand"):
        frame.run()
    with pytest.raises(StorageUnavailable, match="is fenced: by hand"):
        Stream(url, "t", failOnDataLoss="false").run()
    away.rename(roots[0])
    assert frame.run("2") == [("t-0", 0), ("t-0", 1)]


def test_records_that_right_roots_lack_are_skipped(log: Log, url: str, roots: list[Path]) -> None:
    """With failOnDataLoss=false alone."""
    with_copies(log, roots)
    create_replicated(log.journal, "u", (1, 2))
    commit_copies(log, "u", [b"a"])
    commit_copies(log, "u", [b"b"])
    frame, failing = Frame(url, "u", failOnDataLoss="false"), Frame(url, "u")
    for path in sorted(path for root in roots for path in root.rglob("*.seg")):
        path.unlink()
    commit_copies(log, "u", [b"c"])
    assert frame.run() == [("u-0", 2)]
    with pytest.raises(ObjectNotFound):
        failing.run("2")


# Promise: replicas.md#when-a-disk-fails
def test_queries_go_on_when_a_root_is_lost(
    spark: SparkSession, log: Log, url: str, roots: list[Path], tmp_path: Path, s3: Callable[[], Any]
) -> None:
    """The own root and a bucket; the keys of the bucket come as an option for this broker."""
    bucket = s3()
    keys = {f"1.{name}": value for name, value in bucket.options.items() if name != "endpoint_url"}
    mine = spark_log.connect(url, keys)
    add_broker(mine.journal, 1, f"{bucket.url}/log", storage_options={"endpoint_url": bucket.options["endpoint_url"]})
    create_replicated(mine.journal, "t", (0, 1))
    for number in range(5):
        commit_copies(mine, "t", [b"%d" % number])
    options = {f"storage.{name}": value for name, value in keys.items()}
    frame = load(spark, url, "t", **options)
    _lose_own(log)
    assert sorted(values(frame)) == [b"%d" % number for number in range(5)]
    read = load_stream(spark, url, "t", startingOffsets="earliest", **options)
    query = read.select("value").writeStream.format("memory").queryName("copies").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert spark.table("copies").count() == 5
