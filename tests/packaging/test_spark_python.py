"""`conf/spark-python`: PySpark as it was installed, not from Spark's zip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

SCRIPT = Path(__file__).parents[2] / "conf" / "spark-python"
SHOW = "import json, sys, pyspark; print(json.dumps([pyspark.__file__, sys.path, sys.executable]))"


def run(python_path: list[str], **variables: str) -> tuple[str, list[str], str]:
    """Where it takes PySpark from, its path, and which Python it is."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(python_path), "PYLOG_PYTHON": sys.executable}
    shown = subprocess.run([SCRIPT, "-c", SHOW], env={**given, **variables}, capture_output=True, text=True, check=True)
    found, path, python = json.loads(shown.stdout)
    return found, path, python


def zips(home: Path) -> list[str]:
    """The zips that Spark puts first."""
    return sorted(map(str, (home / "python" / "lib").glob("*.zip")), reverse=True)


HOME = Path(pyspark.__file__).parent


# Promise: spark.md#settings
def test_an_installed_pyspark_goes_before_the_zip(tmp_path: Path) -> None:
    """Its zips are left out, what else Spark asks for stays, in its order."""
    others = [str(tmp_path / "a"), str(tmp_path / "b.zip")]
    assert len(zips(HOME)) == 2

    found, path, python = run([*zips(HOME), *others], SPARK_HOME=str(HOME))

    assert (found, python) == (str(HOME / "__init__.py"), sys.executable)
    assert [entry for entry in path if entry in others] == others
    assert not set(zips(HOME)) & set(path)


def test_the_zip_of_another_distribution_stays(tmp_path: Path) -> None:
    """Where Spark was unpacked, there is no package to take instead."""
    (tmp_path / "python").symlink_to(HOME / "python")
    assert run(zips(tmp_path), SPARK_HOME=str(tmp_path))[0].startswith(str(tmp_path / "python" / "lib" / "pyspark.zip"))


def test_nothing_is_changed_without_a_spark() -> None:
    """It is the Python that it runs."""
    assert run([str(HOME.parent)])[0] == str(HOME / "__init__.py")


def installed(folder: Path) -> Path:
    """A copy of the script in a separate folder."""
    folder.mkdir(parents=True)
    return Path(shutil.copy2(SCRIPT, folder))


def python_in(folder: Path, python: str | Path = sys.executable) -> Path:
    """A `python3` there, which is another one."""
    folder.mkdir(parents=True)
    path = folder / "python3"
    path.write_text(f'#!/bin/sh\nexport FOUND="{path}"\nexec "{python}" "$@"\n')
    path.chmod(0o755)
    return path


def chosen(script: Path, path: Path, **variables: str) -> str:
    """Which of the Pythons made by `python_in` runs, with nothing activated."""
    code = "import os; print(os.environ['FOUND'])"
    env = {"PATH": f"{path}:/usr/bin:/bin", **variables}
    return subprocess.run([script, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.strip()


# Promise: spark.md#settings
def test_it_runs_the_python_of_its_environment(tmp_path: Path) -> None:
    """Activated or not, installed or in a checkout; PYLOG_PYTHON wins, and python3 of the path comes last."""
    of_path = python_in(tmp_path / "bin")
    in_environment = installed(tmp_path / "env" / "share" / "pylog" / "conf")
    in_checkout = installed(tmp_path / "checkout" / "conf")
    assert chosen(in_environment, of_path.parent) == chosen(in_checkout, of_path.parent) == str(of_path)
    python = python_in(tmp_path / "env" / "bin")
    assert chosen(in_environment, of_path.parent) == str(python)
    assert chosen(in_environment, of_path.parent, PYLOG_PYTHON=str(of_path)) == str(of_path)
    assert chosen(in_environment, of_path.parent, PYLOG_PYTHON="") == str(python)
    python = python_in(tmp_path / "checkout" / ".venv" / "bin")
    assert chosen(in_checkout, of_path.parent) == str(python)


# Promise: spark.md#settings
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "spark-python: python3 of the path has no PySpark and pylog: set PYLOG_PYTHON"),
        ({"PYLOG_PYTHON": "/nowhere/python"}, "spark-python: PYLOG_PYTHON=/nowhere/python is not a program"),
    ],
)
def test_a_python_that_cannot_run_spark_is_named(tmp_path: Path, variables: dict[str, str], expected: str) -> None:
    """Instead of pages of DATA_SOURCE_NOT_FOUND, or a PySpark that is missing."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    script = installed(tmp_path / "conf")
    env = {"PATH": f"{bare / 'bin'}:/usr/bin:/bin", **variables}
    done = subprocess.run([script, "-c", "print('ran')"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (127, "")
    assert expected in done.stderr
