"""Each Spark that pylog supports runs one short program, which reads in the JVM and with Python: `make test-sparks`.

A version of PySpark is installed in a folder, which is kept for the user; all else is of this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.builders import finished_job

ROOT = Path(__file__).parents[2]
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
PROGRAM = Path(__file__).with_name("both_paths.py")
BROKEN = {
    "writer": ("PylogWriter.java", "PythonBatchWriterFactory", "writes with Python here", "cannot compile its writer"),
    "reader": ("PylogReader.java", "ConstantColumnVector", "reads with Python here", "cannot compile its reader"),
    "planner": ("PylogSource.java", "PythonDataSourceV2", "reads whole records here", "cannot compile its planner"),
}
"""By what does not compile: its file, a class of Spark that it needs, and what the log says."""


@pytest.fixture(scope="session")
def pyspark_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pylog-tests" / "pysparks"


def installed(folder: Path, version: str) -> Path:
    """A folder with the newest PySpark of a version, for the front of the path."""
    home = folder / version
    if not (home / "ready").exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        # PySpark needs Py4J alone, which is of this environment.
        subprocess.run([*install, "--no-deps", "--target", home, f"pyspark=={version}.*"], check=True)
        (home / "ready").touch()
    return home


def run(pyspark: Path, sources: Path, folder: Path, *arguments: str) -> tuple[str, str]:
    """The output of the program, and its log."""
    path = os.pathsep.join(map(str, (pyspark, ROOT, sources)))
    done = finished_job(PROGRAM, str(folder / "log"), str(folder), *arguments, env={"PYTHONPATH": path})
    return done.stdout, done.stderr


@pytest.mark.sparks
@pytest.mark.parametrize("version", VERSIONS)
def test_a_spark_reads_both_ways(pyspark_folder: Path, tmp_path: Path, version: str) -> None:
    """Bytes and typed topics, in batch and in a stream that changes its path; the same rows, none left to Python."""
    printed, logged = run(installed(pyspark_folder, version), ROOT / "datasource", tmp_path, "reads", "writes")
    assert f"version {version}." in printed
    assert "cannot compile" not in logged


@pytest.mark.sparks
@pytest.mark.parametrize("part", BROKEN)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_spark_that_cannot_compile_says_so_once_and_works(
    pyspark_folder: Path, tmp_path: Path, version: str, part: str
) -> None:
    """A source that needs a class that this Spark does not have."""
    name, known, effect, why = BROKEN[part]
    shutil.copytree(ROOT / "datasource", tmp_path / "datasource", ignore=shutil.ignore_patterns("__pycache__"))
    java = tmp_path / "datasource" / "pyspark_pylog" / "native" / name
    java.write_text(java.read_text().replace(known, "RenamedInALaterSpark"))
    able = ["reads"] if part == "writer" else []
    printed, logged = run(installed(pyspark_folder, version), tmp_path / "datasource", tmp_path, *able)
    assert f"version {version}." in printed
    said = [line for line in logged.splitlines() if "cannot compile" in line]
    assert len(said) == 1
    assert effect in said[0] and why in said[0] and "RenamedInALaterSpark" in said[0]
