"""Shared by all tests: hypothesis profiles, options of Spark's JVM, and a real S3 server on loopback."""

from __future__ import annotations

import ast
import itertools
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import class_archive
from tests.profiles import load_profile

load_profile()
# Hundreds of processes import pylog.  Where an environment forbids Python to keep its bytecode, each would compile it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
class_archive.use()
# A shell script ignores Ctrl-C in its background jobs.  Their processes inherit that, also those that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


ONE_SPARK = "tests/spark"
"""The scope of all tests on the one Spark.  It begins first."""
ONE_BROWSER = "tests/console"
"""The scope of all tests in the one browser."""
LONG_FIRST = (
    "tests/spark/",
    "tests/test_",
    "tests/docs/test_examples",
    "tests/benchmarks",
    "tests/packaging",
    "tests/chaos",
    "tests/flows",
    "tests/crossings",
    "tests/console",
    "tests/sim",
)
"""Where files take longest, in the order in which they begin.  Short files at the end let all processes end at about
the same time.
"""


def _rank(scope: str) -> int:
    return next((rank for rank, start in enumerate(LONG_FIRST) if scope.startswith(start)), len(LONG_FIRST))


SHARED = {
    "tests/spark/": (ONE_SPARK, frozenset({"spark", "classic", "connect", "server"})),
    "tests/console/": (ONE_BROWSER, frozenset({"chrome", "window", "at_width"})),
}
"""By folder: the scope of the tests that use the one Spark or the one browser, and the fixtures that lead to it."""


@cache
def _using(file: Path, names: frozenset[str]) -> frozenset[str]:
    """Tests and fixtures of a file that use some fixtures."""
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    functions = {one.name: {each.arg for each in one.args.args} for one in found if isinstance(one, ast.FunctionDef)}
    while more := {name for name, arguments in functions.items() if arguments & names} - names:
        names |= more
    return names


def _scope(root: Path, nodeid: str) -> str:
    """Tests of one scope run in one process."""
    file, _, test = nodeid.partition("::")
    name = test.partition("[")[0].rpartition("::")[2]
    alone = (file, frozenset[str]())
    scope, fixtures = next((one for folder, one in SHARED.items() if file.startswith(folder)), alone)
    return scope if fixtures and name in _using(root / file, fixtures) else file


def pytest_runtest_setup() -> None:
    class_archive.use()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes, one runs the tests on the one Spark, and the others the rest, file by file."""
    from xdist.scheduler import LoadScopeScheduling

    class OneSpark(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(config.rootpath, nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            self.workqueue = OrderedDict(
                sorted(self.workqueue.items(), key=lambda unit: (unit[0] != ONE_SPARK, _rank(unit[0])))
            )
            super()._assign_work_unit(node)

    class_archive.start_making()
    return OneSpark(config, log)


class Bucket(NamedTuple):
    """A folder of a bucket, empty at first."""

    url: str
    options: dict[str, Any]
    """Storage options."""


@pytest.fixture(scope="session")
def s3() -> Iterator[Callable[[], Bucket]]:
    """Makes folders in a bucket on moto's S3 server.  Each bucket costs three seconds: the races of a first log."""
    import boto3

    from tests.s3_server import s3_server

    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    numbers = itertools.count()
    with s3_server() as url:
        boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="bucket")

        def make() -> Bucket:
            folder = f"s3://bucket/{next(numbers)}"
            return Bucket(folder, {"key": "key", "secret": "secret", "endpoint_url": url})

        yield make


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Python without any package, for the front of a path."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    return home / "bin"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts small file systems in memory."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted: list[Path] = []

    def make(options: str) -> Path:
        path = tmp_path / f"mount-{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "pylog", str(path)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"this machine does not let tests mount: {done.stderr.decode().strip()}")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
