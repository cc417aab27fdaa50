"""What does a batch write encoded in the JVM cost beside the same write through Python?

A cached frame of 2 M rows with keys and values of 100 bytes, into a topic of 4 partitions, with zstd.  All figures are
ratios, in turn, of Python's seconds and CPU time of Spark with its Python processes by the JVM's; above 1, the JVM's
write is better.  `many_…`: into 1,000 partitions.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import common
from pyspark.sql import functions as F

import spark_log
from benchmarks.beside_kafka.machine import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

MANY = 1000


def frame(spark: SparkSession, count: int) -> DataFrame:
    """The rows, in memory."""
    text = F.col("id").cast("string")
    rows = spark.range(count).select(text.alias("key"), F.rpad(F.sha2(text, 256), 100, "x").alias("value"))
    rows = rows.cache()
    rows.count()
    return rows


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    with common.folder() as folder:
        url = f"{folder}/log"
        log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("t", common.PARTITIONS))
        log.create_topic(spark_log.NewTopic("many", MANY))
        rows = frame(spark, given.rows)

        def write(topic: str, native: str) -> None:
            rows.write.format("pylog").mode("append").options(topic=topic, nativeRead=native).save(url)

        def ratio(topic: str, now: Callable[[], float]) -> float:
            """Python's by the JVM's."""
            jvm, python = (lambda native=native: write(topic, native) for native in ("true", "false"))
            return common.pairs(jvm, python, rounds=given.rounds, warm=given.warm, now=now).ratio

        figures = {
            f"{name}_{unit}": ratio(topic, now)
            for name, topic in (("python", "t"), ("many", "many"))
            for unit, now in (("seconds", time.perf_counter), ("cpu", cpu))
        }
    common.report("native_write", rows=given.rows, cpu_target=1.6, **figures)


def cpu() -> float:
    """CPU seconds of this process and its children so far, once they have nothing to do."""
    time.sleep(0.2)
    return cpu_seconds([os.getpid()])


if __name__ == "__main__":
    main()
