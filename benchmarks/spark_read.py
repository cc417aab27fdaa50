"""How close is a batch read to the limit of Spark's Python reader?

Ours: 4 M records of 4 partitions, all seven columns, to noop.  The other: a source that yields batches of the same
rows, columns and sizes, created once in each worker.  By hand: the transfer and the JVM take 0.3–0.5 s per million
rows, decoding zstd 0.07 and the constant columns 0.02: 0.9 of the null source.
"""

from __future__ import annotations

import _nulls
import common

import spark_log


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session({"spark.pylog.nativeRead": "false"})
    frame = common.events(spark, given.rows)
    with common.folder() as url:
        spark_log.connect(url).create_topic(spark_log.NewTopic("t", common.PARTITIONS))
        frame.write.format("pylog").mode("append").option("topic", "t").save(url)
        frame.unpersist()
        ours = spark.read.format("pylog").option("subscribe", "t").load(url)
        value = spark.read.format("pylog").schema("value binary").option("subscribe", "t").load(url)
        tasks = ours.rdd.getNumPartitions()
        _nulls.register(spark, given.rows, tasks)
        null = spark.read.format(_nulls.SOURCE).load()
        assert ours.count() == given.rows, "the log has other records than were written"
        pair = common.pairs(lambda: noop(ours), lambda: noop(null), rounds=given.rounds, warm=given.warm)
        narrow = common.pairs(lambda: noop(value), lambda: noop(ours), rounds=given.rounds, warm=0)
    common.report(
        "spark_read",
        rows=given.rows,
        tasks=tasks,
        seconds=pair.ours,
        null_seconds=pair.other,
        of_null=pair.ratio,
        target=0.8,
        value_only_seconds=narrow.ours,
        value_only_speedup=narrow.ratio,
    )


def noop(frame: object) -> None:
    frame.write.format("noop").mode("overwrite").save()  # type: ignore[attr-defined]  # a DataFrame of any flavour


if __name__ == "__main__":
    main()
