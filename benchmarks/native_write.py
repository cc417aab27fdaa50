"""What does a write encoded in the JVM cost beside the same write through Python?

A cached frame of 2 M rows with keys and values of 100 bytes, into a topic of 4 partitions, with zstd. All figures are
ratios, in turn, of Python's seconds and CPU time of Spark with its Python processes by the JVM's; above 1, the JVM's
write is better. `many_…`: into 1,000 partitions. `headers_…`: with two headers of 40 bytes a row. `topics_…`: to four
topics that the rows name. `stream_…`: a stream that copies these rows from another topic. `small_…`: of a stream whose
micro-batches have 100 rows, the median time of one.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from typing import TYPE_CHECKING

import common
from pyspark.sql import functions as F

import spark_log
from benchmarks.beside_kafka.machine import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

MANY = 1000
SMALL = 100
"""Rows of a small micro-batch."""
TRIGGERS = 20


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
        for name in ("t", "all", "few", "copy", "0", "1", "2", "3"):
            log.create_topic(spark_log.NewTopic(name, common.PARTITIONS))
        log.create_topic(spark_log.NewTopic("many", MANY))
        rows = frame(spark, given.rows)
        for name, written in (("all", rows), ("few", rows.limit(SMALL * TRIGGERS))):
            written.write.format("pylog").mode("append").option("topic", name).save(url)

        def write(written: DataFrame, native: str, **options: str) -> None:
            written.write.format("pylog").mode("append").options(nativeRead=native, **options).save(url)

        runs = itertools.count()

        def copied(source: str, native: str, **options: str) -> StreamingQuery:
            """A run of a stream of all rows of a topic, awaited."""
            stream = spark.readStream.format("pylog").options(subscribe=source, startingOffsets="earliest", **options)
            writer = stream.load(url).writeStream.format("pylog").options(topic="copy", nativeRead=native)
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{next(runs)}").trigger(availableNow=True)
            query = writer.start(url)
            query.awaitTermination()
            return query

        def trigger(native: str) -> float:
            """The median of the time of a small micro-batch, in ms."""
            query = copied("few", native, maxOffsetsPerTrigger=str(SMALL))
            return statistics.median(one.durationMs["addBatch"] for one in query.recentProgress if one.numInputRows)

        def ratio(work: Callable[[str], object], now: Callable[[], float]) -> float:
            """Python's by the JVM's."""
            jvm, python = (lambda native=native: work(native) for native in ("true", "false"))
            return common.pairs(jvm, python, rounds=given.rounds, warm=given.warm, now=now).ratio

        works: dict[str, Callable[[str], object]] = {
            "python": lambda native: write(rows, native, topic="t"),
            "many": lambda native: write(rows, native, topic="many"),
            "headers": lambda native: write(rows.withColumn("headers", headers()), native, topic="t"),
            "topics": lambda native: write(rows.withColumn("topic", F.expr("string(key % 4)")), native),
            "stream": lambda native: copied("all", native),
        }
        figures = {
            f"{name}_{unit}": ratio(work, now)
            for name, work in works.items()
            for unit, now in (("seconds", time.perf_counter), ("cpu", cpu))
        }
        small = [(trigger("true"), trigger("false")) for _ in range(given.warm + given.rounds)][given.warm :]
        figures["small_seconds"] = statistics.median(python / jvm for jvm, python in small)
    common.report("native_write", rows=given.rows, cpu_target=1.6, **figures)


def headers() -> Column:
    """Two headers."""
    return F.array(
        *(
            F.struct(F.lit(name).alias("key"), F.encode(F.rpad("key", 35, "x"), "utf-8").alias("value"))
            for name in ("trace", "agent")
        )
    )


def cpu() -> float:
    """CPU seconds of this process and its children so far, once they have nothing to do."""
    time.sleep(0.2)
    return cpu_seconds([os.getpid()])


if __name__ == "__main__":
    main()
