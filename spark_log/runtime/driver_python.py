"""The Python in which Spark looks for data sources.

Spark's JVM starts a separate Python for that: PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON, else `python3` of the path.
A program that runs outside of an activated environment, `/path/.venv/bin/python app.py`, has neither variable, so its
Spark would look in a Python without pylog.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

SETTLED_BY = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT")
"""Nothing is set if one of these exists: the user chose a Python, or spark-submit has started the JVM already."""


def name_driver_python(environ: MutableMapping[str, str] = os.environ, python: str = sys.executable) -> None:
    """Set PYSPARK_DRIVER_PYTHON to this Python, unless a Python is chosen or `python3` of the path is this one.

    PYSPARK_PYTHON, which executors on other machines take as well, is left alone: docs/decisions/0030.
    """
    if any(name in environ for name in SETTLED_BY) or not is_interpreter(python):
        return
    found = shutil.which("python3", path=environ.get("PATH"))
    if found is None or not _is_same(Path(found), Path(python)):
        environ["PYSPARK_DRIVER_PYTHON"] = python


def is_interpreter(path: str) -> bool:
    """Whether `path` is a Python, rather than a program that embeds one."""
    return Path(path).name.startswith(("python", "pypy"))


def _is_same(one: Path, other: Path) -> bool:
    """Whether both start the same interpreter in the same environment, which the folder of the command decides."""
    return one.parent == other.parent and one.resolve() == other.resolve()
