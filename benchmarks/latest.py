"""How fast is the latest record of each key, beside a query that finds it in all records?

A changelog of one topic with 2 partitions: `--rows` updates of a tenth as many keys, in random order, in 20 commits.
`view=latest` is compared with `groupBy(key)` and `max_by(…, offset)` over a read of all records, both to noop; and with
`log.table` in one process.  By hand: the view decodes and hashes all keys (0.3 s a million), then moves a tenth of the
records to the JVM; the other moves all of them (0.4 s a million) and aggregates them (0.5 s).  Target: twice as fast.
"""

from __future__ import annotations

import common
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

import spark_log

COMMITS = 20
TOPIC_PARTITIONS = 2


def main() -> None:
    given = common.arguments(__doc__, rows=4_000_000, of="updates", rounds=3, warm=1)
    spark = common.session({"spark.sql.shuffle.partitions": "4"})
    with common.folder() as url:
        log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("t", TOPIC_PARTITIONS))
        for number in range(COMMITS):
            log.append("t", updates(number, given.rows // COMMITS, given.rows // 10))
        view = spark.read.format("pylog").option("subscribe", "t").option("view", "latest").load(url)
        grouped = by_grouping(spark, url)
        keys = view.count()
        assert keys == grouped.count(), "both have the same keys"
        pair = common.pairs(lambda: noop(view), lambda: noop(grouped), rounds=given.rounds, warm=given.warm)
        table = common.clock(lambda: log.table("t"))
    common.report(
        "latest",
        rows=given.rows,
        keys=keys,
        seconds=pair.ours,
        group_by_seconds=pair.other,
        times_as_fast=pair.ratio,
        target=2,
        table_seconds=table,
        rows_a_second=given.rows / pair.ours,
    )


def updates(seed: int, rows: int, keys: int) -> pa.Table:
    """Random keys with values of about 90 bytes."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, max(keys, 1), rows)
    return pa.table(
        {
            "key": [b"customer-%d" % number for number in numbers],
            "value": [b'{"customer":%d,"balance":%d,"note":"%060d"}' % (n, n % 977, seed) for n in numbers],
        }
    )


def by_grouping(spark: SparkSession, url: str) -> DataFrame:
    """The latest record of each key, found by Spark."""
    every = spark.read.format("pylog").option("subscribe", "t").load(url)
    fields = ", ".join(name for name in every.columns if name not in ("partition", "key"))
    record = f"max_by(struct({fields}), offset)"
    latest = every.where("key is not null").groupBy("partition", "key")
    return latest.agg(expr(record).alias("record")).select("partition", "key", "record.*").where("value is not null")


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
