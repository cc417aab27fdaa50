"""How much faster is a write with `spark_log.tune`, compared with Spark's stock settings in the same session?

The records of spark_write.py, and then as many bytes in records of 20 kB.  The setting affects rows on their way to
Python, so reads are unchanged.  By hand: 10,000 records of 100 bytes are 1 MB, so the limit of 8 MiB is never reached:
1.0.  With records of 20 kB, batches of 64 MiB instead of 8 are allocated, zeroed and copied outside of every cache: 1.2
to 1.6 times as fast.
"""

from __future__ import annotations

from collections.abc import Callable

import common
from pyspark.sql import DataFrame, SparkSession

import spark_log

LARGE = 20_000


def main() -> None:
    given = common.arguments(__doc__, rows=1_000_000)
    spark = common.session()
    rows = max(given.rows * 100 // LARGE, common.PARTITIONS)
    large = spark.range(0, rows, 1, common.PARTITIONS).selectExpr(f"repeat(md5(string(id)), {LARGE // 32}) value")
    with common.folder() as url:
        pairs = [
            common.pairs(tuned(spark, run), run, rounds=given.rounds, warm=given.warm)
            for run in (append(common.events(spark, given.rows), url, "small"), append(large, url, "large"))
        ]
    common.report(
        "spark_tune",
        rows=given.rows,
        seconds=pairs[0].ours,
        stock_seconds=pairs[0].other,
        speedup=pairs[0].ratio,
        large_rows=rows,
        large_seconds=pairs[1].ours,
        large_stock_seconds=pairs[1].other,
        large_speedup=pairs[1].ratio,
    )


def append(frame: DataFrame, url: str, topic: str) -> Callable[[], None]:
    """A write into a new topic."""
    spark_log.connect(url).create_topic(spark_log.NewTopic(topic, common.PARTITIONS))
    return lambda: frame.write.format("pylog").mode("append").option("topic", topic).save(url)


def tuned(spark: SparkSession, run: Callable[[], None]) -> Callable[[], None]:
    """A run with the settings, which are reset afterwards."""

    def with_settings() -> None:
        changed = spark_log.tune(spark)
        run()
        for name in changed:
            spark.conf.unset(name)

    return with_settings


if __name__ == "__main__":
    main()
