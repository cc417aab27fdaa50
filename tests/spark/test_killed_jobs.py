"""Jobs that keep logs in order, killed and run again: in one application under spark-submit, on a local cluster.

Each job has a separate log.  They run at the same time, until each of them has begun to write.  Then SIGKILL ends the
application, with its executor and the tasks.  A second application runs the same jobs to their end.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_log import NewTopic, connect
from spark_log.node.maintain import merge
from spark_log.node.verify import verify
from tests.node.replicated_logs import brokers_of, folder_of, put, replicated_log
from tests.node.test_replicator import flip
from tests.spark.builders import wait_until
from tests.spark.small_slices import COMPACT, KEYS, PARTITIONS, ROUNDS, append_old, pairs
from tests.spark.submitted import finished, submitted

APPLICATION = """
import importlib, json, sys, threading, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
found, hold = {}, sys.argv[2] == "hold"

def run(name, function, args):
    job = importlib.import_module(f"jobs.{name}")
    found[name] = getattr(job, function)(spark, job.parse_args(args))

threads = [threading.Thread(target=run, args=one) for one in json.loads(sys.argv[1])]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if hold:
    time.sleep(600)
print(json.dumps(found))
"""


class Case(NamedTuple):
    """A job."""

    name: str
    function: str
    args: list[str]
    has_begun: Callable[[], bool]
    check: Callable[[dict[str, Any]], None]
    """After the second run, with its summary."""


def segments(*folders: Path) -> int:
    return sum(1 for folder in folders for _ in folder.glob("data/*/*.seg"))


def maintained(folder: Path) -> Case:
    log = connect(str(folder), durability="os")
    log.admin.create_topics([NewTopic("t", PARTITIONS, COMPACT), NewTopic("u", PARTITIONS)])
    append_old(log, "t")
    append_old(log, "u")
    before, count = pairs(log, "u"), segments(folder)

    def check(summary: dict[str, Any]) -> None:
        assert summary["problems"] == [] and summary["uncleaned"] == 0
        assert len(pairs(log)) == PARTITIONS * KEYS and pairs(log, "u") == before
        assert verify(log, deep=True) == []

    return Case("maintain", "maintain", ["--url", log.url], lambda: segments(folder) > count, check)


def erased(folder: Path) -> Case:
    log = connect(str(folder), durability="os")
    log.admin.create_topics([NewTopic("t", PARTITIONS)])
    append_old(log, "t")
    merge(log)
    append_old(log, "t", ROUNDS)
    left, count = [row for row in pairs(log) if row[1] != b"k1"], segments(folder)

    def check(summary: dict[str, Any]) -> None:
        assert summary["problems"] == [] and pairs(log) == left
        assert log.admin.erase_records("t", [b"k1"], dry_run=True).objects == 0

    args = ["--url", log.url, "--topic", "t", "--key", "k1"]
    return Case("erase", "erase", args, lambda: segments(folder) > count, check)


def replicated(folder: Path) -> Case:
    log = replicated_log(folder, replica_lag_time_max_ms="1")
    names = [put(log, [0, 1]) for _ in range(12)]

    def check(summary: dict[str, Any]) -> None:
        assert summary["problems"] == []
        assert {brokers_of(log.journal.refresh(), name) for name in names} == {(0, 1, 2)}
        assert verify(log, deep=True) == []

    args = ["--url", log.url, "--throttle", "4KB"]
    return Case("replicate", "replicate", args, lambda: any((folder / "broker-2").rglob("*.seg")), check)


def verified(folder: Path) -> Case:
    log = replicated_log(folder)
    names = [put(log, [0, 1, 2]) for _ in range(3)]
    files = [folder_of(log, folder, 2) / name for name in names]
    good = [file.read_bytes() for file in files]
    for file in files:
        flip(0.3)(file)

    def check(summary: dict[str, Any]) -> None:
        assert summary["problems"] == [] and [file.read_bytes() for file in files] == good

    def has_begun() -> bool:
        return any(file.read_bytes() == content for file, content in zip(files, good, strict=True))

    return Case("verify", "check", ["--url", log.url, "--deep", "--repair"], has_begun, check)


def measured(folder: Path) -> Case:
    log = connect(str(folder), durability="os")

    def check(summary: dict[str, Any]) -> None:
        assert summary["write"]["records"] == 300 and summary["read"]["records"] == 600
        assert len(log.admin.list_topics()) <= 1, "of the killed job; the other one has deleted its topic"

    args = ["--url", log.url, "--parts", "write,read", "--rows", "300", "--rounds", "1"]
    return Case("bench", "bench", args, lambda: bool(log.admin.list_topics()), check)


CASES = (maintained, erased, replicated, verified, measured)


@pytest.mark.slow
def test_jobs_that_are_killed_are_run_again(tmp_path: Path) -> None:
    """No record is lost or there twice, and nothing is left to do."""
    cases = list[Case]()
    for make in CASES:
        folder = tmp_path / make.__name__
        folder.mkdir()
        cases.append(make(folder))
    script = tmp_path / "application.py"
    script.write_text(APPLICATION)
    given = [str(script), json.dumps([[one.name, one.function, one.args] for one in cases])]
    cluster = {"master": "local-cluster[1,2,1024]", "spark.executor.memory": "512m"}
    confs = {**cluster, "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}

    first, begun = submitted(*given, "hold", **confs), set[str]()

    def all_begun() -> bool:
        begun.update(one.name for one in cases if one.name not in begun and one.has_begun())
        return len(begun) == len(cases)

    try:
        wait_until(lambda: all_begun() or first.poll() is not None)
        ended = first.poll()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        said = finished(first)[2][-6000:]
    assert (ended, len(begun)) == (None, len(cases)), f"only {sorted(begun)} had begun: {said}"

    status, out, err = finished(submitted(*given, "end", **confs))
    assert status == 0, err[-6000:]
    found = json.loads(out.splitlines()[-1])
    for one in cases:
        summary, code = found[one.name]
        assert code == 0, (one.name, summary)
        one.check(summary)
