"""pylog: a distributed log that lives inside Spark.  `connect(url)` opens one; `register(spark)` adds the data source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_log import errors
from spark_log.model import (
    EARLIEST,
    LATEST,
    ConsumerRecord,
    NewTopic,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_log.client.log import Log, connect

__all__ = [
    "EARLIEST",
    "LATEST",
    "ConsumerRecord",
    "Log",
    "NewTopic",
    "OffsetAndMetadata",
    "RecordMetadata",
    "TopicPartition",
    "connect",
    "errors",
    "metrics_listener",
    "register",
    "sink",
    "where",
]


def __getattr__(name: str) -> Any:
    """Log and connect, when they are asked for: they bring Arrow, and `pylog --help` does without."""
    if name in ("Log", "connect"):
        from spark_log.client import log

        return getattr(log, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def metrics_listener(path: str) -> Any:
    """A listener for `spark.streams.addListener` that writes lag and rates of queries to a file, in OpenMetrics form."""
    from pyspark_pylog.listener import MetricsListener

    return MetricsListener(path)


def register(spark: SparkSession) -> None:
    """Make `format("pylog")` known to a running session, where Spark's discovery cannot: notebooks, %pip in a live one."""
    from pyspark_pylog import DefaultSource

    spark.dataSource.register(DefaultSource)


def sink(url: str, **options: Any) -> Any:
    """A function for `foreachBatch` that appends each micro-batch exactly once (see `pyspark_pylog.sink`)."""
    from pyspark_pylog.sink import sink as make

    return make(url, **options)


def where(condition: str, spark: SparkSession | None = None) -> dict[str, str]:
    """Options of a read that leaves out what `condition` cannot match (see `pyspark_pylog.where`)."""
    from pyspark_pylog.where import where as make

    return make(condition, spark)
