"""Helpers of tests of reads in the JVM: the rows of both paths, and which of them a query takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.builders import load

IS_OFF = "false" in (os.environ.get("PYLOG_PUSH_DOWN"), os.environ.get("PYLOG_NATIVE_READ"))
MARKS = [pytest.mark.tasks, pytest.mark.skipif(IS_OFF, reason="it is turned off")]


def counter(spark: SparkSession) -> Callable[[], int]:
    """How many tasks Python has read since the last call, in whole or in part."""
    reader: Any = spark._jvm.io.pylog.spark.PylogReader  # type: ignore[union-attr]
    return increase_of(reader.left)


def increase_of(count: Callable[[], Any]) -> Callable[[], int]:
    """How much a counter of the JVM has grown since the last call."""
    before = [count()]

    def since() -> int:
        before.append(count())
        return int(before[-1] - before[-2])

    return since


def is_native(frame: DataFrame) -> bool:
    """Whether a batch is planned for the JVM."""
    return " natively " in str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


def rows(frame: DataFrame) -> list[str]:
    """Its rows as texts, in order."""
    return sorted(map(str, frame.collect()))


def of_both(spark: SparkSession, url: str, topic: str = "t", **options: Any) -> tuple[list[str], list[str]]:
    """The rows of the JVM, and those of Python."""
    native, python = load(spark, url, topic, **options), load(spark, url, topic, nativeRead="false", **options)
    assert is_native(native) and not is_native(python)
    return rows(native), rows(python)
