"""What does a plain query cost beside one whose load names the columns and the condition?

A topic of 4 M records of 100 bytes in 4 partitions.  All figures are ratios of the CPU time of Spark and its Python
processes, of two queries in turn:

* `select_to_schema`: `select("value")` against `.schema("value binary")`, target 1.05;
* `all_to_select`, `all_to_count`: the same queries with `pushDown=false` against those with it; target of the count 2;
* `all_to_filter`: `where("offset >= …")` of a hundredth of the records, without against with it;
* `first_of_all`, `first`: seconds of `take(10)` of a new frame, without and with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import common
from pyspark.sql import functions as F

import spark_log
from benchmarks.beside_kafka.machine import cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session({"spark.pylog.nativeRead": "false"})
    with common.folder() as url:
        spark_log.connect(url).create_topic(spark_log.NewTopic("t", common.PARTITIONS))
        rows = spark.range(given.rows).select(
            F.col("id").cast("string").alias("key"),
            F.rpad(F.sha2(F.col("id").cast("string"), 256), 100, "x").alias("value"),
        )
        rows.write.format("pylog").mode("append").option("topic", "t").save(url)

        def load(**options: str) -> DataFrame:
            return spark.read.format("pylog").options(subscribe="t", **options).load(url)

        def ratio(one: Callable[[], object], other: Callable[[], object]) -> float:
            """CPU of the other query by that of the first."""
            return common.pairs(one, other, rounds=given.rounds, warm=given.warm, now=cpu).ratio

        last = f"offset >= {given.rows // common.PARTITIONS * 99 // 100}"
        plain, off = load(), load(pushDown="false")
        value = spark.read.format("pylog").schema("value binary").option("subscribe", "t").load(url)
        select_to_schema = 1 / ratio(lambda: noop(plain.select("value")), lambda: noop(value))
        all_to_select = ratio(lambda: noop(plain.select("value")), lambda: noop(off.select("value")))
        all_to_count = ratio(plain.count, off.count)
        all_to_filter = ratio(lambda: noop(plain.where(last)), lambda: noop(off.where(last)))
        first = common.pairs(
            lambda: load().take(10), lambda: load(pushDown="false").take(10), rounds=given.rounds, warm=1
        )
    common.report(
        "push_down",
        rows=given.rows,
        select_to_schema=select_to_schema,
        select_to_schema_target=1.05,
        all_to_select=all_to_select,
        all_to_count=all_to_count,
        all_to_count_target=2,
        all_to_filter=all_to_filter,
        first_seconds=first.ours,
        first_of_all_seconds=first.other,
    )


def cpu() -> float:
    """CPU seconds of this process and its children so far, once they have nothing to do."""
    time.sleep(0.2)
    return cpu_seconds([os.getpid()])


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
