"""`pyspark_pylog.job_support`, which the jobs share, under spark-submit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark.submitted import finished, local_cluster, submitted

WAVES = """
import json, threading, time
import spark_log
from pyspark.sql import SparkSession
from pyspark_pylog.job_support import waves
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


@pytest.mark.slow
def test_waves_grow_with_the_executors(tmp_path: Path) -> None:
    """With dynamic allocation, an application begins without executors, which come when tasks wait."""
    script = tmp_path / "waves.py"
    script.write_text(WAVES)
    status, out, err = finished(submitted(str(script), **local_cluster(), **DYNAMIC))
    assert status == 0, err
    first, later = json.loads(out.splitlines()[-1])
    assert later == 2 * first
