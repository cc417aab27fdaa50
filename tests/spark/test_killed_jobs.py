"""All jobs that write, killed and run again: in an application under spark-submit, whose executors are other processes.

Each job has a separate log, and all run at the same time.  When each of them has begun to write, SIGKILL ends the
executor, and Spark starts another one.  When each job has ended, or has written more, SIGKILL ends the application.
Then the same jobs run to their end in this process.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from spark_log import Log, NewTopic, connect
from spark_log.maintenance.maintain import merge
from spark_log.recovery.verify import verify
from tests.maintenance.logs import append_small, new_log
from tests.replication.replicated_logs import brokers_of, folder_of, put, replicated_log
from tests.replication.test_replicator import flip
from tests.spark.builders import wait_until
from tests.spark.small_slices import COMPACT, KEYS, PARTITIONS, ROUNDS, append_old, pairs
from tests.spark.submitted import draining, local_cluster, submitted

APPLICATION = """
import importlib, json, pathlib, sys, threading, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
ended, gate = map(pathlib.Path, sys.argv[2:])

def run(name, function, args, waits):
    while waits and not gate.exists():
        time.sleep(0.1)
    job, status = importlib.import_module(f"pyspark_pylog.jobs.{name.partition('-')[0]}"), 1
    try:
        given = [job.parse_args(args)]
        status = getattr(job, function)(*(given if name == "admin" else [spark, *given]))[1]
    finally:
        (ended / name).write_text(str(status))

for one in json.loads(sys.argv[1]):
    threading.Thread(target=run, args=one).start()
time.sleep(600)
"""
EXECUTOR = b"CoarseGrainedExecutorBackend"
FAIR = {"spark.scheduler.mode": "FAIR"}
"""Tasks of all jobs take turns, so that none waits for the end of another one."""
FOREVER = {"retention.ms": "-1"}


class Case(NamedTuple):
    """A job."""

    name: str
    """The job, and what it is used for if there are several: `export-delta`."""
    function: str
    args: Sequence[str]
    written: Callable[[], int]
    """Grows while the job writes."""
    check: Callable[[dict[str, Any]], None]
    """After the second run, with its summary."""
    slowly: Sequence[str] = ()
    """More arguments of the run that is killed."""
    is_first: bool = False
    """It takes long to begin: the others wait for it, so that they have not ended by then."""


def segments(*folders: Path) -> int:
    return sum(1 for folder in folders for _ in folder.glob("data/*/*.seg"))


def maintained(folder: Path) -> Case:
    log = connect(str(folder), durability="os")
    log.admin.create_topics([NewTopic("t", PARTITIONS, COMPACT), NewTopic("u", PARTITIONS)])
    append_old(log, "t")
    append_old(log, "u")
    before = pairs(log, "u")

    def check(summary: dict[str, Any]) -> None:
        assert not summary["problems"] and summary["uncleaned"] == 0
        assert len(pairs(log)) == PARTITIONS * KEYS and pairs(log, "u") == before
        assert verify(log, deep=True) == []

    return Case("maintain", "maintain", ["--url", log.url], lambda: segments(folder), check)


def erased(folder: Path) -> Case:
    log = connect(str(folder), durability="os")
    log.admin.create_topics([NewTopic("t", PARTITIONS)])
    append_old(log, "t")
    merge(log)
    append_old(log, "t", ROUNDS)
    left = [row for row in pairs(log) if row[1] != b"k1"]

    def check(summary: dict[str, Any]) -> None:
        assert not summary["problems"] and pairs(log) == left
        assert log.admin.erase_records("t", [b"k1"], dry_run=True).objects == 0

    args = ["--url", log.url, "--topic", "t", "--key", "k1"]
    return Case("erase", "erase", args, lambda: segments(folder), check)


def replicated(folder: Path) -> Case:
    log = replicated_log(folder, replica_lag_time_max_ms="1")
    names = [put(log, [0, 1]) for _ in range(24)]

    def check(summary: dict[str, Any]) -> None:
        assert not summary["problems"]
        assert {brokers_of(log.journal.refresh(), name) for name in names} == {(0, 1, 2)}
        assert verify(log, deep=True) == []

    def copies() -> int:
        return sum(1 for _ in (folder / "broker-2").rglob("*.seg"))

    return Case("replicate", "replicate", ["--url", log.url], copies, check, ["--throttle", "4KB"])


def verified(folder: Path) -> Case:
    log = replicated_log(folder)
    names = [put(log, [0, 1, 2]) for _ in range(12)]
    files = [folder_of(log, folder, 2) / name for name in names]
    good = [file.read_bytes() for file in files]
    for file in files:
        flip(0.3)(file)

    def written() -> int:
        return sum(file.read_bytes() == content for file, content in zip(files, good, strict=True))

    def check(summary: dict[str, Any]) -> None:
        assert not summary["problems"] and written() == len(files)

    return Case("verify", "check", ["--url", log.url, "--deep", "--repair"], written, check)


def administered(folder: Path) -> Case:
    log = connect(str(folder), durability="os")
    file = folder / "topics.json"
    groups = {"g": {"positions": {"a": 0}}}
    file.write_text(json.dumps({"topics": {"a": {"partitions": 3}, "b": None}, "groups": groups}))

    def check(summary: dict[str, Any]) -> None:
        assert summary["changes"] == 0 and log.admin.list_topics() == ["a", "b"]

    args = ["--url", log.url, "apply", str(file)]
    return Case("admin", "administer", args, lambda: len(log.admin.list_topics()), check)


def measured(folder: Path) -> Case:
    log = connect(str(folder), durability="os")

    def check(summary: dict[str, Any]) -> None:
        assert summary["write"]["records"] == 300
        assert len(log.admin.list_topics()) <= 1, "of the killed job; the other one has deleted its topic"

    args = ["--url", log.url, "--parts", "write", "--rows", "300", "--rounds", "1"]
    return Case("bench", "bench", args, lambda: segments(folder), check, ["--rounds", "50"], True)


def filled(folder: Path) -> Case:
    """Rows of 40 hours."""
    log = connect(str(folder / "log"), durability="os")
    log.admin.create_topics([NewTopic("t", 2, FOREVER)])
    numbers = list(range(40))
    table = pa.table({"id": numbers, "at": [1_700_000_000_000 + n * 3_600_000 for n in numbers]})
    pq.write_table(table, folder / "rows.parquet")

    def check(summary: dict[str, Any]) -> None:
        assert summary["written_before"] > 0
        assert sorted(int(value) for value in log.read("t").column("value").to_pylist()) == numbers

    args = ["--url", log.url, "--topic", "t", "--from", str(folder / "rows.parquet"), "--timestamp", "at"]
    slowly = ["--chunk-rows", "1"]
    return Case("backfill", "backfill", [*args, "--value", "id"], lambda: segments(folder / "log"), check, slowly, True)


def backed_up(folder: Path) -> Case:
    log, to = new_log(folder / "log"), folder / "backups"
    append_small(log, 24)

    def objects() -> int:
        return sum(1 for _ in to.glob("objects/*/data/*/*.seg"))

    def check(summary: dict[str, Any]) -> None:
        assert summary["copied_objects"] < summary["backup"]["objects"] == objects() == 24

    args, slowly = ["--url", log.url, "--backups", str(to)], ["--create", "--throttle", "2KB"]
    return Case("backup", "run", args, objects, check, slowly)


def export(folder: Path, kind: str, values: Callable[[], list[bytes]], more: Sequence[str] = ()) -> Case:
    """An export to `folder / "table"`.

    values:  of the table, by the readers of its format.
    """
    log, to = connect(str(folder / "log"), durability="os"), folder / "table"
    log.admin.create_topics([NewTopic("t", 2, FOREVER)])
    log.append("t", [{"value": b"%d" % n} for n in range(5000)])

    def check(summary: dict[str, Any]) -> None:
        assert sorted(map(int, values())) == list(range(5000))

    args = ["--url", log.url, "--topic", "t", "--to", str(to), "--format", kind, *more]
    slowly = ["--task-bytes", "400"]
    return Case(f"export-{kind}", "export", args, lambda: len(list(to.rglob("*.parquet"))), check, slowly)


def in_files(names: Sequence[str]) -> list[bytes]:
    """Values of the files that a table names, by DuckDB.  Its readers of Delta and Iceberg would have to be fetched."""
    paths = [unquote(name.removeprefix("file://")) for name in names]
    return [value for (value,) in duckdb.sql(f"SELECT value FROM read_parquet({paths})").fetchall()]


def exported(folder: Path) -> Case:
    def values() -> list[bytes]:
        found = ds.dataset(folder / "table", partitioning="hive").to_table(columns=["value"])
        return found.column("value").to_pylist()

    return export(folder, "parquet", values)


def exported_to_delta(folder: Path) -> Case:
    def values() -> list[bytes]:
        table = DeltaTable(str(folder / "table"))
        found: list[bytes] = table.to_pyarrow_table().column("value").to_pylist()
        assert sorted(found) == sorted(in_files(table.file_uris()))
        return found

    return export(folder, "delta", values)


def exported_to_iceberg(folder: Path) -> Case:
    uri = f"sqlite:///{folder}/catalog.db"

    def values() -> list[bytes]:
        table = load_catalog("lake", uri=uri).load_table("db.t")
        found: list[bytes] = table.scan().to_arrow().column("value").to_pylist()
        assert sorted(found) == sorted(in_files(table.inspect.files()["file_path"].to_pylist()))
        return found

    more = ["--catalog", "lake", "--catalog-option", f"uri={uri}", "--table", "db.t"]
    return export(folder, "iceberg", values, more)


def mirrored(folder: Path) -> Case:
    log, copy = connect(str(folder / "log"), durability="os"), folder / "copy"
    log.admin.create_topics([NewTopic("t", 2)])
    log.append("t", [{"value": b"%d" % n, "partition": n % 2} for n in range(400)])

    def values(of: Log) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in of.read("t", columns=["partition", "offset", "value"]).to_pylist()]

    def check(summary: dict[str, Any]) -> None:
        assert summary["groups_set"] and values(connect(str(copy), create=False)) == values(log)

    args = ["--source", log.url, "--url", str(copy), "--topics", "t", "--checkpoint", str(folder / "checkpoint")]
    return Case("mirror_pylog", "run", args, lambda: segments(copy), check, ["--max-offsets", "10"], True)


CASES = (
    maintained,
    erased,
    replicated,
    verified,
    administered,
    measured,
    filled,
    backed_up,
    mirrored,
    exported,
    exported_to_delta,
    exported_to_iceberg,
)


class Application:
    """The jobs of all cases under spark-submit, on a local cluster."""

    def __init__(self, folder: Path, cases: Sequence[Case]) -> None:
        self._cases, self._ended, self._gate = cases, folder / "ended", folder / "gate"
        self._ended.mkdir()
        script = folder / "application.py"
        script.write_text(APPLICATION)
        jobs = [[one.name, one.function, [*one.args, *one.slowly], not one.is_first] for one in cases]
        args = (str(script), json.dumps(jobs), str(self._ended), str(self._gate))
        self._process = submitted(*args, **local_cluster(), **FAIR)
        self._output = draining(self._process)
        self._before = self.written()

    def written(self) -> dict[str, int]:
        return {one.name: one.written() for one in self._cases}

    def wait_for(self, cases: Sequence[Case], before: dict[str, int]) -> bool:
        """Until each of them has written more than before, or has ended."""
        left = {one.name: one for one in cases}

        def all_have() -> bool:
            for name, one in list(left.items()):
                if one.written() > before[name] or (self._ended / name).exists():
                    del left[name]
            return not left

        wait_until(lambda: all_have() or self._output.done())
        return not left

    def run(self) -> bool:
        """Until each job has written more with another executor, or has ended."""
        if not self.wait_for([one for one in self._cases if one.is_first], self._before):
            return False
        self._gate.touch()
        if not self.wait_for(self._cases, self._before):
            return False
        before, executors = self.written(), list(self._executors())
        assert executors
        for one in executors:
            os.kill(one, signal.SIGKILL)
        return self.wait_for(self._cases, before)

    def _executors(self) -> Iterator[int]:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended
                pid = int(file.parent.name)
                if os.getpgid(pid) == self._process.pid and EXECUTOR in file.read_bytes():
                    yield pid

    def ended(self) -> dict[str, int]:
        """The status of each job that has ended."""
        return {file.name: int(file.read_text() or 0) for file in self._ended.iterdir()}

    def kill(self) -> str:
        """Its standard error."""
        os.killpg(self._process.pid, signal.SIGKILL)
        return self._output.result()[2][-6000:]


# Promise: operations.md#jobs, performance.md#large-topics, tasks/backfill.md#a-large-table,
# Promise: tasks/backup.md#if-a-job-is-killed, tasks/export.md#delta-and-iceberg,
# Promise: tasks/export.md#each-record-is-exported-once, tasks/mirror-topics.md#mirror-topics-to-another-log
@pytest.mark.slow
def test_jobs_that_are_killed_are_run_again(tmp_path: Path, classic: SparkSession) -> None:
    """No record is lost or there twice, and nothing is left to do."""
    cases = list[Case]()
    for make in CASES:
        folder = tmp_path / make.__name__
        folder.mkdir()
        cases.append(make(folder))
    application = Application(tmp_path, cases)
    try:
        has_gone_on, ended = application.run(), application.ended()
    finally:
        said = application.kill()
    assert has_gone_on and set(ended.values()) <= {0}, f"ended: {ended}, written: {application.written()}: {said}"
    for one in cases:
        job = importlib.import_module(f"pyspark_pylog.jobs.{one.name.partition('-')[0]}")
        given = [job.parse_args(one.args)]  # jobs/admin.py needs no Spark
        summary, status = getattr(job, one.function)(*(given if one.name == "admin" else [classic, *given]))
        assert status == 0, (one.name, summary)
        one.check(summary)
