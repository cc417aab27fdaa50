"""Each test runs on a log that is embedded, and on one that a coordinator serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import Services


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


@pytest.fixture(params=["embedded", "service"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a log."""
    folder = tmp_path / "log"
    if request.param == "embedded":
        yield str(folder)
        return
    services: Services = request.getfixturevalue("services")
    yield services.url(folder)
    services.stop_all()
