"""Spark asks a Python source for columns that a query does not use, and keeps the filters of another query.

    python docs/upstream/filters_and_columns.py

Needs only PySpark.  Exit status: 0 if both faults are still there, 1 if one is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

ROWS = [(number, "x" * 10) for number in range(3)]


class Reader(DataSourceReader):
    """Evaluates `number = …` itself, and says so: Spark does not evaluate that filter again."""

    def __init__(self, asked: StructType) -> None:
        self._asked = asked
        self._wanted: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for one in filters:
            if isinstance(one, EqualTo):
                self._wanted = one.value
            else:
                yield one

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str, str]]:
        asked = ", ".join(self._asked.fieldNames())
        return ((n, text, asked) for n, text in ROWS if self._wanted is None or n == self._wanted)


class Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "probe"

    def schema(self) -> str:
        return "number int, text string, asked string"

    def reader(self, schema: StructType) -> Reader:
        return Reader(schema)


def main() -> int:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Source)
    frame = spark.read.format("probe").load()
    asked = frame.select("asked").first()["asked"]
    filtered, all_rows = frame.where("number = 1").count(), frame.count()
    spark.stop()
    print(f"a query of one column asks the source for: {asked}")
    print(f"rows with a filter: {filtered}; rows of the same frame without one, afterwards: {all_rows} of {len(ROWS)}")
    return int(asked == "asked" or all_rows == len(ROWS))


if __name__ == "__main__":
    sys.exit(main())
