"""`jobs/maintain.py`: the driver plans, and tasks merge and compact, also if they run twice."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.job_support import in_tasks
from pyspark_pylog.jobs.maintain import compact_in_task, maintain, merge_in_task, parse_args, tasks_failed
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.options.parse import Location

from spark_log import Log, NewTopic
from spark_log.errors import NoSpace
from spark_log.journal.set_aside import SetAside
from spark_log.maintenance.workers import CompactionShare
from spark_log.metadata.state import TopicKey
from spark_log.rewriting.merge_shares import MergeShare
from tests.spark.small_slices import COMPACT, KEYS, PARTITIONS, ROUNDS, append_old, pairs

LATEST = [(partition, b"k%d" % key, b"%d" % (ROUNDS - 1)) for partition in range(PARTITIONS) for key in range(KEYS)]
REMOVED = PARTITIONS * KEYS * (ROUNDS - 1)


def plan(url: str) -> tuple[PlannedLog, list[TopicKey]]:
    journal = journal_of(Location(url=url, storage={}))
    return planned_log(Location(url=url, storage={}), journal), sorted(journal.refresh().partitions)


def done(spark: SparkSession, url: str, *more: str) -> tuple[dict[str, Any], int]:
    """The summary and exit status of a job in this process."""
    summary, status = maintain(spark, parse_args(["--url", url, *more]))
    json.dumps(summary)
    return summary, status


# Promise: performance.md#large-topics
@pytest.mark.tasks
def test_tasks_merge_each_slice_once(spark: SparkSession, url: str, log: Log) -> None:
    """Each partition is merged by two tasks at a time, as with speculation; the sum counts each slice once."""
    log.admin.create_topics([NewTopic("t", PARTITIONS)])
    append_old(log, "t")
    before = pairs(log)
    planned, keys = plan(url)
    shares = [MergeShare((key,), frozenset(), SetAside()) for key in keys for _ in range(2)]
    results = in_tasks(spark, shares, partial(merge_in_task, planned))
    assert [said for _, failed in results for said in failed.problems] == []
    assert sum(tally.slices for tally, _ in results) == PARTITIONS * ROUNDS
    assert sum(tally.segments for tally, _ in results) == PARTITIONS
    assert pairs(log) == before


# Promise: performance.md#large-topics
@pytest.mark.tasks
def test_tasks_compact_each_partition_once(spark: SparkSession, url: str, log: Log) -> None:
    """Each partition is cleaned by two tasks at a time, as with speculation; the sum counts each record once."""

    def share(some: list[TopicKey]) -> CompactionShare:
        return CompactionShare(tuple(some), SetAside())

    log.admin.create_topics([NewTopic("t", PARTITIONS, COMPACT)])
    append_old(log, "t")
    planned, keys = plan(url)
    results = in_tasks(spark, [share([key]) for key in keys for _ in range(2)], partial(compact_in_task, planned))
    assert [said for _, failed in results for said in failed.problems] == []
    assert sum(tally.records for tally, _ in results) == REMOVED
    assert pairs(log) == LATEST
    ((tally, _),) = in_tasks(spark, [share(keys)], partial(compact_in_task, planned))
    assert (tally.partitions, tally.records) == (0, 0)  # the plan was old: nothing is due


# Promise: performance.md#large-topics
def test_a_round_merges_and_compacts_and_a_second_one_has_nothing_to_do(
    classic: SparkSession, url: str, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """All other duties of `pylog maintain` are done, too: there is a checkpoint."""
    log.admin.create_topics([NewTopic("t", PARTITIONS, COMPACT), NewTopic("u", PARTITIONS)])
    append_old(log, "t")
    append_old(log, "u")
    before = pairs(log, "u")
    planned, _ = done(classic, url, "--dry-run")
    assert (planned["cleaned_partitions"], planned["merged_slices"]) == (PARTITIONS, 2 * PARTITIONS * ROUNDS)
    summary, status = done(classic, url)
    assert (status, summary["merged_slices"], summary["segments"]) == (0, 2 * PARTITIONS * ROUNDS, 2 * PARTITIONS)
    assert (summary["cleaned_partitions"], summary["removed_records"]) == (PARTITIONS, REMOVED)
    assert (pairs(log), pairs(log, "u")) == (LATEST, before)
    said = capsys.readouterr().err
    assert "merging, shares: 1 of 1" in said and f"{PARTITIONS} partitions compacted" in said
    assert len(list(Path(url, "meta/ckpt").iterdir())) > 0
    again, _ = done(classic, url)
    assert (again["merged_slices"], again["cleaned_partitions"], again["uncleaned"]) == (0, 0, 0)


# Promise: performance.md#large-topics
def test_a_damaged_object_is_named_once_and_the_others_are_merged(
    classic: SparkSession, url: str, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1, and 0 when the next job finds nothing else."""
    log.admin.create_topics([NewTopic("t", PARTITIONS)])
    append_old(log, "t")
    state = log.journal.refresh()
    first = state.partitions[state.names["t"], 0].entries[0]
    path = Path(url, first.object)
    content = bytearray(path.read_bytes())
    content[first.position + first.length // 2] ^= 255
    path.write_bytes(content)
    summary, status = done(classic, url)
    assert (status, summary["merged_slices"], summary["segments"]) == (1, PARTITIONS * ROUNDS - 1, PARTITIONS)
    assert any("merging t-0 failed" in problem for problem in summary["problems"])
    assert "merging t-0 failed" in capsys.readouterr().err
    again, status = done(classic, url)
    assert (status, again["problems"], again["set_aside"]) == (0, (), (first.object,))


def test_tasks_that_find_a_full_disk_say_so() -> None:
    """Outside of a partition's work, too: the error of the Spark job names it."""
    full = tasks_failed(PythonException("Job aborted\nspark_log.errors.NoSpace: meta/log/7: no space left"))
    assert isinstance(full, NoSpace) and str(full) == "the tasks failed: meta/log/7: no space left"
    assert not isinstance(tasks_failed(PythonException("Job aborted")), NoSpace)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--url"),
        (["--url", "x", "--every", "10x"], "as in 10m"),
        (["--url", "x", "--every", "10m", "--dry-run"], "leave out --every"),
        (["--url", "x", "--storage-option", "key"], "KEY=VALUE"),
    ],
)
def test_wrong_arguments(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence."""
    with pytest.raises(SystemExit) as ended:
        parse_args(args)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
