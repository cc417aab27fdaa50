"""Other ways to run Spark: executors in separate processes, notebooks, an older PySpark, a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import spark_log
from tests.conftest import Bucket
from tests.spark.builders import append, as_bytes, copy, load, load_stream, numbers, run_job, script, values

MAIN_PATHS = """
import os

def main_paths(spark, url, checkpoint, limits={"maxOffsetsPerTrigger": 40}, **options):
    rows = spark.range(0, 100, 1, 4).selectExpr("string(id % 3) as key", "string(id) as value")
    rows.write.format("pylog").mode("append").options(topic="t", **options).save(url)
    frame = spark.read.format("pylog").options(subscribe="t", **options).load(url)
    assert sorted(int(row.value) for row in frame.collect()) == list(range(100))
    assert frame.count() == 100
    stream = spark.readStream.format("pylog").options(subscribe="t", startingOffsets="earliest", **options)
    stream = stream.options(**limits).load(url)
    writer = stream.writeStream.format("pylog").options(topic="copy", checkpointLocation=checkpoint, **options)
    writer.trigger(availableNow=True).start(url).awaitTermination()
    copied = spark.read.format("pylog").options(subscribe="copy", **options).load(url)
    assert sorted(int(row.value) for row in copied.collect()) == list(range(100))
    print("batches", len([name for name in os.listdir(f"{checkpoint}/commits") if name.isdecimal()]))
"""

CLUSTER = f"""
import os, sys
{MAIN_PATHS}
url, checkpoint, bucket, endpoint, path = sys.argv[1:]
spark = session(
    "local-cluster[2,1,1024]", spark_executor_memory="512m", spark_executorEnv_PYTHONPATH=path, spark_task_maxFailures="1",
    spark_executor_extraJavaOptions=os.environ["SPARK_SUBMIT_OPTS"],
    **{{"spark.executorEnv.AWS_ACCESS_KEY_ID": "", "spark.executorEnv.AWS_SECRET_ACCESS_KEY": ""}},
)
spark.range(0, 100, 1, 4).count()
main_paths(spark, url, checkpoint)
hosts = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
print("executors", hosts - 1)
try:
    frame = spark.range(3).selectExpr("string(id) as value")
    frame.write.format("pylog").mode("append").options(**{{"topic": "t", "storage.endpoint_url": endpoint}}).save(bucket)
except Exception as error:
    print("refused", " ".join(str(error).split()))
"""


class OnCluster(NamedTuple):
    """A job on a cluster with two executors."""

    printed: str
    bucket: Bucket


@pytest.fixture(scope="module")
def on_cluster(s3: Callable[[], Bucket], tmp_path_factory: pytest.TempPathFactory) -> OnCluster:
    """A write, a read and a stream; then a write to a bucket, whose credentials only the driver has."""
    bucket, folder = s3(), tmp_path_factory.mktemp("cluster")
    env = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
    places = (str(folder / "log"), str(folder / "checkpoint"), f"{bucket.url}/log", bucket.options["endpoint_url"])
    job = script(folder / "job.py", CLUSTER)
    return OnCluster(run_job(job, *places, os.environ["PYTHONPATH"], env=env), bucket)


@pytest.mark.slow
def test_executors_in_processes_of_their_own_share_a_log(on_cluster: OnCluster) -> None:
    """local-cluster with two executors: a write, a read and a stream."""
    assert "batches 3" in on_cluster.printed and "executors 2" in on_cluster.printed


# Promise: storage.md#credentials-and-endpoints
@pytest.mark.slow
def test_credentials_that_only_the_driver_has_are_missed_in_a_sentence(on_cluster: OnCluster) -> None:
    """In the environment of the driver, but not of the executors: nothing is written, and the message says what is
    missing.
    """
    _, refused, message = on_cluster.printed.partition("refused")
    assert refused and "credentials" in message.lower() and "spark_log/" not in message
    assert spark_log.connect(f"{on_cluster.bucket.url}/log", on_cluster.bucket.options).read("t").num_rows == 0


ISOLATED = f"""
import os, sys
import spark_log
{MAIN_PATHS}
url, checkpoint, path = sys.argv[1:]
spark = session(
    "local-cluster[1,2,1024]", spark_executor_memory="512m", spark_executorEnv_PYTHONPATH=path, spark_task_maxFailures="1",
    spark_executor_extraJavaOptions=os.environ["SPARK_SUBMIT_OPTS"], spark_sql_artifact_isolation_enabled="true",
)
spark_log.register(spark)
main_paths(spark, url, checkpoint)
"""


@pytest.mark.slow
def test_executors_get_the_classes_of_each_session(url: str, tmp_path: Path) -> None:
    """With isolated artifacts, a stream is a separate session, which has other jars."""
    places = (url, str(tmp_path / "checkpoint"), os.environ["PYTHONPATH"])
    assert "batches 3" in run_job(script(tmp_path / "job.py", ISOLATED), *places)


NOTEBOOK = """
import sys
import spark_log
spark = session("local[1]")
try:
    spark.read.format("pylog").option("subscribe", "t").load(sys.argv[1])
except Exception as error:
    print("not found" if "DATA_SOURCE_NOT_FOUND" in str(error) else error)
spark_log.register(spark)
rows = spark.createDataFrame([("v",)], "value string")
rows.write.format("pylog").mode("append").option("topic", "t").save(sys.argv[1])
print("found", spark.read.format("pylog").option("subscribe", "t").load(sys.argv[1]).count())
"""


@pytest.mark.slow
def test_register_serves_notebooks(url: str, tmp_path: Path) -> None:
    """With PYSPARK_DRIVER_PYTHON=jupyter Spark cannot look for sources; after register() it need not."""
    env = {"PYSPARK_DRIVER_PYTHON": "jupyter"}
    printed = run_job(script(tmp_path / "job.py", NOTEBOOK), url, env=env)
    assert "not found" in printed and "found 1" in printed


OLD = f"""
import sys, pyspark
from pyspark.sql import SparkSession
{MAIN_PATHS}
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
main_paths(spark, *sys.argv[1:], limits={{}})
print("version", pyspark.__version__)
"""


@pytest.fixture(scope="session")
def pyspark_4_0() -> Path:
    """A folder with PySpark 4.0, cached for the user, for the front of the path; all else is of this environment."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pylog-tests" / "pyspark-4.0-alone"
    if not (home / "ready").exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        install += ["--no-compile", "--target", home, "pyspark==4.0.*"]
        done = subprocess.run(install, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"PySpark 4.0 could not be installed: {done.stderr.strip().splitlines()[-1]}")
        (home / "ready").touch()
    return home


# Promise: testing.md#what-was-tested
@pytest.mark.slow
def test_pyspark_4_0_reads_writes_and_streams(pyspark_4_0: Path, url: str, tmp_path: Path) -> None:
    """The oldest version that is supported: a short run.  It knows no limits under available-now, so there are none."""
    job = tmp_path / "job.py"
    job.write_text(OLD)
    env = {"PYTHONPATH": os.pathsep.join((str(pyspark_4_0), os.environ["PYTHONPATH"]))}
    assert "version 4.0" in run_job(job, url, str(tmp_path / "checkpoint"), env=env)
    assert spark_log.connect(url).read("copy").num_rows == 100


def storage(bucket: Bucket) -> dict[str, Any]:
    return {f"storage.{name}": value for name, value in bucket.options.items()}


@pytest.mark.tasks
def test_a_bucket_is_written_and_read(spark: SparkSession, s3: Callable[[], Bucket], tmp_path: Path) -> None:
    """Batch and stream, with credentials and endpoint as storage.* options."""
    bucket = s3()
    url, options = f"{bucket.url}/log".replace("s3://", "s3a://"), storage(bucket)
    append(numbers(spark, range(20)), url, **options)
    assert values(load(spark, url, **options)) == as_bytes(range(20))
    copy(load_stream(spark, url, maxOffsetsPerTrigger=15, **options), url, "copy", tmp_path / "checkpoint", **options)
    assert values(load(spark, url, "copy", **options)) == as_bytes(range(20))


def test_a_missing_credential_is_said_in_a_sentence(spark: SparkSession, s3: Callable[[], Bucket]) -> None:
    """A wrong bucket as well; nothing is written."""
    bucket = s3()
    options = storage(bucket)
    with pytest.raises(Exception, match="no-such-bucket") as error:
        append(numbers(spark, [1]), "s3://no-such-bucket/log", **options)
    assert "spark_log/" not in str(error.value)
    del options["storage.key"], options["storage.secret"]
    with pytest.raises(Exception, match="(?i)credential") as error:
        append(numbers(spark, [1]), f"{bucket.url}/log", **options)
    assert "spark_log/" not in str(error.value)
    assert sys.modules["boto3"]
