"""An Arrow UDF over a frame in Spark's Arrow cache reads the columns after Spark has closed them.

    python docs/upstream/arrow_cache.py

Needs PySpark from 4.3, and PyArrow.  Exit status: 0 if the fault is still there, 1 if it is gone.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import LongType


@arrow_udf(LongType())
def same(numbers: pa.Array) -> pa.Array:
    return numbers


def main() -> int:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config(
            "spark.sql.cache.serializer",
            "org.apache.spark.sql.execution.columnar.ArrowCachedBatchSerializer",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.range(100_000).cache()
    frame.count()
    try:
        total = frame.select(same("id").alias("id")).selectExpr("sum(id)").first()[0]
    except Py4JJavaError as error:
        cause = next(line for line in str(error).splitlines() if "IndexOutOfBounds" in line)
        cause = cause[cause.index("java.lang") :]
        print(f"the query failed: {cause}")
        return 0
    finally:
        spark.stop()
    print(f"the query returned {total}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
