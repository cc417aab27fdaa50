"""One Spark for all of these tests, which finds the source as it does for users: by its package's name.

A test that takes `spark` runs twice: with the session of this process, and with a client of the Spark Connect server
in the same JVM; of a test with parameters, the client runs the first case.  A mark
`@pytest.mark.classic("Spark Connect has no …")` is for tests that Connect cannot run.  Tests of what tasks and sinks do
run once: the server does that for its clients as for itself.  They are marked with `@pytest.mark.tasks`, or in one of
the files of `TASKS`.

With `PYLOG_PUSH_DOWN=false` in the environment, all reads are planned as Spark plans other Python sources; with
`PYLOG_NATIVE_READ=false`, Python reads everything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (str(ROOT), str(ROOT / "datasource"))

# Spark's search and its workers start other interpreters, which take these from the environment.
sys.path[:0] = [path for path in SOURCES if path not in sys.path]
os.environ["PYTHONPATH"] = os.pathsep.join((*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])))
# Spark starts hundreds of Pythons here: with this script each takes half a second less.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(ROOT / "conf" / "spark-python")
os.environ["PYLOG_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ.pop("SPARK_HOME", None)

from pyspark.sql import SparkSession  # noqa: E402
from pyspark_pylog.plain_errors import HIDE  # noqa: E402

import spark_log  # noqa: E402
from tests.spark.builders import CONFS, CONNECT_MODE, connect_session  # noqa: E402

SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    # Any that is free: the default, 15002, may be taken by another run.
    "spark.connect.grpc.binding.port": "0",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}


TASKS = frozenset(
    f"test_spark_{name}.py"
    for name in (
        "bad_records",
        "checkpoint_damage",
        "conf_files",
        "erasure",
        "failures",
        "holes",
        "latest",
        "options_bounds",
        "options_limits",
        "options_topics",
        "progress_topic",
        "replicas",
        "replicated_writes",
        "s3_replicas",
        "served",
        "sql",
        "stream_limits",
        "tune",
    )
)
"""Files about what tasks and sinks do.  How clients get there is tested by the other files."""


def _of_client(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.callspec.params.get("spark") == "connect"
    )


def _without_repeats(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """All tests, but of those with a client of Spark Connect the ones that show something else than without."""
    seen: set[str] = set()
    for item in items:
        if _of_client(item):
            name = item.nodeid.partition("[")[0]
            if name in seen or item.path.name in TASKS or item.get_closest_marker("tasks"):
                continue
            seen.add(name)
        yield item


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = _without_repeats(items)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process."""
    builder = SparkSession.builder.master("local[2]").appName("tests")
    builder = builder.config("spark.pylog.pushDown", os.environ.get("PYLOG_PUSH_DOWN", "true"))
    builder = builder.config("spark.pylog.nativeRead", os.environ.get("PYLOG_NATIVE_READ", "true"))
    for name, value in {**CONFS, **SERVER}.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse"))).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    spark_log.register(session)  # its queries, and those of the server's clients, are planned by PylogSource.java
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server(classic: SparkSession) -> str:
    """The URL of the Spark Connect server that came up with that session."""
    service = getattr(classic._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


@pytest.fixture(scope="session")
def connect(server: str) -> Iterator[SparkSession]:
    """A client of that server."""
    session = connect_session(server)
    yield session
    session.stop()


@pytest.fixture(params=["classic", "connect"])
def spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Spark, either way."""
    mark = request.node.get_closest_marker("classic")
    if mark and request.param == "connect":
        pytest.skip(mark.args[0])
    session: SparkSession = request.getfixturevalue(request.param)
    if request.param == "connect":
        # By this, functions and columns know which of the two they are for.
        monkeypatch.setenv(CONNECT_MODE, "1")
    return session


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where a log may begin."""
    return str(tmp_path / "log")


@pytest.fixture
def log(url: str) -> spark_log.Log:
    """A log with nothing in it."""
    return spark_log.connect(url, durability="os")


@pytest.fixture(autouse=True)
def tracebacks() -> Iterator[None]:
    """The source hides the tracebacks of its errors by the environment of its worker, which is this process here."""
    yield
    os.environ.pop(HIDE, None)


@pytest.fixture(autouse=True)
def no_query_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process that a failed test left running would slow down all that follow."""
    session = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    yield
    for query in session.streams.active if session else ():
        query.stop()
