"""A log with some records, and the command for it: on the storage itself and through a coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Pylog
from tests.services import Services

BOTH_WAYS = (
    "test_cli_flow",
    "test_cli_groups",
    "test_cli_inspect",
    "test_cli_records",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of these modules run both ways; tests/contract compares both ways of other commands."""
    if "way" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        metafunc.parametrize("way", ["embedded", "service"] if module in BOTH_WAYS else ["embedded"])


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


@pytest.fixture
def url(way: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a log in a folder, or of its coordinator."""
    if way == "embedded":
        yield str(tmp_path / "log")
        return
    services: Services = request.getfixturevalue("services")
    yield services.url(tmp_path / "log")
    services.stop_all()


@pytest.fixture
def pylog(url: str) -> Pylog:
    """Topic "orders": three partitions, ten records in partition 1, keys k0 to k9, values v0 to v9, header h=x."""
    pylog = Pylog(url)
    pylog.ok("topic", "create", "orders", "-p", "3", "-c", "retention.ms=3600000")
    lines = "".join(f"k{n}:v{n}\n" for n in range(10))
    pylog.ok("produce", "orders", "--key-delimiter", ":", "-p", "1", "-H", "h=x", stdin=lines)
    return pylog
