"""The same tests on a log that is embedded and on one that a coordinator serves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client import logs
from tests.client.team import Team
from tests.services import Services

BOTH_WAYS = (
    "test_admin",
    "test_client_positions",
    "test_clients_page",
    "test_consumer",
    "test_consumer_settings",
    "test_group_expiry",
    "test_group_generations",
    "test_lag",
    "test_producer",
    "test_scan",
    "test_threads_and_forks",
    "test_transaction",
)
EMBEDDED_ONLY = ("log_on(", "Flaky(", "quick_store(", "journal.propose(", '"""Embedded, ')
"""Markers of a test with its own store, or with decisions that are not commands and so cannot be sent."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of these modules that does not bring its own store runs both ways."""
    if "way" not in metafunc.fixturenames:
        return
    module = metafunc.module.__name__.rpartition(".")[2]
    own = any(text in inspect.getsource(metafunc.function) for text in EMBEDDED_ONLY)
    ways = ["embedded", "service"] if module in BOTH_WAYS and not own else ["embedded"]
    metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How `logs.new_log` opens logs."""
    found = str(request.param)
    if found == "service":
        logs.services = request.getfixturevalue("services")
    yield found
    if logs.services is not None:
        logs.services.stop_all()
        logs.services = None


@pytest.fixture
def team(services: Services, tmp_path: Path) -> Iterator[Team]:
    found = Team(services.url(tmp_path / "log"))
    yield found
    found.close()
    services.stop_all()
