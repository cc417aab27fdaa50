"""Each Spark and each Python that pylog supports, as pip installs them in an environment: `make test-matrix`.

`MATRIX` has other pairs, as SPARK@PYTHON: `MATRIX=all`, or `MATRIX="4.3@3.13 /path/pyspark-4.4.0.tar.gz@3.12"`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.test_install import copy_of_project, run

SPARKS = ("4.0", "4.1", "4.2", "4.3")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LIMIT_S = 1800
"""Time limit of each step: pip builds PySpark from its source (450 MB)."""
PROGRAM = Path(__file__).with_name("both_paths.py")


def pairs(given: str) -> list[tuple[str, str]]:
    """Pairs of a Spark and a Python: by default, each of them once."""
    if given == "all":
        return [(spark, python) for spark in SPARKS for python in PYTHONS]
    if not given:
        return list(zip(SPARKS, PYTHONS, strict=True))
    return [(spark, python) for spark, _, python in (pair.rpartition("@") for pair in given.split())]


def requirement(spark: str) -> str:
    """For pip: the newest release of a version, a release, or what a Spark's own build has made."""
    if "/" in spark:
        return spark
    return f"pyspark=={spark}.*" if re.fullmatch(r"\d+\.\d+", spark) else f"pyspark=={spark}"


def interpreter(version: str) -> Path:
    """A Python of this machine, by its name or of pyenv, whose names run only the versions that are chosen."""
    named = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in (*sorted(root.glob(f"versions/{version}.*/bin/python")), *([Path(named)] if named else [])):
        if subprocess.run([found, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0:
            return found
    pytest.skip(f"this machine has no Python {version} with venv")


# Promise: testing.md#versions
@pytest.mark.matrix
@pytest.mark.parametrize(("release", "python"), pairs(os.environ.get("MATRIX", "")))
def test_an_environment_reads_and_writes(tmp_path: Path, release: str, python: str) -> None:
    """Batches, streams, sinks, SQL and typed topics, in the JVM and with Python."""
    run(interpreter(python), "-m", "venv", tmp_path / "environment", cwd=tmp_path)
    own = tmp_path / "environment" / "bin" / "python"
    project = copy_of_project(tmp_path / "project")
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        run(*install, f"{project}[spark]", requirement(release), cwd=tmp_path, limit_s=LIMIT_S)
        arguments = (str(tmp_path / "log"), str(tmp_path / "work"), "reads", "writes")
        printed = run(own, PROGRAM, *arguments, cwd=tmp_path, limit_s=LIMIT_S)
        version = run(own, "-c", "import sys; print(sys.version)", cwd=tmp_path)
    finally:
        shutil.rmtree(tmp_path / "environment")  # 0.9 GB
    assert "same rows" in printed and version.startswith(f"{python}.")
    assert "/" in release or f"version {release}" in printed
