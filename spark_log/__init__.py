"""pylog: a distributed log inside Spark.  `connect(url)` opens a log; `register(spark)` adds the data source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from spark_log import errors
from spark_log.client.arguments import guarded
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
from spark_log.runtime.driver_python import name_driver_python

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spark_log import aio
    from spark_log.client.log import Log, connect
    from spark_log.flows.flow import Flow
    from spark_log.flows.keyed_state import Keyed

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
    "flow",
    "keyed",
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


@guarded
def flow(
    url: str | PathLike[str],
    *,
    name: str,
    source: str | re.Pattern[str] | Iterable[str],
    function: Callable[..., object],
    target: str | None = None,
    lookup: str | Iterable[str] = (),
    state: Keyed | None = None,
    tasks: int = 1,
    task_numbers: Iterable[int] | None = None,
    start: object = "earliest",
    bad_records: str = "fail",
    batch_bytes: int = 8 << 20,
    linger_ms: int = 0,
    value_format: str | None = None,
    spark: SparkSession | None = None,
    token: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Flow:
    """Start a flow: a function that gets batches of records as they arrive, and whose outputs go to other topics.

    Each batch is one commit of the outputs to all topics and of the batch's positions, so each record has its effect in
    the log exactly once.  Records of one partition are processed in their order.  The flow runs in threads of this
    process, or in tasks of Spark, until `stop()`, also used as a context manager.

    name:       the name of the flow, and of its consumer group.  A flow that starts again continues where it was.
    source:     a topic, several, or a compiled pattern that their whole names match; also of later topics.
    function:   gets a pyarrow Table of topic, partition, offset, key, value, timestamp and headers; for a topic with a
                schema, its columns in place of value.  Returns a pyarrow Table, a pandas or Polars frame (to `target`),
                a dict of these by topic, or None.  Frames are as for `log.append`; their columns topic, partition and
                offset have no effect.  The function may get a batch again, or parts of it, if a commit fails.
    target:     the topic of frames that the function returns.
    lookup:     a compacted topic, or several, whose latest records the function gets as further tables, in this order,
                as `log.table` returns them.
    state:      `keyed(TOPIC)`: the function also gets the state of the keys in its batch, as a table behind the first
                one, and returns a pair of outputs and new state.  A flow with state has one source topic.
    tasks:      with a coordinator, how many tasks this process adds to the flow; without one, how many the flow has:
                number 1 of 3 owns the partitions 1, 4, 7 … of each topic.
    task_numbers:  without a coordinator, the numbers of the tasks in this process, if others run the rest; None: all.
    start:      a position: where the first start begins in topics that exist.  Others are read from their first record.
    bad_records:  what happens to records at which the function fails, or whose outputs cannot be written.  "fail": the
                flow ends with FunctionFailed.  "topic:NAME": they go there unchanged in the commit of their batch, with
                the reason in headers.  "skip": they are logged.
    batch_bytes:  about the largest batch, uncompressed.  A batch has what is there, one record if there is only one.
    linger_ms:  how long a batch waits until `batch_bytes` are there.
    value_format:  as for `log.scan`.  "json" lets topics with different schemas be sources.
    spark:      a classic session, in whose application the tasks run, each on its own core; None: in this process.
    token, storage_options:  as for `connect`.
    Raises InvalidRequest, NoLog; later errors are raised by `await_termination`.
    """
    given: dict[str, Any] = {name: value for name, value in locals().items() if name != "spark"}
    if spark is None:
        from spark_log.flows.flow import start_flow

        return start_flow(**given)
    from pyspark_pylog.spark_flow import start_spark_flow

    return start_spark_flow(spark, **given)


def keyed(topic: str, schema: pa.Schema | None = None) -> Keyed:
    """State by key of a flow, in a compacted topic, for its parameter `state`.

    For each call, the function gets a second table: the state of the keys in its batch, with the columns `key` and
    `value`, or those of the schema.  A key without a state has no row.  It returns a pair: the outputs, and a table of
    the keys whose state changes, or None.  A row whose other columns are null deletes the state of its key.

    The state of a key belongs to the partition of the source from which the key's records come, and only keys of the
    batch may be changed.  A batch with several partitions is given to the function one partition at a time.

    topic:   created when the flow starts, with as many partitions as the source.  Only this flow should write to it.
    schema:  of the topic that is created; None: values are bytes.  A topic that exists has its own schema.
    """
    from spark_log.flows.keyed_state import Keyed

    return Keyed(topic, schema)


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
