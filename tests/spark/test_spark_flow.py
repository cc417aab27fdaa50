"""Flows in tasks of Spark: what they do, and what is left of them when their processes are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import spark_log
from spark_log import NewTopic
from spark_log.errors import FunctionFailed, IllegalGeneration, InvalidRequest
from spark_log.flows.flow import Flow
from tests.spark.builders import wait_until
from tests.spark.submitted import draining, submitted

WAIT_S = 120.0
KILLS = int(os.environ.get("FLOW_KILLS", "1"))
"""Processes of tasks that are killed, one after the other."""
PARTITIONS = 4


def made(folder: Path) -> spark_log.Log:
    log = spark_log.connect(str(folder), durability="os")
    log.admin.create_topics([NewTopic("in", PARTITIONS), NewTopic("out", 1)])
    return log


def fill(log: spark_log.Log, *texts: str) -> None:
    log.append("in", [{"key": text, "value": text} for text in texts])


def out(log: spark_log.Log) -> list[str]:
    return sorted(value.decode() for value in log.read("out")["value"].to_pylist())


def positive() -> Callable[[pa.Table], pa.Table]:
    """A function that fails at a record with a minus.  Tasks cannot import this file, so it is sent as code."""

    def function(table: pa.Table) -> pa.Table:
        if pc.any(pc.starts_with(table["value"].cast(pa.string()), "-")).as_py():
            raise ValueError("negative")
        return table

    return function


def start(spark: SparkSession | None, log: spark_log.Log, **more: Any) -> Flow:
    given: dict[str, Any] = {"source": "in", "target": "out", "function": positive(), "tasks": 2, **more}
    return spark_log.flow(log.url, name="f", spark=spark, **given)


# Promise: tasks/flow.md#in-tasks-of-spark
def test_a_flow_runs_in_tasks_of_spark(classic: SparkSession, tmp_path: Path) -> None:
    """Its progress is that of its tasks; it stops by `stop`, and at a record at which the function fails.

    A stop cancels no job whose tasks have ended.
    """
    log, spark_jobs = made(tmp_path), classic.sparkContext.statusTracker()
    fill(log, *map(str, range(20)))
    with start(classic, log) as flow:
        flow.process_all_available(WAIT_S)
        fill(log, "20")
        flow.process_all_available(WAIT_S)
        progress = flow.progress
    assert (progress.records_in, progress.records_out, progress.lag, progress.restarts) == (21, 21, 0, 0)
    assert progress.error == "" and progress.batches >= 2 and progress.batch_ms_p50 > 0
    assert flow.progress.state == "stopped" and out(log) == sorted(map(str, range(21)))
    job = max(spark_jobs.getJobIdsForGroup())
    assert wait_until(lambda: spark_jobs.getJobInfo(job).status != "RUNNING")
    assert spark_jobs.getJobInfo(job).status == "SUCCEEDED"
    fill(log, "-1")
    with pytest.raises(FunctionFailed, match=r"ValueError: negative; nothing of its batch") as failed:
        start(classic, log).await_termination(WAIT_S)
    assert failed.value.topic == "in"


# Promise: tasks/flow.md#in-tasks-of-spark
def test_a_flow_that_is_started_elsewhere_ends_in_spark(classic: SparkSession, tmp_path: Path) -> None:
    """Spark does not start the tasks again, which would take it back."""
    log = made(tmp_path)
    fill(log, "0")
    older = start(classic, log)
    older.process_all_available(WAIT_S)
    with start(None, log) as newer:
        with pytest.raises(IllegalGeneration, match="another process has started this flow"):
            older.await_termination(WAIT_S)
        fill(log, "1")
        newer.process_all_available(WAIT_S)
    assert out(log) == ["0", "1"]


# Promise: tasks/flow.md#in-tasks-of-spark
def test_a_task_for_which_spark_has_no_core_is_named(classic: SparkSession, tmp_path: Path) -> None:
    """The flow can be stopped nevertheless."""
    log = made(tmp_path)
    with start(classic, log, tasks=3) as flow:
        assert wait_until(lambda: flow.progress.error.startswith("Spark has not started task 2: "))
    assert log.journal.refresh().groups["f"].shares == (), "a task that never ran has left the group, too"


# Promise: tasks/flow.md#in-tasks-of-spark
def test_sessions_that_cannot_run_a_flow_are_refused(
    classic: SparkSession, connect: SparkSession, tmp_path: Path
) -> None:
    """Each with what to do."""
    log = made(tmp_path)
    with pytest.raises(InvalidRequest, match="expected a SparkSession, got a str"):
        start("local", log)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="which a session of Spark Connect is not"):
        start(connect, log)
    classic.sparkContext._conf.set("spark.speculation", "true")
    try:
        with pytest.raises(InvalidRequest, match=r"set it to false"):
            start(classic, log)
    finally:
        classic.sparkContext._conf.set("spark.speculation", "false")


# Writes the id of each process of a task into a folder.
DRIVER = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
import spark_log

url, folder = sys.argv[1:]

def note(table):
    (Path(folder) / str(os.getpid())).touch()
    return table

spark = SparkSession.builder.getOrCreate()
flow = spark_log.flow(url, name="f", source="in", target="out", function=note, spark=spark, tasks=2)
flow.await_termination()
"""


# Promise: tasks/flow.md#in-tasks-of-spark
def test_records_have_their_effect_once_when_tasks_and_the_driver_are_killed(tmp_path: Path) -> None:
    """Spark starts a killed task again; another process continues when the application was killed.

    `FLOW_KILLS` says how many tasks are killed.
    """
    log = made(tmp_path / "log")
    (tmp_path / "pids").mkdir()
    (tmp_path / "driver.py").write_text(DRIVER)
    job = submitted(str(tmp_path / "driver.py"), log.url, str(tmp_path / "pids"), master=f"local[2,{KILLS + 3}]")
    done, sent, killed = draining(job), 0, set[int]()

    def pids() -> set[int]:
        return {int(path.name) for path in (tmp_path / "pids").iterdir()}

    def write() -> None:
        nonlocal sent
        fill(log, *(f"{n:06}" for n in range(sent, sent + 20)))
        sent += 20
        time.sleep(0.02)

    def write_until_processed_by(count: int) -> None:
        """By so many new processes, most likely while they have a batch."""
        until_s = time.monotonic() + WAIT_S
        while len(pids() - killed) < count:
            assert not done.done(), done.result()[2][-6000:]
            assert time.monotonic() < until_s
            write()

    try:
        write_until_processed_by(2)
        for _ in range(KILLS):
            killed.add(victim := min(pids() - killed))
            os.kill(victim, signal.SIGKILL)
            write_until_processed_by(2)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    write()
    with start(None, log) as flow:
        flow.process_all_available(WAIT_S)
    assert out(log) == [f"{n:06}" for n in range(sent)]
