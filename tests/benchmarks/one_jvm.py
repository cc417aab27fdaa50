"""Runs benchmarks with Spark one after the other in one process, whose JVM starts once: `python one_jvm.py COMMAND…`.

They share a Spark session, with the settings that each adds.  Each prints what it prints alone.
"""

from __future__ import annotations

import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path


def run(command: Sequence[str]) -> None:
    """As `python COMMAND` does."""
    sys.argv = list(command)
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    for text in sys.argv[1:]:
        run(shlex.split(text))
