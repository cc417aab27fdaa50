"""Shows errors in Spark as one sentence without a traceback, unless PYLOG_DEBUG=1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from spark_log.errors import SparkLogError
from spark_log.runtime.debug import shows_tracebacks

HIDE = "SPARK_HIDE_TRACEBACK"
"""PySpark's workers omit the traceback if this variable is set when they report an error."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Shorten pylog's errors to their message; other errors keep their traceback."""
    try:
        yield
    except SparkLogError as error:
        if shows_tracebacks():
            raise
        raise plain(error) from None


def plain(error: SparkLogError) -> SparkLogError:
    """The error with its message only, to be raised immediately."""
    if shows_tracebacks():
        return error
    os.environ[HIDE] = "1"
    return error.with_traceback(None)
