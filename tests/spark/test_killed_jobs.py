"""All jobs that write, killed and run again: in one application under spark-submit, on a cluster with two executors.

Each job has a log of its own.  They run at the same time, until each of them has begun to write.  Then SIGKILL ends the
application, with its executors and their tasks.  A second application runs the same jobs to their end.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from spark_log import NewTopic, connect
from spark_log.node.maintain import merge
from spark_log.node.verify import verify
from tests.node.logs import append_small, new_log
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

    args = ["--url", log.url, "--throttle", "1KB"]
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


def backed_up(folder: Path) -> Case:
    log = new_log(folder / "log")
    append_small(log, 12)
    to = folder / "backups"

    def check(summary: dict[str, Any]) -> None:
        assert 0 < summary["copied_objects"] < summary["backup"]["objects"] == 12
        assert len(list(to.glob("backups/*/end.json"))) == 1

    args = ["--url", log.url, "--backups", str(to), "--create", "--throttle", "1KB"]
    return Case("backup", "run", args, lambda: any(to.glob("objects/*/data/*/*.seg")), check)


def mirrored(folder: Path) -> Case:
    log, copy = connect(str(folder / "source"), durability="os"), folder / "copy"
    log.admin.create_topics([NewTopic("orders", 1)])
    for first in range(0, 120, 10):
        log.append("orders", [{"value": b"%d" % n} for n in range(first, first + 10)])

    def check(summary: dict[str, Any]) -> None:
        columns = ["offset", "value", "timestamp"]
        there = connect(str(copy), create=False).read("orders", columns=columns)
        assert summary["groups_set"] and there.equals(log.read("orders", columns=columns))

    args = ["--source", log.url, "--url", str(copy), "--topics", "orders"]
    args += ["--checkpoint", f"{folder}/checkpoint", "--max-offsets", "20"]
    return Case("mirror_pylog", "run", args, lambda: segments(copy) > 2, check)


def backfilled(folder: Path) -> Case:
    log = new_log(folder / "log", retention_ms="-1")
    hours = [3_600_000 * n for n in range(8)]
    table = pa.table({"id": [str(n) for n in range(8)], "at": pa.array(hours, pa.int64())})
    pq.write_table(table, folder / "table.parquet")

    def rows() -> int:
        return log.admin.describe_topics(["t"])["t"].rows

    def check(summary: dict[str, Any]) -> None:
        assert summary["written_before"] > 0
        assert log.read("t").column("value").to_pylist() == [b"%d" % n for n in range(8)]

    args = ["--url", log.url, "--topic", "t", "--from", f"{folder}/table.parquet", "--value", "id"]
    return Case("backfill", "backfill", [*args, "--timestamp", "at", "--chunk-rows", "1"], lambda: rows() > 0, check)


def exported(folder: Path) -> Case:
    log, to = new_log(folder / "log", retention_ms="-1"), folder / "table"
    for first in range(0, 2000, 500):
        log.append("t", [{"value": b"%d" % n} for n in range(first, first + 500)])

    def check(summary: dict[str, Any]) -> None:
        table = ds.dataset(to, partitioning="hive").to_table(columns=["offset", "value"]).sort_by("offset")
        assert table.to_pylist() == log.read("t", columns=["offset", "value"]).to_pylist()

    args = ["--url", log.url, "--topic", "t", "--to", str(to), "--task-bytes", "1k"]
    return Case("export", "export", args, lambda: any(to.rglob("*.parquet")), check)


def measured(folder: Path) -> Case:
    log = connect(str(folder), durability="os")

    def check(summary: dict[str, Any]) -> None:
        assert summary["write"]["records"] == 300 and summary["read"]["records"] == 600
        assert len(log.admin.list_topics()) == 1, "of the killed job; the other one has deleted its topic"

    args = ["--url", log.url, "--parts", "write,read", "--rows", "300", "--rounds", "1"]
    return Case("bench", "bench", args, lambda: bool(log.admin.list_topics()), check)


CASES = (maintained, erased, replicated, verified, backed_up, mirrored, backfilled, exported, measured)


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
    cluster = {"master": "local-cluster[2,2,1024]", "spark.executor.memory": "512m"}
    confs = {**cluster, "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}

    first, begun = submitted(*given, "hold", **confs), set[str]()

    def all_begun() -> bool:
        begun.update(one.name for one in cases if one.name not in begun and one.has_begun())
        return len(begun) == len(cases)

    try:
        assert wait_until(lambda: all_begun() or first.poll() is not None)
        ended = first.poll()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        said = finished(first)[2][-6000:]
    assert ended is None, f"it ended before {[one.name for one in cases if one.name not in begun]} had begun: {said}"

    status, out, err = finished(submitted(*given, "end", **confs))
    assert status == 0, err[-6000:]
    found = json.loads(out.splitlines()[-1])
    for one in cases:
        summary, code = found[one.name]
        assert code == 0, (one.name, summary)
        one.check(summary)
