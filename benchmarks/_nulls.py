"""A Python source and sink that do nothing: the upper bound for Spark's Python data sources.

The source yields batches with the rows, columns and sizes of pylog's, created once per task.  The sink counts rows.
Spark pickles classes that are defined in a function completely, so tasks need not import this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

SOURCE, SINK = "nullsource", "nullsink"
BATCH_ROWS = 10_000


def register(spark: SparkSession, rows: int, tasks: int) -> None:
    """`spark.read.format("nullsource")` returns `rows` rows in `tasks` tasks; both formats also stream."""
    spark.dataSource.register(_source(SOURCE, COLUMNS, _batches(rows, tasks), tasks))
    spark.dataSource.register(_sink())


def register_repeated(
    spark: SparkSession, name: str, columns: str, batch: pa.RecordBatch, rows: int, tasks: int
) -> None:
    """`spark.read.format(name)` returns the rows of a batch, again and again."""
    spark.dataSource.register(_source(name, columns, _repeated(batch, rows, tasks), tasks))


COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
Batches = Callable[[list[str], int], Iterator[pa.RecordBatch]]
"""The batches of a task, with some columns."""
VALUE = b'{"id":1234567,"path":"/product/123","ms":456,"session":"0123456789abcdef0123456789abcdef"}'


def _source(name: str, columns: str, batches: Batches, tasks: int) -> type[DataSource]:
    readers, format_name = _readers(batches, tasks), name

    class NullSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:
            return readers[0](schema.names)  # type: ignore[call-arg]

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
            return readers[1](schema.names)  # type: ignore[call-arg]

    return NullSource


def _readers(batches: Batches, tasks: int) -> tuple[type[DataSourceReader], type[DataSourceStreamReader]]:
    """For batches, and for a stream that returns everything in one micro-batch."""

    class NullReader(DataSourceReader):
        def __init__(self, names: list[str]) -> None:
            self.names = names

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(n) for n in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return batches(self.names, partition.value)

    class NullStreamReader(DataSourceStreamReader):
        def __init__(self, names: list[str]) -> None:
            self.names = names

        def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
            return {"at": 0}

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802  Spark's name
            return {"at": 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(n) for n in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return batches(self.names, partition.value)

    return NullReader, NullStreamReader


def _batches(rows: int, tasks: int) -> Batches:
    """The batches of the task with this number, with columns of these names."""
    each, value = BATCH_ROWS, VALUE

    def batches(names: list[str], task: int) -> Iterator[pa.RecordBatch]:
        made = {
            "key": pa.array([b"user-%d" % n for n in range(each)], pa.binary()),
            "value": pa.array([value] * each, pa.binary()),
            "topic": pa.array(["t"] * each),
            "partition": pa.array([0] * each, pa.int32()),
            "offset": pa.array(range(each), pa.int64()),
            "timestamp": pa.array([0] * each, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * each, pa.int32()),
        }
        batch = pa.record_batch({name: made[name] for name in names})
        count = rows * (task + 1) // tasks - rows * task // tasks
        for first in range(0, count, each):
            yield batch.slice(0, min(each, count - first))

    return batches


def _repeated(batch: pa.RecordBatch, rows: int, tasks: int) -> Batches:
    def batches(names: list[str], task: int) -> Iterator[pa.RecordBatch]:
        part = batch.select(names)
        count = rows * (task + 1) // tasks - rows * task // tasks
        for first in range(0, count, part.num_rows):
            yield part.slice(0, min(part.num_rows, count - first))

    return batches


def _sink() -> type[DataSource]:
    name = SINK

    class NullWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            sum(batch.num_rows for batch in iterator)
            return WriterCommitMessage()

    class NullStreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            sum(batch.num_rows for batch in iterator)
            return WriterCommitMessage()

        def commit(self, messages: Any, batchId: int) -> None:  # type: ignore[override]  # noqa: N803  Spark's name
            pass

        def abort(self, messages: Any, batchId: int) -> None:  # type: ignore[override]  # noqa: N803  Spark's name
            pass

    class NullSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def writer(self, schema: StructType, overwrite: bool) -> NullWriter:
            return NullWriter()

        def streamWriter(self, schema: StructType, overwrite: bool) -> NullStreamWriter:  # noqa: N802  Spark's name
            return NullStreamWriter()

    return NullSink
