"""How close is a batch write to the limit of Spark's Python writer?

Ours: 4 M records, by key into 4 partitions, zstd, synced, committed.  The other: a writer of the same kind that takes
the same Arrow batches and counts their rows.  By hand: the JVM and the transfer take about 0.31 s per million rows;
hashing, splitting, zstd and checksums about 0.35 more: 0.5 of the null writer.
"""

from __future__ import annotations

import _nulls
import common

import spark_log


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    _nulls.register(spark, given.rows, common.PARTITIONS)
    frame = common.events(spark, given.rows)
    with common.folder() as url:
        spark_log.connect(url).create_topic(spark_log.NewTopic("t", common.PARTITIONS))
        pair = common.pairs(
            lambda: frame.write.format("pylog").mode("append").option("topic", "t").save(url),
            lambda: frame.write.format(_nulls.SINK).mode("append").save(),
            rounds=given.rounds,
            warm=given.warm,
        )
    common.report(
        "spark_write", rows=given.rows, seconds=pair.ours, null_seconds=pair.other, of_null=pair.ratio, target=0.5
    )


if __name__ == "__main__":
    main()
