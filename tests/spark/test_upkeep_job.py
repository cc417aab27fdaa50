"""`jobs/upkeep.py`: tasks share merging, compaction and erasure, also if they fail or run twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.open_log import journal_of, planned_log
from pyspark_pylog.options.parse import Location
from pyspark_pylog.planned_log import PlannedLog

from jobs.upkeep import compact_group, compact_log, erase_in_task, in_tasks, merge_in_task, merge_log, parse_args, run
from spark_log import Log, NewTopic
from spark_log.client.administering.erasure import ErasedShare, erase_records
from spark_log.metadata.state import TopicKey
from spark_log.node.erasing import Erasing
from spark_log.node.maintain import merge
from spark_log.node.merge_shares import MergeShare
from tests.spark.builders import finished_job, script

JOB = Path(__file__).parents[2] / "jobs/upkeep.py"
COMPACT = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0"}
PARTITIONS = 4
ROUNDS = 3
KEYS = 5


def append_old(log: Log, topic: str, first: int = 0) -> None:
    """Each key several times in each partition, in records that are old enough for compaction."""
    old = int(time.time() * 1000) - 7_200_000
    for number in range(first, first + ROUNDS):
        rows = [(partition, key) for partition in range(PARTITIONS) for key in range(KEYS)]
        log.append(
            topic,
            pa.table(
                {
                    "key": pa.array([b"k%d" % key for _, key in rows], pa.binary()),
                    "value": pa.array([b"%d" % number for _ in rows], pa.binary()),
                    "timestamp": [old] * len(rows),
                    "partition": [partition for partition, _ in rows],
                }
            ),
        )


@pytest.fixture
def compacted(log: Log) -> Log:
    log.admin.create_topics([NewTopic("t", PARTITIONS, COMPACT)])
    append_old(log, "t")
    return log


def pairs(log: Log, topic: str = "t") -> list[tuple[int, bytes, bytes]]:
    """(partition, key, value), sorted."""
    table = log.read(topic, columns=["partition", "key", "value"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


LATEST = [(partition, b"k%d" % key, b"%d" % (ROUNDS - 1)) for partition in range(PARTITIONS) for key in range(KEYS)]
REMOVED = PARTITIONS * KEYS * (ROUNDS - 1)


def plan(url: str) -> tuple[PlannedLog, list[TopicKey]]:
    journal = journal_of(Location(url=url, storage={}))
    return planned_log(Location(url=url, storage={}), journal), sorted(journal.refresh().partitions)


@pytest.mark.tasks
def test_tasks_merge_each_slice_once(spark: SparkSession, url: str, log: Log) -> None:
    """Each partition is merged by two tasks at a time, as with speculation; the sum counts each slice once."""
    log.admin.create_topics([NewTopic("t", PARTITIONS)])
    append_old(log, "t")
    before = pairs(log)
    planned, keys = plan(url)
    shares = [MergeShare((key,), frozenset()) for key in keys for _ in range(2)]
    results = in_tasks(spark, shares, partial(merge_in_task, planned))
    assert [said for _, problems in results for said in problems] == []
    assert sum(tally.slices for tally, _ in results) == PARTITIONS * ROUNDS
    assert sum(tally.segments for tally, _ in results) == PARTITIONS
    assert pairs(log) == before


def test_the_job_merges_what_is_small(
    spark: SparkSession, url: str, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver prints the sum, and a second run finds nothing to do."""
    log.admin.create_topics([NewTopic("t", PARTITIONS)])
    append_old(log, "t")
    before, location = pairs(log), Location(url=url, storage={})
    assert merge_log(spark, location)
    assert f"{PARTITIONS * ROUNDS} slices merged into {PARTITIONS} segments (" in capsys.readouterr().out
    assert pairs(log) == before
    assert merge_log(spark, location)
    assert "0 slices merged into 0 segments" in capsys.readouterr().out


@pytest.mark.tasks
def test_tasks_compact_each_partition_once(spark: SparkSession, url: str, compacted: Log) -> None:
    """Each partition is cleaned by two tasks at a time, as with speculation; the sum counts each record once."""
    planned, keys = plan(url)
    results = in_tasks(spark, [[key] for key in keys for _ in range(2)], partial(compact_group, planned))
    assert [said for _, problems in results for said in problems] == []
    assert sum(tally.records for tally, _ in results) == REMOVED
    assert pairs(compacted) == LATEST
    ((tally, _),) = in_tasks(spark, [keys], partial(compact_group, planned))
    assert (tally.partitions, tally.records) == (0, 0)  # the plan was old: nothing is due


@pytest.mark.tasks
def test_the_job_compacts_what_is_due(
    spark: SparkSession, url: str, compacted: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver prints the sum, and a second run finds nothing to do."""
    location = Location(url=url, storage={})
    assert compact_log(spark, location)
    assert f"{PARTITIONS} partitions compacted ({REMOVED} records and " in capsys.readouterr().out
    assert pairs(compacted) == LATEST
    assert compact_log(spark, location)
    assert "0 partitions compacted (0 records" in capsys.readouterr().out


KILLED = """
import os, signal, sys, threading, time
from functools import partial
from pathlib import Path
from jobs.upkeep import compact_group, in_tasks
from pyspark_pylog.open_log import journal_of, planned_log
from pyspark_pylog.options.parse import Location

url, marker = sys.argv[1:]
location = Location(url=url, storage={})
journal = journal_of(location)
planned = planned_log(location, journal)

def compact_killed(group):
    first = not os.path.exists(marker)
    Path(marker).touch()
    data = Path(url, "data")
    before = sum(1 for _ in data.rglob("*.seg"))

    def kill():
        while sum(1 for _ in data.rglob("*.seg")) == before:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    if first:
        threading.Thread(target=kill, daemon=True).start()
    found = compact_group(planned, group)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

spark = session("local[2,4]")
((tally, problems),) = in_tasks(spark, [sorted(journal.refresh().partitions)], compact_killed)
print("problems", problems)
spark.stop()
"""


def test_a_killed_task_is_repeated(url: str, compacted: Log, tmp_path: Path) -> None:
    """SIGKILL after the first new segment is written, or at the end at the latest."""
    marker = tmp_path / "began"
    done = finished_job(script(tmp_path / "job.py", KILLED), url, str(marker))
    assert "problems []" in done.stdout
    assert "Python worker exited unexpectedly" in done.stderr or "crashed" in done.stderr
    assert pairs(compacted) == LATEST


def fill_for_erasure(log: Log) -> None:
    """Objects of several partitions and topics, live ones and partly dead ones."""
    log.admin.create_topics([NewTopic("t", PARTITIONS), NewTopic("u", PARTITIONS)])
    append_old(log, "t")
    append_old(log, "u")
    merge(log)
    append_old(log, "t", ROUNDS)


@pytest.mark.tasks
def test_tasks_erase_from_objects(spark: SparkSession, url: str, log: Log) -> None:
    """Each object is a share, and is given to two tasks; the report counts each record once."""
    fill_for_erasure(log)
    planned, _ = plan(url)
    before, other = pairs(log), pairs(log, "u")
    given: list[int] = []

    def spread(erasing: Erasing, shares: Sequence[frozenset[str]]) -> list[ErasedShare]:
        single = [frozenset([name]) for share in shares for name in sorted(share)]
        given.append(len(single))
        work = partial(erase_in_task, planned, erasing.topic, erasing.topic_id, erasing.ends, erasing.keys, dry_run)
        return in_tasks(spark, [share for share in single for _ in range(1 if dry_run else 2)], work)

    for dry_run in (True, False):
        report = erase_records(log.journal, "t", [b"k1", b"k3"], dry_run=dry_run, spread=spread)
        assert (report.records, report.problems) == (2 * PARTITIONS * 2 * ROUNDS, ())
        assert (pairs(log) == before) == dry_run
    assert given[0] > 1
    assert pairs(log) == [row for row in before if row[1] not in (b"k1", b"k3")]
    assert pairs(log, "u") == other
    assert log.admin.erase_records("t", [b"k1", b"k3"]).objects == 0  # no dead copy is left either


def test_the_job_erases_and_reports(
    classic: SparkSession, url: str, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys from a file; the exit status is 1 if an object is damaged, and the other records are erased."""
    fill_for_erasure(log)
    keys = tmp_path / "keys.txt"
    keys.write_text("k1\nk3\n")
    assert run(classic, parse_args(["erase", url, "t", "--keys", str(keys)])) == 0
    assert f"erased {2 * PARTITIONS * 2 * ROUNDS} records of 2 keys" in capsys.readouterr().out
    assert {row[1] for row in pairs(log)} == {b"k0", b"k2", b"k4"}

    append_old(log, "t", 2 * ROUNDS)
    newest = max(Path(url, "data").rglob("*"), key=lambda path: (path.is_file(), path.stat().st_mtime_ns))
    content = bytearray(newest.read_bytes())
    content[len(content) // 3] ^= 255
    newest.write_bytes(content)
    env = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell"}
    command = [sys.executable, str(JOB), "erase", url, "t", "--key", "k1"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert newest.name in done.stdout


def test_a_damaged_partition_is_named_and_the_others_are_merged(
    classic: SparkSession, url: str, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1."""
    log.admin.create_topics([NewTopic("t", PARTITIONS)])
    append_old(log, "t")
    state = log.journal.refresh()
    first = state.partitions[state.names["t"], 0].entries[0]
    path = Path(url, first.object)
    content = bytearray(path.read_bytes())
    content[first.position + first.length // 2] ^= 255
    path.write_bytes(content)
    assert run(classic, parse_args(["merge", url])) == 1
    printed = capsys.readouterr().out
    assert f"{(PARTITIONS - 1) * ROUNDS} slices merged into {PARTITIONS - 1} segments" in printed
    assert "merging t-0 failed" in printed


def test_an_error_is_a_sentence_and_status_1(classic: SparkSession, url: str, log: Log) -> None:
    """A topic that does not exist is named.  `sys.exit` prints a message to standard error, and its status is 1."""
    message = run(classic, parse_args(["erase", url, "none", "--key", "k1"]))
    assert isinstance(message, str)
    assert "none" in message and "Traceback" not in message


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "verb"),
        (["erase", "file:///x", "t"], "--key"),
        (["erase", "file:///x", "t", "--key", "a", "--keys", "f"], "not allowed with"),
        (["compact", "file:///x", "--storage-option", "key"], "KEY=VALUE"),
    ],
)
def test_wrong_arguments(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence."""
    with pytest.raises(SystemExit) as ended:
        parse_args(args)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
