"""How much faster is a query on a topic with a schema than on one of JSON, and how close is it to a Parquet table?

The query filters and aggregates three of eight columns.  Ours: 4 M rows in a topic with a schema, by the columns that
the query needs, and with all of them.  The others: the same rows as JSON in a topic, parsed by `from_json`; a Parquet
table; and a Python source that yields the three columns of 10,000 of these rows again and again, the limit for sources
in Python.  By hand: parsing takes 1 to 2 µs a row, the JVM's transfer of three columns 0.1 µs: ten times.  And ours
with the filter as a condition of the read, so that one row in four passes through the JVM.  CPU seconds are those of
Spark and its workers.

A selective query adds up one row in a hundred, by a column that grows: with `spark_log.where`, which skips batches, and
with the same filter after the read.  A write is compared with that of the JSON of the same rows: of JSON that is in
memory, and of JSON that the write makes.  Both from memory are also written to an Arrow sink that drops them: Spark's
part.

Single rows go in turn through two queries that run all the time, one over columns and one over bytes that nobody
parses, from `append` to the driver's `foreachBatch`.  Both do the same requests, so columns should take as long.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import _nulls
import common
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_log
from benchmarks.beside_kafka.figures import percentile
from benchmarks.beside_kafka.machine import cpu_seconds

SCHEMA = "id BIGINT, customer BIGINT, amount DOUBLE, country STRING, created TIMESTAMP, status STRING, sku STRING, quantity INT"
NEEDED = "country,amount,quantity"
FILTER = "amount > 100 AND country IN ('DE', 'FR')"
CONSTANT = "constantorders"
"""The Python source to compare with."""
ROWS_A_PAIR = 40_000
"""One row goes through each running query for so many rows of the others."""
WARM_SHARE = 10
"""One pair of this many is run before them, and does not count."""
GAP_S = (0.1, 0.4)
DEADLINE_S = 300


def orders(spark: SparkSession, rows: int) -> DataFrame:
    """Rows of the schema."""
    return spark.range(0, rows, 1, common.PARTITIONS).selectExpr(
        "id",
        "id * 7919 % 100000 AS customer",
        "double(id * 31 % 100000) / 100 AS amount",
        "element_at(array('DE','FR','IT','ES','NL','PL','SE','PT'), int(id % 8) + 1) AS country",
        "timestamp_seconds(1769853600 + id / 1000) AS created",
        "element_at(array('new','paid','sent','done'), int(id % 4) + 1) AS status",
        "concat('SKU-', id % 5000) AS sku",
        "int(id % 9) + 1 AS quantity",
    )


def answer(frame: DataFrame) -> None:
    """The query."""
    frame.where(FILTER).groupBy("country").agg(F.sum("amount"), F.avg("quantity"), F.count("*")).collect()


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    with common.folder() as url, common.folder() as table, common.folder() as queries:
        figures = written(spark, url, table, given)
        figures |= read(spark, url, table, given)
        figures |= arrivals(spark, Path(queries), max(1, given.rows // ROWS_A_PAIR))
    common.report("spark_typed", rows=given.rows, **figures)


def in_turn(given: argparse.Namespace) -> Callable[..., common.Pair]:
    return partial(common.pairs, rounds=given.rounds, warm=given.warm)


def written(spark: SparkSession, url: str, table: str, given: argparse.Namespace) -> dict[str, float]:
    """Fills the topics `typed-0` and `json-0`, and the table."""
    rows = orders(spark, given.rows).persist()
    texts = rows.selectExpr("to_json(struct(*)) AS value").persist()
    pairs = in_turn(given)
    write = pairs(writer(rows, url, "typed", SCHEMA), writer(texts, url, "json", None))
    _nulls.register(spark, given.rows, common.PARTITIONS)
    null = pairs(lambda: dropped(rows), lambda: dropped(texts))
    texts.unpersist()
    made = rows.selectExpr("to_json(struct(*)) AS value")
    write_of_made = pairs(writer(rows, url, "more", SCHEMA), writer(made, url, "made", None))
    rows.write.mode("overwrite").parquet(table)
    rows.unpersist()
    return {
        "write_seconds": write.ours,
        "write_of_json": write.ratio,
        "write_of_made_json": write_of_made.ratio,
        "write_of_made_json_target": 1.0,
        "null_write_seconds": null.ours,
        "null_write_of_json_seconds": null.other,
    }


def dropped(frame: DataFrame) -> None:
    frame.write.format(_nulls.SINK).mode("append").save()


def writer(frame: DataFrame, url: str, name: str, schema: str | None) -> Callable[[], None]:
    """Writes a frame from memory into a new topic each time, `NAME-0` the first."""
    frame.count()
    numbers, log = count(), spark_log.connect(url)

    def write() -> None:
        topic = f"{name}-{next(numbers)}"
        log.create_topic(spark_log.NewTopic(topic, common.PARTITIONS, schema=schema))
        frame.write.format("pylog").mode("append").option("topic", topic).save(url)

    return write


def read(spark: SparkSession, url: str, table: str, given: argparse.Namespace) -> dict[str, float]:
    pairs = in_turn(given)
    typed, whole = loaded(spark, url, columns=NEEDED), loaded(spark, url)
    text = spark.read.format("pylog").option("subscribe", "json-0").schema("value binary").load(url)
    parsed = text.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("v")).select("v.*")
    parquet, constant = spark.read.parquet(table), constant_orders(spark, typed, given.rows)
    json = pairs(lambda: answer(typed), lambda: answer(parsed))
    file = pairs(lambda: answer(typed), lambda: answer(parquet))
    cpu = partial(pairs, warm=0, now=lambda: cpu_seconds([os.getpid()]))
    of_file = cpu(lambda: answer(typed), lambda: answer(parquet))
    of_constant = cpu(lambda: answer(typed), lambda: answer(constant))
    filtering = loaded(spark, url, columns=NEEDED, **spark_log.where(FILTER))
    filtering_file = pairs(lambda: answer(filtering), lambda: answer(parquet))
    filtering_of_file = cpu(lambda: answer(filtering), lambda: answer(parquet))
    all_columns = pairs(lambda: answer(whole), lambda: answer(typed), warm=0)
    some = f"id >= {given.rows // 2} AND id < {given.rows // 2 + given.rows // 100}"
    skipping = loaded(spark, url, columns="id,amount", **spark_log.where(some))
    filtered = loaded(spark, url, columns="id,amount").where(some)
    where = pairs(lambda: added(skipping), lambda: added(filtered))
    where_file = pairs(lambda: added(skipping), lambda: added(parquet.where(some)))
    return {
        "seconds": json.ours,
        "json_seconds": json.other,
        "faster_than_json": json.ratio,
        "parquet_seconds": file.other,
        "of_parquet": file.ratio,
        "cpu_seconds": of_file.ours,
        "cpu_times_parquet": 1 / of_file.ratio,
        "cpu_times_constant_source": 1 / of_constant.ratio,
        "cpu_times_constant_source_target": 1.3,
        "filtering_of_parquet": filtering_file.ratio,
        "filtering_cpu_times_parquet": 1 / filtering_of_file.ratio,
        "filtering_cpu_times_parquet_target": 1.8,
        "all_columns_seconds": all_columns.ours,
        "where_seconds": where.ours,
        "filtered_seconds": where.other,
        "where_speed_up": where.ratio,
        "where_of_parquet": where_file.ratio,
    }


def loaded(spark: SparkSession, url: str, **options: str) -> DataFrame:
    """The columns of the typed topic."""
    return spark.read.format("pylog").options(subscribe="typed-0", **options).load(url)


def constant_orders(spark: SparkSession, typed: DataFrame, rows: int) -> DataFrame:
    """A given number of rows, of a Python source that has its batch in memory."""
    batch = typed.limit(_nulls.BATCH_ROWS).toArrow().combine_chunks().to_batches()[0]
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in typed.schema)
    _nulls.register_repeated(spark, CONSTANT, columns, batch, rows, typed.rdd.getNumPartitions())
    return spark.read.format(CONSTANT).load()


def added(frame: DataFrame) -> None:
    """The selective query."""
    frame.agg(F.sum("amount"), F.count("*")).collect()


# -------------------------------------------------------------------------------- from an append through a running query


def arrivals(spark: SparkSession, folder: Path, pairs: int) -> dict[str, float]:
    """Single rows through a query over columns and through one over bytes, in turn; both run all the time."""
    columns = {"id": 1, "amount": 2.5, "country": "DE", "quantity": 3}
    text = {"value": b'{"id":1,"amount":2.5,"country":"DE","quantity":3}'}
    with (
        running(spark, folder / "columns", SCHEMA, columns) as typed,
        running(spark, folder / "bytes", None, text) as untyped,
    ):
        warm = pairs // WARM_SHARE
        times = [(arrival(typed, number), arrival(untyped, number)) for number in range(warm + pairs)][warm:]
    of_typed, of_bytes = ([one.seconds for one in side] for side in zip(*times, strict=True))
    appends = [[one.append for one in side] for side in zip(*times, strict=True)]
    return {
        "row_append_ms": statistics.median(appends[0]) * 1000,
        "row_of_bytes_append_ms": statistics.median(appends[1]) * 1000,
        "row_ms": statistics.median(of_typed) * 1000,
        "row_of_bytes_ms": statistics.median(of_bytes) * 1000,
        "row_p99_ms": percentile(of_typed, 99) * 1000,
        "row_of_bytes_p99_ms": percentile(of_bytes, 99) * 1000,
        "row_speed_up": statistics.median(b / a for a, b in zip(of_typed, of_bytes, strict=True)),
        "row_speed_up_target": 0.95,
    }


class Arrival(NamedTuple):
    """One row."""

    seconds: float
    """Until the query has it."""
    append: float
    """Until it is in the log."""


def arrival(send: Callable[[], Arrival], number: int) -> Arrival:
    time.sleep(random.Random(number).uniform(*GAP_S))
    return send()


@contextmanager
def running(
    spark: SparkSession, folder: Path, schema: str | None, row: dict[str, object]
) -> Iterator[Callable[[], Arrival]]:
    """A query; yields a function that appends a row and waits until the query has it."""
    url, has_come = str(folder / "log"), threading.Event()
    log = spark_log.connect(url)
    log.create_topic(spark_log.NewTopic("t", schema=schema))
    frame = spark.readStream.format("pylog").options(subscribe="t", startingOffsets="earliest").load(url)

    def take(batch: DataFrame, number: int) -> None:
        if batch.collect():
            has_come.set()

    query = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(take).start()

    def send() -> Arrival:
        has_come.clear()
        begun = time.perf_counter()
        log.append("t", [row])
        append = time.perf_counter() - begun
        for _ in range(DEADLINE_S):
            if has_come.wait(1):
                return Arrival(time.perf_counter() - begun, append)
            if not query.isActive:
                break
        raise RuntimeError(f"the row did not come through the query: {query.exception()}")

    try:
        yield send
    finally:
        query.stop()


if __name__ == "__main__":
    main()
