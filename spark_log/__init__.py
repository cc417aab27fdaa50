"""pylog: a distributed log inside Spark.  `connect(url)` opens a log; `register(spark)` adds the data source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_log import errors
from spark_log.driver_python import name_driver_python
from spark_log.log_lines import make_printable
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
    "tune",
    "where",
]

name_driver_python()
make_printable("spark_log", "spark_log.http")


def __getattr__(name: str) -> Any:
    """Import Log and connect on first use: they import Arrow, which `pylog --help` does not need."""
    if name in ("Log", "connect"):
        from spark_log.client import log

        return getattr(log, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, with those that are imported on first use: for completion at a prompt."""
    return __all__


def metrics_listener(path: str) -> Any:
    """A listener for `spark.streams.addListener` that writes lag and rates of queries to an OpenMetrics file."""
    from pyspark_pylog.progress.listener import MetricsListener

    return MetricsListener(path)


def register(spark: SparkSession) -> None:
    """Make `format("pylog")` known to a session and to the calling thread (see `pyspark_pylog.registration`).

    For a pool of threads that write another thread's frames:
    `ThreadPoolExecutor(4, initializer=register, initargs=(spark,))`.
    """
    from pyspark_pylog.registration import register as add

    add(spark)


def sink(url: str, **options: Any) -> Any:
    """A function for `foreachBatch` that appends each micro-batch exactly once.

    options:  topic, name, checkpoint, and the options of a batch write.  See `pyspark_pylog.sink.foreach_batch.sink`.
    """
    from pyspark_pylog.sink.foreach_batch import sink as make

    return make(url, **options)


def tune(spark: SparkSession, *, largest_record: int | None = None) -> dict[str, tuple[str, str]]:
    """Set the Spark settings that help pylog, unless the user has set them; returns name -> (before, after).

    largest_record: an upper bound, in bytes, on the size of each record that the session will write.  Setting it
                    makes writes of small records faster.
    """
    from pyspark_pylog.tune import tune as set_them

    return set_them(spark, largest_record)


def where(condition: str, spark: SparkSession | None = None) -> dict[str, str]:
    """Options that make a read in Spark return only the records that match `condition`, and fetch fewer bytes.

    `spark.read.options(**spark_log.where("amount > 100 and country = 'DE'"))`; conditions and errors are those of
    `pyspark_pylog.options.where_condition.where`.
    """
    from pyspark_pylog.options.where_condition import where as make

    return make(condition, spark)
