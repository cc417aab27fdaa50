"""Reads and writes a log by the JVM and with Python, and by SQL: `python both_paths.py URL FOLDER [reads] [writes]`.

It asserts that the rows are the same, with `reads` that the JVM reads all that it should, and with `writes` that it
encodes it.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

import spark_log
from spark_log import NewTopic

URL, FOLDER, *NATIVELY = sys.argv[1:]
READS, WRITES = "reads" in NATIVELY, "writes" in NATIVELY
PATHS = ("true", "false")
SCHEMA = "id INT, text STRING, tags ARRAY<STRING>, inner STRUCT<a: DOUBLE>"


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def is_native(plan: Any) -> bool:
    return " natively" in str(plan.toString())


def batches(spark: SparkSession, topic: str, **options: str) -> int:
    """Checks the queries of a topic; how many rows it has."""
    both = [
        spark.read.format("pylog").options(subscribe=topic, nativeRead=native, **options).load(URL) for native in PATHS
    ]
    for frame, native in zip(both, PATHS, strict=True):
        plan: Any = frame._jdf.queryExecution().executedPlan()  # type: ignore[operator]
        assert is_native(plan) == (READS and native == "true")
    for of in ("*", "offset", "partition, timestamp"):
        for condition in ("true", "offset >= 20 and partition = 1", "key is null"):
            found, expected = (rows(frame.where(condition).selectExpr(*of.split(", "))) for frame in both)
            assert found == expected, f"{of} where {condition}"
    assert [frame.count() for frame in both] == [len(rows(both[0]))] * 2
    assert len(both[0].limit(7).collect()) == 7
    return both[0].count()


def stream(spark: SparkSession, topic: str, native: str) -> int:
    """Continues a stream up to the end of its topic; how many rows it read."""
    frame = spark.readStream.format("pylog").options(subscribe=topic, startingOffsets="earliest", nativeRead=native)
    found: list[str] = []
    writer = frame.load(URL).writeStream.foreachBatch(lambda batch, number: found.extend(rows(batch)))
    writer = writer.option("checkpointLocation", f"{FOLDER}/checkpoint-{topic}").trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    described = str(query._jsq.explainInternal(False))  # type: ignore[attr-defined]
    assert ("natively" in described) == (READS and native == "true"), described
    return len(found)


def writes(spark: SparkSession) -> None:
    """Checks that batches have the same rows."""
    frame = spark.range(0, 2_000, 1, 1).selectExpr(
        "if(id % 9 = 0, null, string(id % 50)) key",
        "string(id) value",
        "if(id % 2 = 0, null, array(struct(string(id) as key, binary('x') as value))) headers",
    )
    written = []
    for native in PATHS:
        topic = f"written-{native}"
        frame.write.format("pylog").mode("append").options(topic=topic, nativeRead=native).save(URL)
        named = frame.selectExpr("*", f"'{topic}' topic")
        named.write.format("pylog").mode("append").option("nativeRead", native).save(URL)
        found = spark.read.format("pylog").options(subscribe=topic, includeHeaders="true").load(URL)
        written.append(found.select("key", "value", "headers"))
    assert rows(written[0]) == rows(written[1])
    assert written[0].count() == 4_000


def sinks(spark: SparkSession) -> None:
    """Checks that streams pass on each row of both topics, also if they start twice."""
    for topic in ("bytes", "typed"):
        frame = spark.readStream.format("pylog").options(subscribe=topic, startingOffsets="earliest").load(URL)
        kept = frame.drop("topic", "partition", "offset", "timestamp", "timestampType")
        for _ in range(2):
            writer = kept.writeStream.format("pylog").options(topic=f"passed-{topic}")
            writer = writer.option("checkpointLocation", f"{FOLDER}/checkpoint-passed-{topic}")
            writer.trigger(availableNow=True).start(URL).awaitTermination()
        read, passed = (
            spark.read.format("pylog").option("subscribe", name).load(URL).select(*kept.columns)
            for name in (topic, f"passed-{topic}")
        )
        assert rows(passed) == rows(read)


def sql(spark: SparkSession) -> None:
    """Checks views for a read and for an insert."""
    options = f"path '{URL}', subscribe 'bytes', `value.format` 'string'"
    spark.sql(f"CREATE TEMPORARY VIEW texts USING pylog OPTIONS ({options})")
    options = f"path '{URL}', topic 'totals'"
    spark.sql(f"CREATE TEMPORARY VIEW totals (key STRING, value STRING) USING pylog OPTIONS ({options})")
    spark.sql("INSERT INTO totals SELECT 'sum', string(sum(int(value))) FROM texts")
    spark.sql("INSERT INTO totals VALUES ('count', '400')")
    found = spark.read.format("pylog").options(subscribe="totals").load(URL).selectExpr("string(key)", "string(value)")
    assert rows(found) == ["Row(key='count', value='400')", "Row(key='sum', value='79800')"]


def main(spark: SparkSession, log: spark_log.Log) -> None:
    log.create_topic(NewTopic("bytes", 2))
    for name in ("typed", "passed-typed"):
        log.create_topic(NewTopic(name, 2, schema=SCHEMA))
    for first, native in zip(range(0, 400, 100), PATHS * 2, strict=True):
        numbers = range(first, first + 100)
        keys = [None if n % 10 == 0 else b"k%d" % (n % 7) for n in numbers]
        headers = [("h", b"x")] * (first == 100)
        log.append(
            "bytes", [{"key": k, "value": b"%d" % n, "headers": headers} for k, n in zip(keys, numbers, strict=True)]
        )
        values = [{"id": n, "text": f"t{n % 3}", "tags": ["x", None], "inner": {"a": n / 2}} for n in numbers]
        log.append("typed", [{"key": k, **value} for k, value in zip(keys, values, strict=True)])
        log.append("typed", [{"key": b"k", "value": None}])
        assert (stream(spark, "bytes", native), stream(spark, "typed", native)) == (100, 101)
    assert batches(spark, "bytes", includeHeaders="true") == 400
    assert batches(spark, "typed") == batches(spark, "typed", **{"value.format": "struct"}) == 404
    writes(spark)
    sinks(spark)
    sql(spark)
    jvm: Any = spark._jvm
    if READS:
        before = jvm.io.pylog.spark.PylogReader.left()
        spark.read.format("pylog").option("subscribe", "bytes").load(URL).collect()
        assert jvm.io.pylog.spark.PylogReader.left() == before
    if WRITES:
        assert jvm.io.pylog.spark.PylogWriter.encoded() == 2
    sys.stdout.write(f"version {pyspark.__version__}, same rows\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    Path(FOLDER).mkdir(exist_ok=True)
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = (
        session.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    for _ in range(2):
        spark_log.register(session)
    main(session, spark_log.connect(URL, durability="os"))
