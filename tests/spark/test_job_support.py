"""`pyspark_pylog.jobs.job_support`, which the jobs share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark_pylog.jobs.job_support import is_passing

from spark_log.errors import AuthenticationFailed, CoordinatorNotAvailable
from tests.spark.submitted import finished, local_cluster, submitted

WAVES = """
import json, threading, time
import spark_log
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.job_support import waves
spark = SparkSession.builder.getOrCreate()
found = waves(spark, range(1000))
sizes, cores = [len(next(found))], spark.sparkContext.defaultParallelism
threading.Thread(target=lambda: spark.range(0, 8, 1, 8).foreachPartition(lambda _: time.sleep(5)), daemon=True).start()
while spark.sparkContext.defaultParallelism == cores:
    time.sleep(0.1)
print(json.dumps([*sizes, len(next(found))]))
"""
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "0",
}


# Promise: tasks/mirror-topics.md#failures-of-a-job-that-repeats
@pytest.mark.parametrize(
    ("text", "passing"),
    [
        (
            "[STREAM_FAILED] Query [id = 1] failed: spark_log.errors.StorageUnavailable: SlowDown",
            True,
        ),
        ("spark_log.errors.CoordinatorNotAvailable: no answer\nspark_log.errors.SequenceConflict: batch 3", False),
        ("An exception was thrown from the Python worker.\nKeyError: 'a bug'", False),
        ("Job aborted: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", True),
        ("org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired", True),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: not authorized", False),
        ("[PATH_NOT_FOUND] Path does not exist: s3a://x", False),
    ],
)
def test_which_failed_query_is_run_again(text: str, passing: bool) -> None:
    """By the last error of pylog in its report, or by the exception of Spark, Java or Kafka."""
    for kind in (PySparkException, StreamingQueryException):
        assert is_passing(kind(text)) is passing
    assert is_passing(CoordinatorNotAvailable("failing over"))
    assert not is_passing(AuthenticationFailed("the token"))


@pytest.mark.slow
def test_waves_grow_with_the_executors(tmp_path: Path) -> None:
    """With dynamic allocation, an application begins without executors, which come when tasks wait."""
    script = tmp_path / "waves.py"
    script.write_text(WAVES)
    status, out, err = finished(submitted(str(script), **local_cluster(), **DYNAMIC))
    assert status == 0, err
    first, later = json.loads(out.splitlines()[-1])
    assert later == 2 * first
