"""Errors as Spark shows them: one sentence without a traceback, unless PYLOG_DEBUG=1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from spark_log.debug import shows_tracebacks
from spark_log.errors import SparkLogError

HIDE = "SPARK_HIDE_TRACEBACK"
"""PySpark's workers leave the traceback out of what they report if this is set when the error leaves them."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors that pylog raises on purpose reach the user as their message alone; any other keeps its traceback."""
    try:
        yield
    except SparkLogError as error:
        if shows_tracebacks():
            raise
        raise plain(error) from None


def plain(error: SparkLogError) -> SparkLogError:
    """The error, to be raised immediately, as its message alone."""
    if shows_tracebacks():
        return error
    os.environ[HIDE] = "1"
    return error.with_traceback(None)
