"""`spark_log.sink(URL, topic=…)`: each micro-batch of a `foreachBatch` appended exactly once."""

from __future__ import annotations

import copy
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql.utils import to_str

from pyspark_pylog.options.parse import write_options
from pyspark_pylog.plain_errors import HIDE
from pyspark_pylog.registration import activate
from pyspark_pylog.sessions import is_connect
from pyspark_pylog.sink.writer import QUERY_ID
from spark_log.client.validate import url_text
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.runtime.debug import shows_tracebacks
from spark_log.text import type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SinkBatch(NamedTuple):
    """A micro-batch of a query, and the frame that a sink got for it."""

    query_id: str
    run_id: str
    """Empty under Spark Connect, where each run has a separate process."""
    number: int
    plan: int
    """The frame's semantic hash."""


class RunningQuery(NamedTuple):
    """The query that runs a batch; `run_id` as in `SinkBatch`."""

    id: str
    run_id: str
    checkpoint: str | None


_last: dict[tuple[str, str, str | None, str], SinkBatch] = {}
"""By (query id, url, topic, name): the last batch of the sinks in this process."""
_checking = threading.Lock()


def check_one_frame(url: str, topic: str | None, name: str, batch: SinkBatch) -> None:
    """Check that sinks with one name get one frame per batch: a second frame would be taken for a replay.

    Raises InvalidRequest for another frame in the same run of the same batch.
    """
    key = batch.query_id, url, topic, name
    with _checking:
        last = _last.get(key)
        is_second = last is not None and last != batch and last._replace(plan=batch.plan) == batch
        if not is_second:
            _last[key] = batch
    if is_second:
        to = f"topic {topic!r}" if topic else "the topics that rows name"
        raise InvalidRequest(
            f"spark_log.sink: batch {batch.number} has two frames for {to} under the name "
            f"{name!r}, and the second one would count as a repeat of the first: give "
            "each a name, spark_log.sink(URL, name=…), or union the frames"
        )


def sink(
    url: str, *, topic: str | None = None, name: str = "sink", checkpoint: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """`spark_log.sink`, which has the documentation."""
    every = {"path": url_text(url), "topic": topic, "txnAppId": name, "pylog.txnFromQuery": True, **options}
    write_options(
        {key.lower(): str(to_str(value)) for key, value in every.items() if value is not None}, streaming=False
    )

    def append(frame: DataFrame, batch_id: int) -> None:
        if not hasattr(frame, "sparkSession"):
            raise InvalidRequest(f"spark_log.sink: its function takes a DataFrame and a batch id, got {type_of(frame)}")
        with plain_batch_errors(frame, by_spark=is_called_by_spark()):
            write(frame, batch_id)

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("pylog").mode("append")
        writer = writer.option("txnAppId", name).option("txnVersion", batch_id).option("pylog.txnFromQuery", True)
        activate(frame.sparkSession)
        query = _query_of(frame, checkpoint)
        if query is not None:
            check_one_frame(url, topic, name, SinkBatch(query.id, query.run_id, batch_id, frame.semanticHash()))
            writer = writer.option("pylog.queryId", query.id)
        if folder := checkpoint or (query and query.checkpoint):
            writer = writer.option("pylog.checkpoint", folder)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer.options(**options).save(url)

    return append


def _query_of(frame: DataFrame, checkpoint: str | None) -> RunningQuery | None:
    """The query of this batch; None if Spark does not report it: then only the rows are compared."""
    if is_connect(frame):
        return RunningQuery(_query_id_in(frame, checkpoint), "", checkpoint)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # a Spark Connect client may not have it

    context = frame.sparkSession.sparkContext
    jvm: Any = context._jvm
    try:
        running = frame.sparkSession._jsparkSession.sharedState().activeStreamingQueries()
        query = running.get(jvm.java.util.UUID.fromString(context.getLocalProperty(QUERY_ID)))
        return RunningQuery(str(query.id()), str(query.runId()), str(query.resolvedCheckpointRoot()))
    except (Py4JError, AttributeError, TypeError):
        return None


def _query_id_in(frame: DataFrame, checkpoint: str | None) -> str:
    """The query's id, which Spark reads from the checkpoint; it is as old as the checkpoint."""
    if checkpoint is None:
        raise InvalidRequest(
            "under Spark Connect a batch does not know its query: give the sink the query's "
            "checkpointLocation as well, spark_log.sink(URL, topic=…, checkpoint=…)"
        )
    lines = frame.sparkSession.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
    return str(json.loads(lines[0].value)["id"])


CALLER = "pyspark.sql.utils"
"""The module that calls the function of a `foreachBatch`."""


def is_called_by_spark() -> bool:
    """Whether the caller of this function's caller is Spark.  Otherwise it is a function of the user, who may handle
    the error.
    """
    return sys._getframe(2).f_globals.get("__name__") == CALLER


@contextmanager
def plain_batch_errors(frame: DataFrame, *, by_spark: bool) -> Iterator[None]:
    """Shorten errors of pylog and Spark to their message, unless PYLOG_DEBUG=1.

    Py4J sends an exception of a `foreachBatch` function to the JVM as the text of its traceback, some 1,200 characters,
    all of them of PySpark and pylog.  It sends a Java exception as it is, on a connection that says so.

    by_spark:  whether Spark receives the error.
    """
    try:
        yield
    except (SparkLogError, PySparkException) as error:
        if shows_tracebacks():
            raise
        if is_connect(frame):
            os.environ[HIDE] = "1"
            raise
        if not by_spark:
            raise
        raise _of_java(frame, error) from None


def _of_java(frame: DataFrame, error: SparkLogError | PySparkException) -> Exception:
    """The error as one of Java, which this thread's connection sends unchanged; itself if that is not possible."""
    from py4j.protocol import Py4JError, Py4JJavaError

    context: Any = frame.sparkSession.sparkContext
    name = f"{type(error).__module__}.{type(error).__name__}: " if isinstance(error, SparkLogError) else ""
    text = f"{name}{error}"
    try:
        connection = context._gateway._gateway_client.get_thread_connection()
        parameters = copy.copy(connection.python_parameters)
        parameters.propagate_java_exceptions = True
        java = context._jvm.java.lang.RuntimeException(text, getattr(error, "_origin", None))
    except (AttributeError, Py4JError):
        return error
    connection.python_parameters = parameters
    return Py4JJavaError(text, java)
