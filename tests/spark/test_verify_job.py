"""`jobs/verify.py`: tasks look at objects and copies, and find what `pylog verify` finds."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.job_support import run_alone
from pyspark_pylog.jobs.verify import check, parse_args

from spark_log import Log, connect
from spark_log.errors import InvalidRequest, NoLog
from spark_log.recovery.verify import verify
from tests.maintenance.logs import append_small, new_log
from tests.replication.replicated_logs import brokers_of, folder_of, put, replicated_log
from tests.replication.test_replicator import flip

OF_DRIVER = "file:///proc/self/cwd/log"
"""In the current folder of a process.  Tasks are in the processes of Spark, whose current folder is another one."""


def checked(spark: SparkSession, log: Log, *more: str) -> tuple[dict[str, Any], int]:
    """The summary and exit status of a job in this process."""
    summary, status = check(spark, parse_args(["--url", log.url, *more]))
    json.dumps(summary)
    return summary, status


# Promise: operations.md#jobs
def test_tasks_find_what_one_process_finds(
    classic: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged object, by reading all bytes, and one that is not there; both as sentences.  A copy repairs them."""
    log = new_log(tmp_path / "log")
    append_small(log, 12)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    objects = sorted(log.journal.refresh().objects)
    planned, _ = checked(classic, log, "--deep", "--dry-run")
    summary, status = checked(classic, log, "--deep")
    assert (status, summary["problems"], planned["objects"]) == (0, [], 12)
    assert summary["checked"]["objects"] == 12 and 0 < summary["checked"]["bytes"] <= planned["bytes"]
    flip(0.3)(tmp_path / "log" / objects[0])
    assert checked(classic, log)[1] == 0
    (tmp_path / "log" / objects[1]).unlink()
    for more in ([], ["--deep"]):
        summary, status = checked(classic, log, *more)
        assert (status, summary["problems"]) == (1, [asdict(one) for one in verify(log, deep=bool(more))])
    assert {one["what"] for one in summary["problems"]} == set(objects[:2])
    assert f"{objects[1]}: the object is not there: offsets " in capsys.readouterr().err
    with pytest.raises(InvalidRequest, match="the log has no brokers"):
        checked(classic, log, "--repair")
    with pytest.raises(NoLog, match="nothing has no copy of the log: is its disk mounted"):
        checked(classic, log, "--repair-from", str(tmp_path / "nothing"))
    summary, status = checked(classic, log, "--deep", "--repair-from", str(tmp_path / "copy"))
    assert (status, sorted(summary["repaired"]), verify(log, deep=True)) == (0, objects[:2], [])


# Promise: operations.md#jobs
def test_tasks_look_at_each_copy_and_the_driver_repairs(classic: SparkSession, tmp_path: Path) -> None:
    """Copies on two roots, one of them damaged.  Records without any copy are given up, if that is asked for.  A root
    that is away is a problem, and the other copies are checked."""
    log = replicated_log(tmp_path, brokers=2)
    names = [put(log, [0, 1, 2]) for _ in range(3)]
    file = folder_of(log, tmp_path, 2) / names[1]
    good = file.read_bytes()
    flip(0.3)(file)
    summary, status = checked(classic, log, "--deep")
    (problem,) = summary["problems"]
    assert (status, problem["what"], summary["checked"]["copies"]) == (1, names[1], 9)
    assert problem["message"].startswith("broker 2: ")
    summary, status = checked(classic, log, "--deep", "--repair")
    assert (status, summary["repaired"], summary["problems"]) == (0, (f"broker 2: {names[1]}",), [])
    assert file.read_bytes() == good
    (folder_of(log, tmp_path, 1) / put(log, [1], 4)).unlink()
    summary, status = checked(classic, log, "--repair", "--lose-data")
    assert (status, len(summary["recorded_as_missing"])) == (0, 1)
    assert summary["given_up"] == [{"topic": "t", "partition": 0, "start": 30, "end": 34}]
    (tmp_path / "broker-1").rename(tmp_path / "away")
    summary, status = checked(classic, connect(log.url))
    assert status == 1 and [one["what"] for one in summary["problems"]] == ["broker 1"]


# Promise: operations.md#jobs
@pytest.mark.parametrize("more", [[], ["--deep", "--repair-from", "copy"]])
def test_a_root_that_tasks_do_not_have(
    classic: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    """As where only the driver's machine has mounted it: a sentence that names the machine, and no summary, because
    nothing is known of the objects."""
    log = new_log(tmp_path / "log")
    append_small(log, 3)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    damaged = tmp_path / "log" / min(log.journal.refresh().objects)
    flip(0.3)(damaged)
    before = damaged.read_bytes()
    monkeypatch.chdir(tmp_path)
    args = parse_args(["--url", OF_DRIVER, *more])
    with pytest.raises(SystemExit) as ended:
        run_alone("verify", partial(check, classic, args))
    assert ended.value.code == 1 and damaged.read_bytes() == before
    out, err = capsys.readouterr()
    said = err.splitlines()[-1]
    assert out == "" and said.startswith(f"verify: {OF_DRIVER} has no meta/format on {platform.node()}, ")
    assert "is its disk mounted?" in said


# Promise: operations.md#jobs
def test_no_copy_is_recorded_as_missing_because_tasks_do_not_have_its_root(
    classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are records given up of which no other broker has a copy."""
    name = put(replicated_log(tmp_path), [0])
    monkeypatch.chdir(tmp_path)
    with connect(OF_DRIVER) as log:
        summary, status = checked(classic, log, "--repair", "--lose-data")
        (problem,) = summary["problems"]
        assert (status, summary["recorded_as_missing"], summary["given_up"]) == (1, (), [])
        assert problem["what"] == "broker 0" and "its copies were not checked" in problem["message"]
        assert brokers_of(log.journal.refresh(), name) == (0,) and verify(log) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--lose-data"], "--lose-data needs --repair"),
        (["--repair", "--repair-from", "y"], "leave out --repair-from"),
        (["--repair-option", "key=1"], "--repair-from, which is missing"),
    ],
)
def test_repairs_that_do_not_fit_together(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence, as of `pylog verify`."""
    with pytest.raises(SystemExit) as ended:
        parse_args(["--url", "x", *args])
    assert ended.value.code == 2 and said in capsys.readouterr().err
