"""Spark sessions: of a JVM here, and of a client of Spark Connect."""

from __future__ import annotations

from typing import Any

from spark_log.errors import InvalidRequest
from spark_log.text import type_of


def is_connect(spark: Any) -> bool:
    """Whether a session, or a frame, is a Spark Connect client's: it has no JVM, and threads make no difference."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def check_session(spark: object, function: str, arguments: str = "spark") -> None:
    """Raises InvalidRequest for another object than a session, such as its URL or a frame."""
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession) and not (is_connect(spark) and type(spark).__name__ == "SparkSession"):
        raise InvalidRequest(
            f"spark_log.{function}: expected a SparkSession, got {type_of(spark)}: call spark_log.{function}({arguments}) with "
            "spark = SparkSession.builder.getOrCreate()"
        )
