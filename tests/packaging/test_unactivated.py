"""`/path/.venv/bin/python app.py` as cron, an IDE or Airflow run it: no activated environment, another python3 on the
path.  The README's Python runs so, too (tests/test_readme.py): it imports spark_log before Spark starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import sys
from pyspark.sql import SparkSession
def session():
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    return builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
def round_trip(spark):
    frame = spark.createDataFrame([(b"v",)], "value binary")
    frame.write.format("pylog").mode("append").option("topic", "t").save(sys.argv[1])
    print("found", spark.read.format("pylog").option("subscribe", "t").load(sys.argv[1]).count())
"""


def run(code: str, bare: Path, *arguments: Path, **variables: str) -> str:
    """Standard output of a program that must succeed, in an environment with next to nothing."""
    java = shutil.which("java")
    assert java is not None
    env = {"PATH": f"{bare}:/usr/bin:/bin:{Path(java).parent}", "HOME": os.environ.get("HOME", "/"), **variables}
    env |= {name: os.environ[name] for name in ("JAVA_HOME", "SPARK_SUBMIT_OPTS") if name in os.environ}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-5000:]}"
    return done.stdout


# Promise: spark.md#how-spark-finds-it
@pytest.mark.slow
def test_a_spark_that_runs_already_takes_the_source_from_register(bare: Path, tmp_path: Path) -> None:
    """It has looked in the wrong Python, for the source and for its workers; the registered source runs in the
    driver's.
    """
    code = f"{SESSION}\nspark = session()\nimport spark_log\nspark_log.register(spark)\nround_trip(spark)"
    code += "\nprint('workers', spark.sparkContext.pythonExec)"
    assert "found 1\nworkers python3\n" in run(code, bare, tmp_path / "log")


CHOSEN = f"""{SESSION}
import os
spark = session()
round_trip(spark)
spark.stop()
os.environ["PYSPARK_PYTHON"] = sys.argv[2]
import spark_log
try:
    spark_log.register(session())
except spark_log.errors.InvalidRequest as error:
    print("refused:", error)
"""


@pytest.fixture(scope="module")
def chosen(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a program that starts Spark with conf/spark-python as pip installs it, and then with a Python
    without pylog.  python3 of the path has no PySpark.
    """
    folder = tmp_path_factory.mktemp("chosen")
    (folder / "env" / "bin").mkdir(parents=True)
    python = folder / "env" / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    conf = folder / "env" / "share" / "pylog" / "conf"
    conf.mkdir(parents=True)
    script = shutil.copy2(Path(__file__).parents[2] / "conf" / "spark-python", conf)
    return run(CHOSEN, bare, folder / "log", bare / "python3", PYSPARK_PYTHON=str(script))


# Promise: spark.md#settings
@pytest.mark.slow
def test_the_script_for_spark_runs_the_python_of_its_environment(chosen: str) -> None:
    """Without an activated environment."""
    assert "found 1" in chosen


# Promise: spark.md#when-it-is-not-found
@pytest.mark.slow
def test_a_chosen_python_without_pylog_is_named(bare: Path, chosen: str) -> None:
    """`register` says which Python Spark's workers run, where pylog is, and what to set, before a job fails."""
    said = chosen.partition("refused: ")[2]
    assert f"Spark's Python workers run {str(bare / 'python3')!r}" in said
    assert f"spark_log is installed for {sys.executable}: set the environment variable PYSPARK_PYTHON" in said
