"""How near is a batch write to what Spark's Python writer can take at most?

Ours: 4 M records, by key into 4 partitions, lz4, synced, committed.  The other: a writer of the same kind that takes the
same Arrow batches and counts their rows.  By hand: the JVM and the transfer take about 0.31 s a million rows, hashing,
splitting, lz4 and checksums about 0.3 more: 0.5 of the null writer.
"""

from __future__ import annotations

from collections.abc import Iterator

import common
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import spark_log


def null_source() -> type[DataSource]:
    """Classes made in a function are pickled whole, so tasks need not import this file."""

    class NullWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            sum(batch.num_rows for batch in iterator)
            return WriterCommitMessage()

    class NullSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nullsink"

        def writer(self, schema: StructType, overwrite: bool) -> NullWriter:
            return NullWriter()

    return NullSink


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    spark.dataSource.register(null_source())
    frame = common.events(spark, given.rows)
    with common.folder() as url:
        spark_log.connect(url).create_topic(spark_log.NewTopic("t", common.PARTITIONS))
        pair = common.pairs(
            lambda: frame.write.format("pylog").mode("append").option("topic", "t").save(url),
            lambda: frame.write.format("nullsink").mode("append").save(),
            rounds=given.rounds,
            warm=given.warm,
        )
    common.report(
        "spark_write", rows=given.rows, seconds=pair.ours, null_seconds=pair.other, of_null=pair.ratio, target=0.5
    )


if __name__ == "__main__":
    main()
