"""A filter and an aggregate over orders of eight columns, as a batch and as a stream.

Kafka and a topic of bytes have them as JSON, which `from_json` parses in the query.  A topic with a schema, a table
of Parquet files and one of Delta have columns, and the query reads three of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import spark_log
from benchmarks.beside_kafka import delta
from benchmarks.beside_kafka.figures import Fact
from benchmarks.beside_kafka.sides import PARTITIONS, Kafka, Parquet, Pylog, Side
from benchmarks.beside_kafka.work import Bench, Work, checkpoint, drained, noop
from benchmarks.spark_typed import NEEDED, SCHEMA, orders

TOPIC = "orders"


class TypedPylog(Pylog):
    """A topic with a schema, in a log beside the one of the same name."""

    def url(self, topic: str) -> str:
        return str(self.folder / f"{topic}-typed")

    def create(self, topic: str) -> None:
        log = spark_log.connect(self.url(topic))
        log.create_topic(spark_log.NewTopic(topic, PARTITIONS, configs=self.configs, schema=SCHEMA))

    def drop(self, topic: str) -> None:
        shutil.rmtree(self.url(topic))


class Table(Parquet):
    """A table of the columns."""

    def stream(self, topic: str) -> DataFrame:
        return self.spark.readStream.format("parquet").schema(SCHEMA).load(str(self.folder / topic))


class DeltaTable(Table):
    """A table with a log of its files."""

    name = "delta"

    def stream(self, topic: str) -> DataFrame:
        return self.spark.readStream.format("delta").load(str(self.folder / topic))


def fill(bench: Bench, sides: Sequence[Side]) -> list[Fact]:
    """Write the orders to each side, and count their bytes."""
    rows = orders(bench.spark, bench.rows)
    for side in sides:
        side.create(TOPIC)
        side.write(rows if _has_columns(side) else rows.selectExpr("to_json(struct(*)) AS value"), TOPIC)
    sizes = {side.name: side.bytes_on_disk(TOPIC) / bench.rows for side in sides if _has_columns(side)}
    sizes |= {side.name: side.bytes_on_disk(TOPIC) / bench.rows for side in sides if isinstance(side, Kafka)}
    return [Fact("orders: bytes on disk a record", bench.settings, sizes)]


def _has_columns(side: Side) -> bool:
    return isinstance(side, TypedPylog | Table)


def columns_of(side: Side, streams: bool) -> DataFrame:
    """The columns, parsed if need be."""
    if isinstance(side, TypedPylog):
        reader = side.spark.readStream if streams else side.spark.read
        options = {"subscribe": TOPIC, "columns": NEEDED} | ({"startingOffsets": "earliest"} if streams else {})
        return reader.format("pylog").options(**options).load(side.url(TOPIC))
    if isinstance(side, Table):
        return side.stream(TOPIC) if streams else side.read(TOPIC)
    values = side.pairs(TOPIC).select("value") if streams else side.values(TOPIC)
    return values.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("v")).select("v.*")


def result(frame: DataFrame) -> DataFrame:
    """The query."""
    found = frame.where("amount > 100 AND country IN ('DE', 'FR')").groupBy("country")
    return found.agg(F.sum("amount").alias("sum"), F.avg("quantity").alias("mean"), F.count("*").alias("count"))


@contextmanager
def batch_round(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    yield lambda: noop(result(columns_of(side, streams=False)))


@contextmanager
def stream_round(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    with checkpoint(bench) as folder:
        frame = result(columns_of(side, streams=True))
        yield lambda: drained(frame.writeStream.format("noop").outputMode("complete"), folder)


WORK = (
    Work("orders-json", "orders: JSON in pylog, batch", batch_round, None, None),
    Work("orders-json-stream", "orders: JSON in pylog, stream", stream_round, None, None),
    Work("orders", "orders: columns in pylog, batch", batch_round, 10, None),
    Work("orders-stream", "orders: columns in pylog, stream", stream_round, None, None),
)


def sides_of(work: Work, bench: Bench, pylog: Pylog, kafka: Kafka) -> tuple[Side, ...]:
    """Those that a kind of work is measured on."""
    if work.name.startswith("orders-json"):
        return pylog, kafka
    folder = bench.checkpoints.parent
    tables = (Table, DeltaTable) if delta.jars_for(bench.spark.version) else (Table,)
    typed = TypedPylog(bench.spark, folder, pylog.configs.get("compression.type"))
    return typed, kafka, *(table(bench.spark, folder) for table in tables)


def check(sides: Sequence[Side]) -> None:
    """All sides give the same answer."""
    answers = [sorted(map(_rounded, result(columns_of(side, streams=False)).collect())) for side in sides]
    assert all(answer == answers[0] for answer in answers), answers


def _rounded(row: object) -> tuple[object, ...]:
    return tuple(round(value, 3) if isinstance(value, float) else value for value in row)  # type: ignore[attr-defined]
