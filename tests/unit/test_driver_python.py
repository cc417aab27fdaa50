"""Which Python a Spark that starts later looks for data sources with."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log.runtime.driver_python import name_driver_python


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder of an environment's commands."""
    return folder(tmp_path / "venv" / "bin", "python", "python3")


def folder(path: Path, *names: str) -> Path:
    """Commands that start one interpreter."""
    path.mkdir(parents=True)
    real = path.parent.parent / "python3.11"
    real.touch(mode=0o755)
    for name in names:
        (path / name).symlink_to(real)
    return path


# Promise: spark.md#how-spark-finds-it, spark.md#troubleshooting
def test_outside_of_an_activated_environment_it_is_this_one(here: Path, tmp_path: Path) -> None:
    """`python3` of the path starts the same interpreter in another environment, or there is none."""
    other = folder(tmp_path / "usr" / "bin", "python3")
    for path in (str(other), str(tmp_path / "none")):
        environ = {"PATH": path}
        name_driver_python(environ, str(here / "python"))
        assert environ["PYSPARK_DRIVER_PYTHON"] == str(here / "python")
        assert "PYSPARK_PYTHON" not in environ


# Promise: spark.md#troubleshooting
def test_in_an_activated_environment_nothing_is_set(here: Path) -> None:
    """Spark finds it on the path."""
    environ = {"PATH": str(here)}
    name_driver_python(environ, str(here / "python"))
    assert environ == {"PATH": str(here)}


# Promise: spark.md#when-it-is-not-found
@pytest.mark.parametrize("name", ["PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT"])
def test_a_choice_stays(here: Path, name: str) -> None:
    """Of the user, of the platform, or of spark-submit, whose JVM runs already."""
    environ = {"PATH": "", name: "x"}
    name_driver_python(environ, str(here / "python"))
    assert environ == {"PATH": "", name: "x"}


@pytest.mark.parametrize("program", ["", "/usr/sbin/uwsgi"])
def test_a_program_that_has_python_in_it_is_not_named(program: str) -> None:
    """Spark could not start it as a Python."""
    environ = {"PATH": ""}
    name_driver_python(environ, program)
    assert environ == {"PATH": ""}
