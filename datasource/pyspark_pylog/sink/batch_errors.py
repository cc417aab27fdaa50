"""Errors of `spark_log.sink` reach Spark as a sentence, unless PYLOG_DEBUG=1.

Py4J sends an exception of a `foreachBatch` function to the JVM as the text of its traceback, some 1,200 characters, all
of them of PySpark and pylog.  It sends a Java exception as it is, on a connection that says so.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from pyspark_pylog.plain_errors import HIDE
from pyspark_pylog.sessions import is_connect
from spark_log.debug import shows_tracebacks
from spark_log.errors import SparkLogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CALLER = "pyspark.sql.utils"
"""The module that calls the function of a `foreachBatch`."""


def is_called_by_spark() -> bool:
    """Whether the caller of this function's caller is Spark.  Otherwise it is a function of the user, who may handle
    the error.
    """
    return sys._getframe(2).f_globals.get("__name__") == CALLER


@contextmanager
def plain_batch_errors(frame: DataFrame, *, by_spark: bool) -> Iterator[None]:
    """Shorten errors of pylog and Spark to their message.

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
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

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
