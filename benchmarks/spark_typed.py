"""How much faster is a query on a topic with a schema than on one of JSON, and how close is it to a Parquet table?

The query filters and aggregates three of eight columns.  Ours: 2 M rows in a topic with a schema, by the columns that
the query needs, and with all of them.  The others: the same rows as JSON in a topic, parsed by `from_json`, and as
a Parquet table.  By hand: parsing takes 1 to 2 µs a row, the JVM's transfer of three columns 0.1 µs: ten times.
"""

from __future__ import annotations

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
    rows = orders(spark, given.rows)
    with common.folder() as url, common.folder() as table:
        log = spark_log.connect(url)
        log.create_topic(spark_log.NewTopic("typed", common.PARTITIONS, schema=SCHEMA))
        log.create_topic(spark_log.NewTopic("json", common.PARTITIONS))
        texts = rows.selectExpr("to_json(struct(*)) AS value")
        writer = common.pairs(lambda: write(rows, url, "typed"), lambda: write(texts, url, "json"), rounds=1, warm=0)
        rows.write.mode("overwrite").parquet(table)
        load = spark.read.format("pylog")
        typed = load.option("subscribe", "typed").option("columns", NEEDED).load(url)
        whole = spark.read.format("pylog").option("subscribe", "typed").load(url)
        text = spark.read.format("pylog").option("subscribe", "json").schema("value binary").load(url)
        parsed = text.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("v")).select("v.*")
        parquet = spark.read.parquet(table)
        rounds = {"rounds": given.rounds, "warm": given.warm}
        json = common.pairs(lambda: answer(typed), lambda: answer(parsed), **rounds)
        file = common.pairs(lambda: answer(typed), lambda: answer(parquet), **rounds)
        all_columns = common.pairs(lambda: answer(whole), lambda: answer(typed), rounds=given.rounds, warm=0)
    common.report(
        "spark_typed",
        rows=given.rows,
        seconds=json.ours,
        json_seconds=json.other,
        faster_than_json=json.ratio,
        parquet_seconds=file.other,
        of_parquet=file.ratio,
        all_columns_seconds=all_columns.ours,
        write_of_json=writer.ratio,
    )


def write(frame: DataFrame, url: str, topic: str) -> None:
    frame.write.format("pylog").mode("append").option("topic", topic).save(url)


if __name__ == "__main__":
    main()
