"""pylog: a distributed log inside Spark.  `connect(url)` opens a log; `register(spark)` adds the data source."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
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
    from pyspark.sql import DataFrame, SparkSession

    from spark_log import aio
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
    "aio",
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
    if name == "aio":
        return import_module("spark_log.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, with those that are imported on first use: for completion at a prompt."""
    return __all__


def metrics_listener(path: str) -> Any:
    """A listener for `spark.streams.addListener` that writes lag and rates of queries to an OpenMetrics file."""
    from pyspark_pylog.progress.listener import MetricsListener

    return MetricsListener(path)


def register(spark: SparkSession) -> None:
    """Add the source `pylog` to a session, and make the session the active one of the calling thread.

    Queries then read only the columns that they use, and skip records by their filters: Spark's own classes for Python
    sources do not.  The setting `spark.pylog.pushDown=false`, or the option `pushDown=false` of a read, turns this off.
    Spark's own tasks read batches and streams of logs on disks, without Python; `spark.pylog.nativeRead=false`, or
    `nativeRead=false`, turns that off.

    Call it also if Spark does not find pylog, and in each thread that writes with `df.write`, except the thread that
    created the session.  A second call in the same thread changes nothing.
    For a pool of threads that write another thread's frames:
    `ThreadPoolExecutor(4, initializer=register, initargs=(spark,))`.
    Raises InvalidRequest if Spark's Python does not have pylog, and for an object that is not a session.
    """
    from pyspark_pylog.registration import register as add

    add(spark)


def sink(
    url: str, *, topic: str | None = None, name: str = "sink", checkpoint: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function to pass to `writeStream.foreachBatch`.  Use it to write streaming aggregates (`outputMode("update")`).

    A batch that Spark replays after a crash adds nothing: each write is identified by its query id, name, topic and
    batch id.

    topic:       the topic of all rows; None: each row names its topic.
    name:        a different name for each sink of one query, if the sinks write to the same topic or their rows name
                 topics.
    checkpoint:  the query's checkpointLocation.  Only Spark Connect requires it: a batch does not know its query there.
    options:     the options of a batch write, e.g. `partitioner`, `compression` or `**{"storage.key": …}`; also
                 `onOlderBatch`.
    Raises InvalidRequest for an invalid option, immediately and not with the first batch.
    """
    from pyspark_pylog.sink.foreach_batch import sink as make

    return make(url, topic=topic, name=name, checkpoint=checkpoint, **options)


def tune(spark: SparkSession, *, largest_record: int | None = None) -> dict[str, tuple[str, str]]:
    """Set the Spark settings that help pylog, unless they were set in the session or when Spark started.

    Returns name -> (before, after).  A repeated call changes nothing.  `spark.conf.unset(name)` undoes a setting.

    largest_record:  an upper bound, in bytes, on the size of each record that the session will write.  Spark then ends
                     a batch after a number of rows, and need not compute its bytes after each row.
    """
    from pyspark_pylog.tune import tune as set_them

    return set_them(spark, largest_record=largest_record)


def where(condition: str, spark: SparkSession | None = None) -> dict[str, str]:
    """Options that make a read return only the rows of `df.where(condition)`, and fetch fewer bytes.

    Pass them as `spark.read.options(**where("…"))`.

    condition:  comparisons of timestamp, offset, partition and data columns with constants, joined by AND, OR and NOT.
    spark:      the session whose time zone applies to times that are written without a zone.  Default: the active
                session.  If there is none, such times are in UTC.
    Raises InvalidRequest, which names the part that is not supported.  Data columns are looked up later, when the frame
    is read.
    """
    from pyspark_pylog.options.where_condition import where as make

    return make(condition, spark)
