"""`jobs/erase.py`: tasks share an erasure, also if they run twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.erase import erase, erase_in_task, parse_args
from pyspark_pylog.jobs.job_support import in_tasks
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.options.parse import Location

from spark_log import Log, NewTopic
from spark_log.client.admin.erasure import ErasedShare, erase_records
from spark_log.errors import UnknownTopicOrPartition
from spark_log.maintenance.maintain import merge
from spark_log.rewriting.erasing import Erasing
from tests.spark.small_slices import PARTITIONS, ROUNDS, append_old, pairs


def fill_for_erasure(log: Log) -> None:
    """Objects of several partitions and topics, live ones and partly dead ones."""
    log.admin.create_topics([NewTopic("t", PARTITIONS), NewTopic("u", PARTITIONS)])
    append_old(log, "t")
    append_old(log, "u")
    merge(log)
    append_old(log, "t", ROUNDS)


# Promise: tasks/erase.md#large-topics
@pytest.mark.tasks
def test_tasks_erase_from_objects(spark: SparkSession, url: str, log: Log) -> None:
    """Each object is a share, and is given to two tasks; the report counts each record once."""
    fill_for_erasure(log)
    location = Location(url=url, storage={})
    planned = planned_log(location, journal_of(location))
    before, other = pairs(log), pairs(log, "u")
    given: list[int] = []

    def spread(erasing: Erasing, shares: Sequence[frozenset[str]]) -> list[ErasedShare]:
        single = [frozenset([name]) for share in shares for name in sorted(share)]
        given.append(len(single))
        work = partial(erase_in_task, planned, erasing, dry_run)
        return in_tasks(spark, [share for share in single for _ in range(1 if dry_run else 2)], work)

    for dry_run in (True, False):
        report = erase_records(log.journal, "t", [b"k1", b"k3"], dry_run=dry_run, spread=spread)
        assert (report.records, report.problems) == (2 * PARTITIONS * 2 * ROUNDS, ())
        assert (pairs(log) == before) == dry_run
    assert given[0] > 1
    assert pairs(log) == [row for row in before if row[1] not in (b"k1", b"k3")]
    assert pairs(log, "u") == other
    assert log.admin.erase_records("t", [b"k1", b"k3"]).objects == 0  # no dead copy is left either


def done(spark: SparkSession, url: str, *more: str) -> tuple[dict[str, Any], int]:
    """The summary and exit status of a job in this process."""
    summary, status = erase(spark, parse_args(["--url", url, "--topic", "t", *more]))
    json.dumps(summary)
    return summary, status


# Promise: tasks/erase.md#large-topics
def test_the_job_erases_and_reports(
    classic: SparkSession, url: str, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys from a file; the exit status is 1 if an object is damaged, and the other records are erased."""
    fill_for_erasure(log)
    keys = tmp_path / "keys.txt"
    keys.write_text("k1\nk3\n")
    count = 2 * PARTITIONS * 2 * ROUNDS
    for more in (["--dry-run"], []):
        summary, status = done(classic, url, "--keys", str(keys), *more)
        assert (status, summary["records"], summary["keys"]) == (0, count, 2)
    said = capsys.readouterr().err
    assert f"would erase {count} records of 2 keys" in said and f"erased {count} records of 2 keys" in said
    assert {row[1] for row in pairs(log)} == {b"k0", b"k2", b"k4"}

    append_old(log, "t", 2 * ROUNDS)
    newest = max(Path(url, "data").rglob("*"), key=lambda path: (path.is_file(), path.stat().st_mtime_ns))
    content = bytearray(newest.read_bytes())
    content[len(content) // 3] ^= 255
    newest.write_bytes(content)
    summary, status = done(classic, url, "--key", "k1")
    assert status == 1 and any(newest.name in problem for problem in summary["problems"])
    with pytest.raises(UnknownTopicOrPartition, match="none"):
        done(classic, url, "--key", "k1", "--topic", "none")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--topic"),
        (["--topic", "t"], "--key"),
        (["--topic", "t", "--key", "a", "--keys", __file__], "not allowed with"),
        (["--topic", "t", "--keys", "/none/keys.txt"], "is not a file"),
    ],
)
def test_wrong_arguments(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence."""
    with pytest.raises(SystemExit) as ended:
        parse_args(["--url", "file:///x", *args])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
