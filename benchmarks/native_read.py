"""What does a batch read in the JVM cost beside the same read through Python, and beside a Parquet table?

A topic of 4 M records of 100 bytes in 4 partitions, and a Parquet table of the same rows with zstd.  All figures are
ratios, in turn, of seconds and of the CPU time of Spark with its Python processes; above 1, the JVM's read is better:

* `python_…`, `parquet_…`: all columns; targets 2.5 and 1;
* `value_python`, `count_python`: seconds of `select("value")` and of `count()`;
* `stream_python`: seconds of an available-now run of all records;
* `headers_python`, `typed_python`, `struct_python`: seconds, of records with a header each, and of rows of a topic with
  a schema of five columns, as columns and with `value.format=struct`; a quarter of the records.
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

SCHEMA = "id BIGINT, country STRING, amount DOUBLE, text STRING, numbers ARRAY<INT>"


def write(spark: SparkSession, url: str, count: int) -> None:
    """Write a plain topic with `count` rows, and one with headers and a typed one with a quarter of them."""
    spark_log.connect(url).create_topic(spark_log.NewTopic("t", common.PARTITIONS))
    rows = spark.range(count).select(
        F.col("id").cast("string").alias("key"),
        F.rpad(F.sha2(F.col("id").cast("string"), 256), 100, "x").alias("value"),
    )
    rows.write.format("pylog").mode("append").option("topic", "t").save(url)
    some = rows.limit(max(count // 4, 1))
    header = F.array(F.struct(F.lit("h").alias("key"), F.col("key").cast("binary").alias("value")))
    spark_log.connect(url).create_topic(spark_log.NewTopic("headers", common.PARTITIONS))
    some.withColumn("headers", header).write.format("pylog").mode("append").option("topic", "headers").save(url)
    spark_log.connect(url).create_topic(spark_log.NewTopic("typed", common.PARTITIONS, schema=SCHEMA))
    typed = some.selectExpr(
        "key",
        "bigint(key) id",
        "concat('C', key % 20) country",
        "key / 7 amount",
        "value text",
        "array(int(key), 1) numbers",
    )
    typed.write.format("pylog").mode("append").option("topic", "typed").save(url)


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    with common.folder() as folder:
        url, table = f"{folder}/log", f"{folder}/table"
        write(spark, url, given.rows)

        def load(topic: str = "t", **options: str) -> DataFrame:
            return spark.read.format("pylog").options(subscribe=topic, **options).load(url)

        def drain(**options: str) -> None:
            frame = spark.readStream.format("pylog").options(subscribe="t", startingOffsets="earliest", **options)
            with common.folder() as checkpoint:
                writer = frame.load(url).writeStream.format("noop").trigger(availableNow=True)
                writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

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
        figures["stream_python"] = ratio(drain, lambda: drain(nativeRead="false"), time.perf_counter)
        for name, topic, options in (
            ("headers", "headers", {"includeHeaders": "true"}),
            ("typed", "typed", {}),
            ("struct", "typed", {"value.format": "struct"}),
        ):
            one, other = load(topic, **options), load(topic, **options, nativeRead="false")
            figures[f"{name}_python"] = ratio(
                lambda one=one: noop(one),  # type: ignore[misc]
                lambda other=other: noop(other),  # type: ignore[misc]
                time.perf_counter,
            )
    common.report("native_read", rows=given.rows, python_target=2.5, parquet_target=1, **figures)


def cpu() -> float:
    """CPU seconds of this process and its children so far, once they have nothing to do."""
    time.sleep(0.2)
    return cpu_seconds([os.getpid()])


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
