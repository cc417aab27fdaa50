"""SQL: every statement of the page on Spark runs, and what it says that does not work does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import spark_log
from tests.spark.builders import DEADLINE_S, as_bytes, load_stream, texts, to_sink, values

PAGE = Path(__file__).parents[2] / "docs" / "spark-sql.md"
SECTION = PAGE.read_text().partition("\n## SQL\n")[2].partition("\n## ")[0]
STATEMENTS = [
    statement.strip()
    for block in re.findall(r"```sql\n(.*?)```", SECTION, re.DOTALL)
    for statement in re.sub(r" +-- .*", "", block).split(";")
    if statement.strip()
]
(PYTHON,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
REFUSED = [
    (code.strip(), error) for _, code, error in re.findall(r"^\| (`+)(.+?)\1 \| `([^`]+)` \|", SECTION, re.MULTILINE)
]
"""SQL, or an expression of Python, and what its error says."""
MADE = re.findall(r"CREATE (?:TEMPORARY )?(TABLE|VIEW) (\w+)", "\n".join(STATEMENTS))

Sql = Callable[[str], list[Row]]


@pytest.fixture
def sql(spark: SparkSession, url: str) -> Iterator[Sql]:
    """Runs a statement of the page with the log of the test; what the page creates is dropped afterwards."""
    yield lambda statement: spark.sql(statement.replace("/data/log", url)).collect()
    for kind, name in MADE:
        spark.sql(f"drop {kind} if exists {name}")


def create(sql: Sql) -> None:
    """The page's views and tables."""
    for statement in STATEMENTS:
        if statement.startswith("CREATE"):
            sql(statement)


def orders(log: spark_log.Log) -> None:
    """Topic `orders`, with three records, of which group `billing` has read two."""
    log.append("orders", [{"key": key, "value": str(number)} for number, key in enumerate("aab")])
    log.admin.alter_consumer_group_offsets("billing", {spark_log.TopicPartition("orders", 0): 2})


def pairs(log: spark_log.Log, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(record["key"], record["value"]) for record in log.read(topic).to_pylist()]


# Promise: spark-sql.md#sql
def test_the_statements_of_the_page_run(sql: Sql, log: spark_log.Log) -> None:
    """In their order; what they read and write is what the page says."""
    orders(log)
    rows = [[tuple(row) for row in sql(text)] for text in STATEMENTS]
    answers = [found for text, found in zip(STATEMENTS, rows, strict=True) if text.startswith("SELECT")]
    assert answers == [
        [("a", "0", 0), ("a", "1", 1), ("b", "2", 2)],
        [(2,)],
        [(1,)],
        [("a", "0"), ("a", "1"), ("b", "2")],
    ]
    assert sorted(pairs(log, "totals")[:2]) == [(b"a", b"2"), (b"b", b"1")]
    assert pairs(log, "totals")[2:] == [(b"c", b"7"), (b"d", None), (b"e", b"8"), (None, b"9")]
    assert pairs(log, "copy") == pairs(log, "orders")
    assert pairs(log, "fine") == pairs(log, "bad") == [(b"k", b"v")]


# Promise: spark-sql.md#sql
def test_the_python_of_the_page_runs(
    spark: SparkSession, sql: Sql, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """Batches and streams by the names of tables and views."""
    orders(log)
    create(sql)
    names: dict[str, Any] = {"spark": spark, "URL": url, "CHECKPOINT": str(tmp_path / "checkpoint")}
    exec(PYTHON, names)
    names["query"].awaitTermination(DEADLINE_S)
    assert pairs(log, "copy") == 2 * pairs(log, "orders")
    assert names["stream"].isStreaming and names["texts"].isStreaming


def analysed(code: str, names: dict[str, Any]) -> None:
    """An expression of Python; a frame under Spark Connect is only looked at when it is asked something."""
    frame = eval(code, names)
    assert frame.isStreaming


# Promise: spark-sql.md#what-does-not-work
@pytest.mark.parametrize(("code", "error"), REFUSED, ids=[code for code, _ in REFUSED])
def test_what_the_page_says_does_not_work_does_not(
    spark: SparkSession, sql: Sql, url: str, log: spark_log.Log, code: str, error: str
) -> None:
    """With the error that the page shows; nothing is written."""
    orders(log)
    create(sql)
    version = log.journal.refresh().version
    with pytest.raises(PySparkException, match=re.escape(error)):
        sql(code) if code[:6].isupper() else analysed(code, {"spark": spark, "URL": url})
    assert log.journal.refresh().version == version


def test_a_temporary_view_sees_new_records(spark: SparkSession, sql: Sql, log: spark_log.Log) -> None:
    """And those of new partitions, as does a view that is kept."""
    orders(log)
    create(sql)
    for query in ("select value from orders", "select binary(value) as value from order_texts"):
        assert values(spark.sql(query)) == as_bytes(range(3))
    log.append("orders", texts(2, 3))
    log.admin.create_partitions({"orders": 2})
    log.append("orders", [{"value": "5", "partition": 1}])
    for query in ("select value from orders", "select binary(value) as value from order_texts"):
        assert values(spark.sql(query)) == as_bytes(range(6))


def test_names_of_options_may_have_dots(sql: Sql, log: spark_log.Log) -> None:
    """Without quotes, and an equals sign may stand before the value."""
    orders(log)
    create(sql)
    server = "kafka.bootstrap.servers = 'file:///data/log', kafka.isolation.level 'read_committed'"
    statement = f"SELECT * FROM log WITH ({server}, subscribe = 'orders')"
    assert len(sql(statement)) == 3


def test_a_table_with_headers(sql: Sql, log: spark_log.Log) -> None:
    """By includeHeaders when it is created, or named among its columns."""
    log.append("orders", [{"value": "v", "headers": [("h", b"1")]}])
    sql("CREATE TABLE log USING pylog OPTIONS (includeHeaders 'true')")
    sql("CREATE TABLE texts (value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>) USING pylog")
    for table in ("log", "texts"):
        rows = sql(f"SELECT headers[0].key FROM {table} WITH (path '/data/log', subscribe 'orders')")
        assert [tuple(row) for row in rows] == [("h",)]


def test_an_insert_runs_once_for_its_version(sql: Sql, log: spark_log.Log) -> None:
    """txnAppId and txnVersion are options of an insert as well."""
    create(sql)
    options = "path '/data/log', txnAppId 'nightly', txnVersion '1'"
    for _ in range(2):
        sql(f"INSERT INTO texts WITH ({options}) VALUES ('k', 'v', 't')")
    assert log.read("t").num_rows == 1


def test_a_view_of_a_stream_is_read_by_sql(
    spark: SparkSession, sql: Sql, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """And what SQL makes of it is a stream."""
    orders(log)
    load_stream(spark, url, "orders").createOrReplaceTempView("orders")
    frame = spark.sql("select value from orders where key = binary('a')")
    to_sink(frame, spark_log.sink(url, topic="copy", checkpoint=str(tmp_path / "c")), tmp_path / "c")
    assert [value for _, value in pairs(log, "copy")] == [b"0", b"1"]
