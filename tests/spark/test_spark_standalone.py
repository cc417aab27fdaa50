"""Jobs on a standalone cluster of Spark, whose processes are killed: `make test-standalone`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

import spark_log
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.verify import verify
from spark_log.store.local import TEMPORARY
from tests.servers.standalone import Standalone, kill_process, standalone
from tests.spark.builders import wait_until
from tests.spark.submitted import draining, submitted

ROWS, RECORDS = 400, 2400
"""Of a batch write; of the topic that the stream passes on."""

WRITES = f"""
import itertools, json, pathlib, sys, time
from pyspark.sql import SparkSession

url, folder = sys.argv[1], pathlib.Path(sys.argv[2])
spark = SparkSession.builder.getOrCreate()

def slowly(batches):
    for batch in batches:
        for at in range(0, batch.num_rows, 20):
            time.sleep(0.1)
            yield batch.slice(at, 20)

def executors():
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1

def say(number, result):
    with open(folder / "results", "a") as out:
        print(json.dumps([number, result]), file=out)

def write(number, topic="batches"):
    rows = spark.range(0, {ROWS}, 1, 6).selectExpr(f"concat('{{number}} ', id) as value")
    rows = rows.mapInArrow(slowly, "value string")
    rows.write.format("pylog").mode("append").option("topic", topic).save(url)

def try_to_write(number):
    try:
        write(number)
        say(number, "written")
    except Exception as error:
        say(number, f"failed: {{error}}")

def started():
    stream = spark.readStream.format("pylog").options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=200)
    rows = stream.load(url).select("value").mapInArrow(slowly, "value binary").writeStream.format("pylog")
    return rows.options(topic="out", checkpointLocation=str(folder / "checkpoint")).start(url)
"""
"""The applications share this.  Tasks take about a second."""

BATCHES_AND_A_STREAM = f"""{WRITES}
query = started()
for number in itertools.count(int(sys.argv[3])):
    if (folder / "enough").exists():
        break
    try_to_write(number)
query.processAllAvailable()
query.stop()
"""

IDLE_BETWEEN = f"""{WRITES}
def until(true):
    while not true():
        time.sleep(0.1)

query = started()
query.processAllAvailable()
for number in range(3):
    until(lambda: executors() == 0)
    say(number, "idle")
    rows = spark.range(0, {ROWS}, 1, 6).selectExpr(f"concat('{{number}} ', id) as value").repartition(6, "value")
    rows = rows.mapInArrow(slowly, "value string")
    rows.write.format("pylog").mode("append").option("topic", "batches").save(url)
    say(number, "written")
query.processAllAvailable()
query.stop()
"""

ONE_OF_EACH = f"""{WRITES}
def tried(name, action):
    try:
        action()
        say(name, "done")
    except Exception as error:
        say(name, f"failed: {{error}}")

tried("write", lambda: write(0))
tried("read", lambda: spark.read.format("pylog").option("subscribe", "in").load(url).collect())
def pass_on():
    query = started()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
tried("stream", pass_on)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    (tmp_path / "cluster").mkdir()
    with standalone(tmp_path / "cluster") as found:
        yield found


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    found = spark_log.connect(tmp_path / "log")
    found.admin.create_topics([spark_log.NewTopic(name, 4) for name in ("in", "out", "batches")])
    found.append("in", [{"value": b"%d" % number} for number in range(RECORDS)])
    return found


class Application:
    """A running one, which writes its results to a file."""

    def __init__(
        self, cluster: Standalone, log: spark_log.Log, folder: Path, code: str, *args: str, **confs: str
    ) -> None:
        self._results = folder / "results"
        script = folder / "application.py"
        script.write_text(code)
        executors = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        }
        arguments = (str(script), log.url, str(folder), *args)
        self.process = submitted(*arguments, master=cluster.master, **executors, **confs)
        self._output: Future[tuple[int, str, str]] = draining(self.process)

    def results(self) -> list[tuple[str | int, str]]:
        """The results of all applications that have run in the folder."""
        if not self._results.exists():
            return []
        return [(name, result) for name, result in map(json.loads, self._results.read_text().splitlines())]

    def wait(self, true: Callable[[], bool]) -> None:
        """Until it is so; fails if the application ends first."""
        assert wait_until(lambda: true() or self._output.done())
        assert true(), self._output.result()[2][-6000:]

    def finish(self) -> None:
        status, _, said = self._output.result()
        assert status == 0, said[-6000:]

    def kill(self) -> None:
        """The driver, and its JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self._output.result()


def passed_on(log: spark_log.Log) -> list[int]:
    return sorted(int(value) for value in log.read("out", columns=["value"]).column("value").to_pylist())


def batches(log: spark_log.Log) -> dict[int, list[int]]:
    """The rows of each batch write."""
    found: dict[int, list[int]] = defaultdict(list)
    for value in log.read("batches", columns=["value"]).column("value").to_pylist():
        number, row = map(int, value.split())
        found[number].append(row)
    return {number: sorted(rows) for number, rows in found.items()}


def objects(log: spark_log.Log, folder: Path) -> tuple[set[str], set[str]]:
    """Files of records, and those that the log names."""
    files = {str(path.relative_to(folder)) for path in folder.glob("data/**/*") if path.is_file()}
    return files, set(log.journal.refresh().objects)


def check_no_orphan_stays(log: spark_log.Log, folder: Path) -> None:
    """Maintenance deletes what killed tasks and writes have left."""
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})

    def is_clean() -> bool:
        maintain_once(log)
        files, named = objects(log, folder)
        return files == named

    assert wait_until(is_clean)
    assert not list(folder.rglob(f"{TEMPORARY}*"))


def start_faults(cluster: Standalone, application: Application, log: spark_log.Log, count: int, seed: int) -> None:
    """Kill an executor, or a worker, which is started again; each after more was written."""
    choices = random.Random(seed)

    def done() -> tuple[int, int]:
        return len(application.results()), log.read("out").num_rows

    for number in range(count):
        application.wait(partial(lambda before: done() > before, done()))
        if number % 2:
            worker = choices.choice(cluster.workers)
            worker.kill()
            worker.start()
        else:
            application.wait(lambda: bool(cluster.executors()))
            kill_process(choices.choice(cluster.executors()))


# Promise: deployment.md#on-a-standalone-cluster, testing.md#clusters
@pytest.mark.standalone
def test_executors_workers_and_a_driver_are_killed(cluster: Standalone, log: spark_log.Log, tmp_path: Path) -> None:
    """Batch writes are there whole or not at all, the stream passes on each record once, and no orphan stays."""
    for _ in range(3):
        cluster.add_worker()
    first = Application(cluster, log, tmp_path, BATCHES_AND_A_STREAM, "0")
    start_faults(cluster, first, log, 6, seed=1)
    first.kill()
    last = max((number for number, _ in first.results()), default=0)
    second = Application(cluster, log, tmp_path, BATCHES_AND_A_STREAM, str(int(last) + 2))
    start_faults(cluster, second, log, 6, seed=2)
    (tmp_path / "enough").touch()
    second.finish()
    assert passed_on(log) == list(range(RECORDS))
    found, results = batches(log), second.results()
    assert all(rows == list(range(ROWS)) for rows in found.values())
    written = {number for number, result in results if result == "written"}
    assert written and written <= set(found) <= {*written, int(last) + 1}
    check_no_orphan_stays(log, tmp_path / "log")
    assert verify(log, deep=True) == []


# Promise: deployment.md#on-a-standalone-cluster, testing.md#clusters
@pytest.mark.standalone
def test_executors_come_and_go(cluster: Standalone, log: spark_log.Log, tmp_path: Path) -> None:
    """Dynamic allocation with the external shuffle service: no executor between writes, and some are killed in them."""
    for number in range(3):
        cluster.add_worker(has_shuffle_service=number == 0)
    dynamic = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.maxExecutors": "3",
        "spark.shuffle.service.enabled": "true",
        "spark.shuffle.service.port": str(cluster.shuffle_port),
        "spark.executor.cores": "2",
    }
    application = Application(cluster, log, tmp_path, IDLE_BETWEEN, **dynamic)
    for number in range(3):
        application.wait(partial(lambda number: (number, "idle") in application.results(), number))
        application.wait(lambda: len(cluster.executors()) > 1)
        kill_process(cluster.executors()[0])
    application.finish()
    assert passed_on(log) == list(range(RECORDS))
    assert batches(log) == {number: list(range(ROWS)) for number in range(3)}
    check_no_orphan_stays(log, tmp_path / "log")


def can_unmount() -> bool:
    """Whether this user may give a process its own mounts."""
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /tmp"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    except FileNotFoundError:
        return False


# Promise: deployment.md#on-a-standalone-cluster, testing.md#clusters
@pytest.mark.standalone
def test_a_worker_without_the_folder_of_the_log(cluster: Standalone, log: spark_log.Log, tmp_path: Path) -> None:
    """The error of each operation names the worker's machine and what to do; nothing was written.  With a worker that
    has it, and tasks that are not tried again on one executor, the same application succeeds.
    """
    if not can_unmount():
        pytest.skip("a worker without a mount needs the right to mount, as root has it")
    folder = tmp_path / "log"
    cluster.add_worker(unmounted=folder)
    before = objects(log, folder)
    alone = Application(cluster, log, tmp_path, ONE_OF_EACH)
    alone.finish()
    results = dict(alone.results())
    assert set(results) == {"write", "read", "stream"}
    for result in results.values():
        assert result.startswith("failed") and "is its disk mounted?" in result
    assert objects(log, folder) == before and passed_on(log) == [] and batches(log) == {}
    cluster.add_worker()
    excluded = {"spark.excludeOnFailure.enabled": "true", "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "1"}
    Application(cluster, log, tmp_path, ONE_OF_EACH, **excluded).finish()
    assert dict(alone.results()) == dict.fromkeys(("write", "read", "stream"), "done")
    assert passed_on(log) == list(range(RECORDS)) and batches(log) == {0: list(range(ROWS))}
