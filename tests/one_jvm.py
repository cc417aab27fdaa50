"""Runs programs with Spark one after the other in one process and one session: `python one_jvm.py COMMAND…`.

Each prints what it prints alone.
"""

from __future__ import annotations

import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import spark_log  # noqa: F401  before Spark starts: it tells Spark which Python has pylog


def run(command: Sequence[str]) -> None:
    """As `python COMMAND` does."""
    sys.argv = list(command)
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    # Few rows need few tasks.
    builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    for text in sys.argv[1:]:
        run(shlex.split(text))
