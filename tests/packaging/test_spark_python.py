"""`conf/spark-python`: PySpark as it was installed, not from Spark's zip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark

SCRIPT = Path(__file__).parents[2] / "conf" / "spark-python"
SHOW = "import json, sys, pyspark; print(json.dumps([pyspark.__file__, sys.path, sys.executable]))"


def run(python_path: list[str], **variables: str) -> tuple[str, list[str], str]:
    """Where it takes PySpark from, its path, and which Python it is."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(python_path), "PYLOG_PYTHON": sys.executable}
    shown = subprocess.run([SCRIPT, "-c", SHOW], env={**given, **variables}, capture_output=True, text=True, check=True)
    found, path, python = json.loads(shown.stdout)
    return found, path, python


def zips(home: Path) -> list[str]:
    """What Spark puts first."""
    return sorted(map(str, (home / "python" / "lib").glob("*.zip")), reverse=True)


HOME = Path(pyspark.__file__).parent


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


def test_a_python_that_is_not_there_is_the_one_on_the_path(tmp_path: Path) -> None:
    """So a checkout works, which has no Python of its own."""
    (tmp_path / "python3").symlink_to(sys.executable)
    found = run([str(HOME.parent)], PYLOG_PYTHON="", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert found[2] == str(tmp_path / "python3")
