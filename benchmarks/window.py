"""How much time does the option `where` save in a read of one hour, compared with a filter over everything?

A topic of 100 hours in order of time, in segments as maintenance leaves them, and a window of one of the hours.  By
hand: about 1 batch in 100, and one more for each end in each partition; in bytes the same and the segments' indexes.
The remaining time is Spark's own for a query, so the ratio grows with the topic: at 4 M records, 0.2 s against the 1.5
s of a full read.
"""

from __future__ import annotations

import common
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_log
from spark_log.client.reader.fetch import Touched, touched
from spark_log.conditions import as_condition
from spark_log.maintenance.maintain import merge

HOURS = 100
HOUR_US = 3_600_000_000
OF_HOUR = "timestamp >= '1970-01-03 02:00:00Z' and timestamp < '1970-01-03 03:00:00Z'"
COMMIT_ROWS = 1_000_000


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    with common.folder() as url:
        log = spark_log.connect(url, durability="os")
        log.create_topic(spark_log.NewTopic("t", common.PARTITIONS, {"retention.ms": "-1"}))
        for first in range(0, given.rows, COMMIT_ROWS):
            log.append("t", events(first, min(COMMIT_ROWS, given.rows - first), given.rows))
        merge(log)
        found, there = planned(log, OF_HOUR), planned(log, None)
        pruned, filtered = load(spark, url, **spark_log.where(OF_HOUR, spark)), load(spark, url).where(OF_HOUR)
        rows = pruned.count()
        assert rows == filtered.count() == given.rows // HOURS
        pair = common.pairs(lambda: read(pruned), lambda: read(filtered), rounds=given.rounds, warm=given.warm)
    common.report(
        "window",
        rows=given.rows,
        rows_in_window=rows,
        batches=there.batches,
        batches_touched=found.batches,
        batches_by_hand=there.batches / HOURS + common.PARTITIONS,
        bytes=there.bytes,
        bytes_touched=found.bytes,
        where_s=pair.ours,
        filter_s=pair.other,
        times_as_fast=pair.ratio,
    )


def planned(log: spark_log.Log, where: str | None) -> Touched:
    window = as_condition(where).window
    counts = [touched(log.journal.objects, read, window) for read in log.plan("t", where=where)]
    return Touched(*map(sum, zip(*counts, strict=True)))


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("pylog").option("subscribe", "t").options(**options).load(url)


def read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def events(first: int, count: int, of: int) -> pa.Table:
    """Records of about 100 bytes, in order of time."""
    at = np.arange(first, first + count, dtype=np.int64)
    values = np.random.default_rng(first).integers(0, 256, (count, 80), dtype=np.uint8)
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 80)
    return pa.table(
        {
            "key": pa.array(at % 1000).cast(pa.string()),
            "value": pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(values)]),
            "timestamp": pa.array(at * (HOURS * HOUR_US // of), pa.timestamp("us", "UTC")),
        }
    )


if __name__ == "__main__":
    main()
