"""How near is a batch read to what Spark's Python reader can give at most?

Ours: 4 M records of 4 partitions, all seven columns, to noop.  The other: a source that yields batches of the same rows,
columns and sizes, made once in each worker.  By hand: the transfer and the JVM take 0.3–0.5 s a million rows, decoding
lz4 0.03 and the constant columns 0.02: 0.9 of the null source.
"""

from __future__ import annotations

from collections.abc import Iterator

import common
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import spark_log


def null_source(rows: int, tasks: int) -> type[DataSource]:
    """Classes made in a function are pickled whole, so tasks need not import this file."""
    schema = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )

    class NullReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(n) for n in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            each = 10_000
            value = b'{"id":1234567,"path":"/product/123","ms":456,"session":"0123456789abcdef0123456789abcdef"}'
            batch = pa.record_batch(
                {
                    "key": pa.array([b"user-%d" % n for n in range(each)], pa.binary()),
                    "value": pa.array([value] * each, pa.binary()),
                    "topic": pa.array(["t"] * each),
                    "partition": pa.array([0] * each, pa.int32()),
                    "offset": pa.array(range(each), pa.int64()),
                    "timestamp": pa.array([0] * each, pa.timestamp("us", "UTC")),
                    "timestampType": pa.array([0] * each, pa.int32()),
                }
            )
            for _ in range(rows // tasks // each):
                yield batch

    class NullSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nullsource"

        def schema(self) -> str:
            return schema

        def reader(self, schema: StructType) -> NullReader:
            return NullReader()

    return NullSource


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    frame = common.events(spark, given.rows)
    with common.folder() as url:
        spark_log.connect(url).create_topic(spark_log.NewTopic("t", common.PARTITIONS))
        frame.write.format("pylog").mode("append").option("topic", "t").save(url)
        frame.unpersist()
        ours = spark.read.format("pylog").option("subscribe", "t").load(url)
        value = spark.read.format("pylog").schema("value binary").option("subscribe", "t").load(url)
        tasks = ours.rdd.getNumPartitions()
        spark.dataSource.register(null_source(given.rows, tasks))
        null = spark.read.format("nullsource").load()
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
