"""One Spark for all of these tests, which finds the source as it does for users: by its package's name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (str(ROOT), str(ROOT / "datasource"))

# Spark's search and its workers start interpreters of their own, which take these from the environment.
sys.path[:0] = [path for path in SOURCES if path not in sys.path]
os.environ["PYTHONPATH"] = os.pathsep.join((*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])))
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ.pop("SPARK_HOME", None)

from pyspark.sql import SparkSession  # noqa: E402
from pyspark_pylog.errors import HIDE  # noqa: E402

import spark_log  # noqa: E402
from tests.spark.builders import CONFS  # noqa: E402


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in CONFS.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse"))).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where a log may begin."""
    return str(tmp_path / "log")


@pytest.fixture
def log(url: str) -> spark_log.Log:
    """A log with nothing in it."""
    return spark_log.connect(url, durability="os")


@pytest.fixture(autouse=True)
def _tracebacks() -> Iterator[None]:
    """The source hides tracebacks of its own errors by the environment of its worker, which is this process here."""
    yield
    os.environ.pop(HIDE, None)


@pytest.fixture(autouse=True)
def _no_query_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test that failed left running would slow down all that follow."""
    yield
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        for query in session.streams.active:
            query.stop()
