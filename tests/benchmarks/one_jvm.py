"""Runs benchmarks with Spark one after the other in one process, whose JVM starts once: `python one_jvm.py COMMAND…`.

Each has a Spark session to itself, and prints what it prints alone.
"""

from __future__ import annotations

import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession


def run(command: Sequence[str]) -> None:
    """As `python COMMAND` does."""
    sys.argv = list(command)
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")
    if session := SparkSession.getActiveSession():
        session.stop()


if __name__ == "__main__":
    for text in sys.argv[1:]:
        run(shlex.split(text))
