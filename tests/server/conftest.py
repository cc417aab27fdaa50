"""Coordinators that the tests of the port share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import spark_log
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.serve.serve import Running
from tests.server.asking import TOKENS, make_certificate
from tests.services import Services


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.close()


@pytest.fixture(scope="module")
def guarded(services: Services, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a coordinator with tokens."""
    return services.start(tmp_path_factory.mktemp("guarded") / "log", tokens=TOKENS).coordinator.address


@pytest.fixture(scope="module")
def small(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """A coordinator with narrow limits."""
    limits = ConnectionLimits(body_bytes=20_000, header_bytes=2000, connections=12, request_ms=1000)
    running = services.start(tmp_path_factory.mktemp("small") / "log", limits=limits)
    with spark_log.connect(f"pylog://{running.coordinator.address}") as log:
        log.admin.create_topics([spark_log.NewTopic("t")])
    return running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))
