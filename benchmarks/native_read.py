"""What does a batch read in the JVM cost beside the same read through Python, and beside a Parquet table?

A topic of 4 M records of 100 bytes in 4 partitions, and a Parquet table of the same rows with zstd.  All figures are
ratios, in turn, of seconds and of the CPU time of Spark with its Python processes; above 1, the JVM's read is better:

* `python_…`, `parquet_…`: all columns; targets 2.5 and 1;
* `value_python`, `count_python`: seconds of `select("value")` and of `count()`.
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

    from pyspark.sql import DataFrame


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    with common.folder() as folder:
        url, table = f"{folder}/log", f"{folder}/table"
        spark_log.connect(url).create_topic(spark_log.NewTopic("t", common.PARTITIONS))
        rows = spark.range(given.rows).select(
            F.col("id").cast("string").alias("key"),
            F.rpad(F.sha2(F.col("id").cast("string"), 256), 100, "x").alias("value"),
        )
        rows.write.format("pylog").mode("append").option("topic", "t").save(url)

        def load(**options: str) -> DataFrame:
            return spark.read.format("pylog").options(subscribe="t", **options).load(url)

        def ratio(one: Callable[[], object], other: Callable[[], object], now: Callable[[], float]) -> float:
            """The other query by the first."""
            return common.pairs(one, other, rounds=given.rounds, warm=given.warm, now=now).ratio

        load().write.option("compression", "zstd").parquet(table)
        jvm, python, parquet = load(), load(nativeRead="false"), spark.read.parquet(table)
        figures = {
            f"{name}_{unit}": ratio(lambda: noop(jvm), lambda other=other: noop(other), now)  # type: ignore[misc]
            for name, other in (("python", python), ("parquet", parquet))
            for unit, now in (("seconds", time.perf_counter), ("cpu", cpu))
        }
        figures["value_python"] = ratio(
            lambda: noop(jvm.select("value")), lambda: noop(python.select("value")), time.perf_counter
        )
        figures["count_python"] = ratio(jvm.count, python.count, time.perf_counter)
    common.report("native_read", rows=given.rows, python_target=2.5, parquet_target=1, **figures)


def cpu() -> float:
    """CPU seconds of this process and its children so far, once they have nothing to do."""
    time.sleep(0.2)
    return cpu_seconds([os.getpid()])


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
