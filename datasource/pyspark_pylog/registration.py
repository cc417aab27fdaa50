"""`spark_log.register(spark)`: makes `format("pylog")` known to a session and to the calling thread.

Spark resolves a Python source in two places.  The session has the list of sources.  The JVM thread has the active
session, and a write from a thread without one fails with DATA_SOURCE_NOT_FOUND.  Each Python thread has a separate JVM
thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_pylog.sessions import check_session, is_connect
from spark_log.errors import InvalidRequest
from spark_log.runtime.driver_python import is_interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

CHECK = "import sys; from importlib.util import find_spec; sys.exit(not (find_spec('pyspark_pylog') and find_spec('pyarrow')))"
CHECK_S = 60
_registering = threading.Lock()
"""Threads of a pool register concurrently; two that exchange the context's Python could restore the wrong one."""


def register(spark: SparkSession) -> None:
    """`spark_log.register`, which has the documentation."""
    check_session(spark, "register")
    from pyspark_pylog.data_source import DefaultSource
    from pyspark_pylog.native.compiled import compile_planner

    if is_connect(spark):
        spark.dataSource.register(DefaultSource)
        return
    activate(spark)
    with _registering:
        python = worker_python(spark)
        if registered_python(spark, DefaultSource.name()) != python:
            _register(spark, DefaultSource, python)
        compile_planner(spark)


def _register(spark: SparkSession, source: type[DataSource], python: str) -> None:
    context: Any = spark.sparkContext
    # PySpark takes the Python of functions that it passes to the JVM from here.
    context.pythonExec, usual = python, context.pythonExec
    try:
        spark.dataSource.register(source)
    finally:
        context.pythonExec = usual


def activate(spark: SparkSession) -> None:
    """Make it the active session of this thread's JVM thread, as `spark.createDataFrame` does."""
    session: Any = spark
    if not is_connect(spark):
        type(session)._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


def registered_python(spark: Any, name: str) -> str | None:
    """The Python that runs the source of that name; None if the session does not have it."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    if not sources.dataSourceExists(name):
        return None
    return str(sources.lookupDataSource(name).dataSourceCls().pythonExec())


def worker_python(spark: Any) -> str:
    """The Python for the source's processes: that of Spark's workers, or this one for a local Spark by default."""
    context = spark.sparkContext
    usual = str(context.pythonExec)
    if _shipped_as_zip() or _same(usual, sys.executable) or _has_pylog(usual):
        return usual
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not chosen and context.master.startswith("local") and is_interpreter(sys.executable):
        return sys.executable
    raise InvalidRequest(
        f"Spark's Python workers run {usual!r} ({shutil.which(usual) or 'which is not found here'}), which has "
        f"no pylog; spark_log is installed for {sys.executable}: set the environment variable PYSPARK_PYTHON "
        "to a Python that has pylog, on this machine and on the executors, before Spark starts"
    )


def _shipped_as_zip() -> bool:
    """Whether pylog came by `--py-files` or `addPyFile`: Spark adds it to the workers' path, unseen by the check."""
    return not Path(__file__).is_file()


def _same(command: str, python: str) -> bool:
    found = shutil.which(command)
    return found is not None and Path(found).absolute() == Path(python)


@cache
def _has_pylog(python: str) -> bool:
    """Whether that Python finds pylog on this machine, where Spark runs it for each plan and commit."""
    try:
        done = subprocess.run([python, "-c", CHECK], capture_output=True, timeout=CHECK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
