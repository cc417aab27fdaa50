"""Jobs on a real YARN in cluster mode, as docs/deployment.md says: `make test-yarn`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import spark_log
from tests.packaging.test_install import copy_of_project
from tests.processes import eventually
from tests.servers.yarn import yarn

JOBS = Path(__file__).parents[2] / "jobs"
SPARK = Path(pyspark.__file__).parent
SUBMIT = Path(sys.executable).parent / "spark-submit"
RUN_S = 300
OF_TESTS = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_CONF_DIR")
"""Variables of the test run that Spark would pass on to the driver."""

PASS_ON = """
import sys
import spark_log
from pyspark.sql import SparkSession

url, checkpoint, facts = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark_log.register(spark)
stream = spark.readStream.format("pylog").options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=50)
writer = stream.load(url).writeStream.format("pylog").options(topic="out", checkpointLocation=checkpoint)
writer.trigger(availableNow=True).start(url).awaitTermination()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
with open(facts, "w") as out:
    print(spark.sparkContext.master, executors, spark_log.__file__, file=out)
"""
"""A stream from one topic to another, which ends when it has all records."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yarn")


@pytest.fixture(scope="module")
def conf(folder: Path) -> Iterator[Path]:
    with yarn(folder) as found:
        yield found


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, copy_of_project(folder / "project"))
    return next(folder.glob("spark_log-*.whl"))


@pytest.fixture(scope="module")
def environment(folder: Path, wheel: Path) -> Path:
    """An environment with pylog, and without Spark, which the nodes have; packed as the page says."""
    _run(Path(sys.base_prefix, "bin", "python3"), "-m", "venv", folder / "environment")
    pip = folder / "environment" / "bin" / "pip"
    _run(pip, "install", "-q", "--disable-pip-version-check", wheel, "venv-pack")
    _run(pip.parent / "venv-pack", "-q", "-p", folder / "environment", "-o", folder / "environment.tar.gz")
    return folder / "environment.tar.gz"


@pytest.fixture(scope="module")
def libraries(folder: Path) -> str:
    """PySpark as the archives that Spark's download has, and its package for pip has not."""
    for name in ("pyspark", "py4j"):
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            files = [file for kind in ("*.py", "*.json") for file in (SPARK.parent / name).rglob(kind)]
            for file in files:
                archive.write(file, file.relative_to(SPARK.parent))
    return f"local:{folder}/pyspark.zip,local:{folder}/py4j.zip"


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, timeout=RUN_S)


class Cluster:
    """Submits jobs in cluster mode, with the nodes' Spark."""

    def __init__(self, folder: Path, conf: Path, libraries: str, environment: Path) -> None:
        self.folder = folder
        self._env = {
            **{name: value for name, value in os.environ.items() if name not in OF_TESTS},
            "SPARK_HOME": str(SPARK),
            "HADOOP_CONF_DIR": str(conf),
            "PYSPARK_ARCHIVES_PATH": libraries,
            "JAVA_HOME": str(Path(str(shutil.which("java"))).resolve().parents[1]),
        }
        python = "./environment/bin/python"
        self._confs = {
            "spark.yarn.jars": f"local:{SPARK}/jars/*",
            "spark.yarn.stagingDir": f"file://{folder}/staging",
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": python,
            "spark.executorEnv.PYSPARK_PYTHON": python,
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "768m",
        }
        self._archive = f"{environment}#environment"

    def submit(self, *job: str | Path) -> subprocess.Popen[bytes]:
        confs = [part for name, value in self._confs.items() for part in ("--conf", f"{name}={value}")]
        command = [SUBMIT, "--master", "yarn", "--deploy-mode", "cluster", "--archives", self._archive, *confs, *job]
        with (self.folder / "submitted").open("ab") as out:
            return subprocess.Popen(command, env=self._env, stdout=out, stderr=out)

    def run(self, *job: str | Path) -> None:
        assert self.submit(*job).wait(RUN_S) == 0, (self.folder / "submitted").read_text()[-5000:]

    def masters(self) -> list[int]:
        """Processes of application masters in the cluster's containers: their drivers."""
        found = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = place.read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            ours = any(str(self.folder).encode() in word for word in words)
            if ours and words[0].endswith(b"/java") and b"org.apache.spark.deploy.yarn.ApplicationMaster" in words:
                found.append(int(place.parent.name))
        return found


@pytest.fixture(scope="module")
def cluster(folder: Path, conf: Path, libraries: str, environment: Path) -> Cluster:
    return Cluster(folder, conf, libraries, environment)


def job_of(folder: Path) -> Path:
    path = folder / "pass_on.py"
    path.write_text(PASS_ON)
    return path


def filled(folder: Path, count: int) -> spark_log.Log:
    log = spark_log.connect(str(folder / "log"))
    log.append("in", [{"value": b"%d" % number} for number in range(count)])
    return log


def values(log: spark_log.Log, topic: str) -> list[int]:
    return sorted(int(value) for value in log.read(topic, columns=["value"]).column("value").to_pylist())


# Promise: deployment.md#yarn
@pytest.mark.yarn
def test_a_stream_whose_driver_is_killed_continues_in_the_next_attempt(cluster: Cluster, tmp_path: Path) -> None:
    """The environment is shipped as an archive.  YARN starts the driver again, and each record is passed on once."""
    log = filled(tmp_path, 2000)
    job = cluster.submit(job_of(tmp_path), log.url, tmp_path / "checkpoint", tmp_path / "facts")
    eventually(lambda: "out" in log.topics() and log.read("out").num_rows >= 100, RUN_S)
    (driver,) = cluster.masters()
    os.kill(driver, signal.SIGKILL)
    assert job.wait(RUN_S) == 0, (cluster.folder / "submitted").read_text()[-5000:]
    assert values(log, "out") == list(range(2000))
    master, executors, place = (tmp_path / "facts").read_text().split()
    assert (master, executors) == ("yarn", "2") and "/environment/lib/" in place


# Promise: deployment.md#yarn
@pytest.mark.yarn
def test_pylog_is_shipped_as_a_file_of_python(cluster: Cluster, wheel: Path, tmp_path: Path) -> None:
    """`--py-files`: the wheel, as a zip, for nodes whose Python has what it needs."""
    log, archive = filled(tmp_path, 100), tmp_path / "pylog.zip"
    shutil.copy(wheel, archive)
    cluster.run("--py-files", archive, job_of(tmp_path), log.url, tmp_path / "checkpoint", tmp_path / "facts")
    assert values(log, "out") == list(range(100))
    assert "pylog.zip" in (tmp_path / "facts").read_text()


# Promise: deployment.md#yarn
@pytest.mark.yarn
def test_a_job_of_pylog_runs_there(cluster: Cluster, tmp_path: Path) -> None:
    """`jobs/backfill.py` writes a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {
        "n": [str(number) for number in range(50)],
        "ms": [1_700_000_000_000 + 1000 * number for number in range(50)],
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    log = filled(tmp_path, 1)
    log.create_topic(spark_log.NewTopic("old", 2))
    cluster.run(
        *(JOBS / "backfill.py", "--url", log.url, "--topic", "old", "--from", tmp_path / "rows.parquet"),
        *("--value", "n", "--timestamp", "ms"),
    )
    assert values(log, "old") == list(range(50))
