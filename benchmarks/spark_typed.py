"""How much faster is a query on a topic with a schema than on one of JSON, and how close is it to a Parquet table?

The query filters and aggregates three of eight columns.  Ours: 2 M rows in a topic with a schema, by the columns that
the query needs, and with all of them.  The others: the same rows as JSON in a topic, parsed by `from_json`, and as
a Parquet table.  By hand: parsing takes 1 to 2 µs a row, the JVM's transfer of three columns 0.1 µs: ten times.

A selective query adds up one row in a hundred, by a column that grows: with `spark_log.where`, which skips batches, and
with the same filter after the read.  A write is compared with that of the JSON of the same rows, both from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import common
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_log

SCHEMA = "id BIGINT, customer BIGINT, amount DOUBLE, country STRING, created TIMESTAMP, status STRING, sku STRING, quantity INT"
NEEDED = "country,amount,quantity"


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
    frame.where("amount > 100 AND country IN ('DE', 'FR')").groupBy("country").agg(
        F.sum("amount"), F.avg("quantity"), F.count("*")
    ).collect()


def main() -> None:
    given = common.arguments(__doc__)
    spark = common.session()
    rows = orders(spark, given.rows).persist()
    rounds = {"rounds": given.rounds, "warm": given.warm}
    with common.folder() as url, common.folder() as table:
        texts = rows.selectExpr("to_json(struct(*)) AS value").persist()
        write = common.pairs(writer(rows, url, "typed", SCHEMA), writer(texts, url, "json", None), **rounds)
        texts.unpersist()
        rows.write.mode("overwrite").parquet(table)
        rows.unpersist()
        typed, whole = loaded(spark, url, columns=NEEDED), loaded(spark, url)
        text = spark.read.format("pylog").option("subscribe", "json-0").schema("value binary").load(url)
        parsed = text.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("v")).select("v.*")
        parquet = spark.read.parquet(table)
        json = common.pairs(lambda: answer(typed), lambda: answer(parsed), **rounds)
        file = common.pairs(lambda: answer(typed), lambda: answer(parquet), **rounds)
        all_columns = common.pairs(lambda: answer(whole), lambda: answer(typed), rounds=given.rounds, warm=0)
        some = f"id >= {given.rows // 2} AND id < {given.rows // 2 + given.rows // 100}"
        skipping = loaded(spark, url, columns="id,amount", **spark_log.where(some))
        filtered = loaded(spark, url, columns="id,amount").where(some)
        where = common.pairs(lambda: added(skipping), lambda: added(filtered), **rounds)
        where_file = common.pairs(lambda: added(skipping), lambda: added(parquet.where(some)), **rounds)
    common.report(
        "spark_typed",
        rows=given.rows,
        seconds=json.ours,
        json_seconds=json.other,
        faster_than_json=json.ratio,
        parquet_seconds=file.other,
        of_parquet=file.ratio,
        all_columns_seconds=all_columns.ours,
        where_seconds=where.ours,
        filtered_seconds=where.other,
        where_speed_up=where.ratio,
        where_of_parquet=where_file.ratio,
        write_seconds=write.ours,
        write_of_json=write.ratio,
    )


def writer(frame: DataFrame, url: str, name: str, schema: str | None) -> Callable[[], None]:
    """Writes a frame from memory into a new topic each time, `NAME-0` the first."""
    frame.count()
    numbers, log = count(), spark_log.connect(url)

    def write() -> None:
        topic = f"{name}-{next(numbers)}"
        log.create_topic(spark_log.NewTopic(topic, common.PARTITIONS, schema=schema))
        frame.write.format("pylog").mode("append").option("topic", topic).save(url)

    return write


def loaded(spark: SparkSession, url: str, **options: str) -> DataFrame:
    """The columns of the typed topic."""
    return spark.read.format("pylog").options(subscribe="typed-0", **options).load(url)


def added(frame: DataFrame) -> None:
    """The selective query."""
    frame.agg(F.sum("amount"), F.count("*")).collect()


if __name__ == "__main__":
    main()
