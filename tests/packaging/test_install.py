"""An installed pylog is whole, and Spark finds it, from a wheel and from an editable install alike."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.absolute_links import absolute_links

ROOT = Path(__file__).parents[2]
SHIPPED = ("spark_log", "datasource", "jobs", "conf", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
# Dependencies and setuptools are those of the environment that runs the tests: nothing is fetched.
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index")

SEEN_BY_SPARK = """
import pkgutil, importlib
names = [module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")]
print(",".join(names), importlib.import_module("pyspark_pylog").__file__)
"""

ROUND_TRIP = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.createDataFrame([(b"v",)], "value binary").write.format("pylog").mode("append").option("topic", "t").save(sys.argv[1])
print("found", spark.read.format("pylog").option("subscribe", "t").load(sys.argv[1]).count())
"""

# As `python -m` runs each, one after the other: PySpark is imported once.
HELP_OF_JOBS = """
import runpy, sys
jobs, sys.argv[1:] = sys.argv[1:], ["--help"]
for job in jobs:
    print()
    print(job, end=" ")
    try:
        runpy.run_module(f"spark_log.jobs.{job}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, job
"""

BUILD_SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"


class Installed(NamedTuple):
    """An environment with pylog in it."""

    bin: Path
    origin: Path
    """Where its modules lie."""


def run(*command: str | Path, cwd: Path, limit_s: float = 600) -> str:
    """Standard output of a command that must succeed, without the Python path and Spark of the tests' user."""
    hidden = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env["PATH"] = f"{Path(command[0]).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_of_project(target: Path) -> Path:
    """A tree without what earlier builds left behind."""
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            target.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def environment(path: Path) -> Path:
    """The Python of a fresh environment that sees this one's packages, but not its path files."""
    run(sys.executable, "-m", "venv", "--without-pip", path, cwd=path.parent)
    site = path / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return path / "bin" / "python"


def install(python: Path, what: Sequence[str | Path], cwd: Path) -> None:
    # --ignore-installed: the path file shows pip an installed pylog that it must not touch
    # --no-compile: Python compiles the modules that it imports, which are few
    run(*PIP, "--python", python, "install", "--ignore-installed", "--no-compile", *OFFLINE, *what, cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install .` makes."""
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", *OFFLINE, "--wheel-dir", folder, copy_of_project(folder / "project"), cwd=folder)
    return next(folder.glob("spark_log-*.whl"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of sources that a release publishes."""
    folder = tmp_path_factory.mktemp("sdist")
    project = copy_of_project(folder / "project")
    run(sys.executable, "-c", BUILD_SDIST, folder, cwd=project)
    return next(folder.glob("spark_log-*.tar.gz"))


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """pylog in a fresh environment, each way."""
    folder = tmp_path_factory.mktemp(request.param)
    python = environment(folder / "venv")
    if request.param == "wheel":
        install(python, [request.getfixturevalue("wheel")], folder)
        return Installed(python.parent, folder / "venv")
    project = copy_of_project(folder / "project")
    install(python, ["--editable", project], folder)
    return Installed(python.parent, project)


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    """The wheel has all files of the tree, with the data source under the name that Spark searches for."""
    expected = {str(file.relative_to(ROOT)) for file in (ROOT / "spark_log").rglob("*.py")} | {"spark_log/py.typed"}
    expected |= {str(file.relative_to(ROOT / "datasource")) for file in (ROOT / "datasource").rglob("*.py")}
    expected |= {f"spark_log/{file.relative_to(ROOT)}" for file in (ROOT / "jobs").glob("*.py")}
    names = zipfile.ZipFile(wheel).namelist()
    pages = {str(file.relative_to(ROOT)) for file in (ROOT / "spark_log/console/static").iterdir()}
    found = {name for name in names if name.endswith((".py", ".typed", ".html", ".css", ".js", ".svg"))}
    assert {name for name in found if ".data/" not in name} == expected | pages
    assert "spark_log/console/static/index.html" in pages


# Promise: ../README.md#install
def test_the_sdist_gives_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """Byte for byte in each file, so Spark needs to try one of the two only."""
    run(*PIP, "wheel", *OFFLINE, "--wheel-dir", tmp_path, sdist, cwd=tmp_path)
    (again,) = tmp_path.glob("*.whl")
    assert contents(again) == contents(wheel)


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_brings_the_configuration(wheel: Path) -> None:
    """It is installed under share/pylog."""
    names = zipfile.ZipFile(wheel).namelist()
    found = {name.rpartition("/")[2] for name in names if ".data/data/share/pylog/conf/" in name}
    assert found == {file.name for file in (ROOT / "conf").iterdir() if file.is_file()}
    assert found


# Promise: ../README.md#install
def test_a_git_repository_can_be_installed(tmp_path: Path) -> None:
    """pip builds all of it from a clone."""
    project = copy_of_project(tmp_path / "project")
    git = ("git", "-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main")
    for arguments in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "all")):
        run(shutil.which("git") or "git", *git[1:], *arguments, cwd=project)
    python = environment(tmp_path / "venv")
    install(python, [f"git+file://{project}"], tmp_path)  # a name before it would need a host in the URL
    assert "Usage: pylog" in run(python.parent / "pylog", "--help", cwd=tmp_path)


# Promise: ../README.md#install
def test_a_wheel_can_be_installed_with_extras(wheel: Path, tmp_path: Path) -> None:
    """By its path."""
    python = environment(tmp_path / "venv")
    install(python, [f"{wheel}[s3,server]"], tmp_path)
    assert "Usage: pylog" in run(python.parent / "pylog", "--help", cwd=tmp_path)


def test_links_of_the_readme_are_absolute_on_an_index() -> None:
    """With a URL for pages, and one for pictures; links to the README's own sections and to other sites stay."""
    found = absolute_links((ROOT / "README.md").read_text(), "https://host/pylog", "v1")
    targets = re.findall(r"\]\(([^)\s]+)\)", found)
    assert len(targets) > 30
    assert all(re.match("https?://|#", target) for target in targets)
    assert "](https://host/pylog/blob/v1/docs/spark.md#how-spark-finds-it)" in found
    assert "](https://host/pylog/raw/v1/docs/pictures/overview.svg)" in found
    assert "](#install)" in found


# Promise: operations.md#jobs
def test_every_job_runs_as_a_module(installed: Installed, tmp_path: Path) -> None:
    """`python -m spark_log.jobs.NAME`, with its own help, outside of a checkout."""
    jobs = sorted(file.stem for file in (ROOT / "jobs").glob("*.py"))
    said = run(installed.bin / "python", "-c", HELP_OF_JOBS, *jobs, cwd=tmp_path)
    for job in jobs:
        assert f"\n{job} usage:" in said


# Promise: operations.md#jobs
@pytest.mark.spark
@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_an_installed_job_exports_a_topic(installed: Installed, tmp_path: Path) -> None:
    """With Spark, and tasks in processes of the environment's Python."""
    url = str(tmp_path / "log")
    write = "import spark_log, sys; spark_log.connect(sys.argv[1]).append('orders', [{'value': 'v'}])"
    run(installed.bin / "python", "-c", write, url, cwd=tmp_path)
    arguments = ("--url", url, "--topic", "orders", "--to", str(tmp_path / "table"))
    said = run(installed.bin / "python", "-m", "spark_log.jobs.export", *arguments, cwd=tmp_path)
    assert json.loads(said.splitlines()[-1])["records"] == 1
    assert list((tmp_path / "table").rglob("*.parquet"))


def test_the_wheel_has_its_license(wheel: Path) -> None:
    """Apache-2.0, text and name."""
    archive = zipfile.ZipFile(wheel)
    metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    assert b"Apache-2.0" in archive.read(metadata)
    assert any(name.endswith("/LICENSE") for name in archive.namelist())


def test_sparks_discovery_sees_the_package(installed: Installed, tmp_path: Path) -> None:
    """Spark walks pkgutil.iter_modules(), which sees path entries only: no import hooks."""
    names, file = run(installed.bin / "python", "-c", SEEN_BY_SPARK, cwd=tmp_path).split()
    assert names == "pyspark_pylog"
    assert installed.origin in Path(file).parents


def test_the_command_is_there(installed: Installed, tmp_path: Path) -> None:
    """`pylog --help` runs."""
    assert "Usage: pylog" in run(installed.bin / "pylog", "--help", cwd=tmp_path)


# Promise: ../README.md#install
@pytest.mark.spark
@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_spark_reads_and_writes_without_registration(installed: Installed, tmp_path: Path) -> None:
    """In an activated environment `format("pylog")` works with no call of ours.  The environment of the tests, in which
    the README's Python runs, has an editable install.
    """
    assert "found 1" in run(installed.bin / "python", "-c", ROUND_TRIP, tmp_path / "log", cwd=tmp_path)
