"""The same tests on a log that is embedded, on one that a coordinator serves, and with clients that hold topics."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client import logs
from tests.client.team import Team
from tests.services import Services

BOTH_WAYS = (
    "test_aio_cancellation",
    "test_client_positions",
    "test_clients_page",
    "test_compacted_topics",
    "test_consumer",
    "test_consumer_settings",
    "test_group_expiry",
    "test_group_generations",
    "test_lag",
    "test_positions_of_deleted_topics",
    "test_producer",
    "test_producer_processes",
    "test_scan",
    "test_threads_and_forks",
    "test_transaction",
)
EMBEDDED_ONLY = ("log_on(", "Flaky(", "quick_store(", "journal.propose(", '"""Embedded, ')
"""Markers of a test with its own store, or with decisions that are not commands and so cannot be sent."""

ONE_STATE = (
    "test_a_topic_made_anew_can_be_assigned_anew",
    "test_a_topic_made_anew_is_another_topic",
    "test_a_topic_made_anew_is_read_from_its_start",
    "test_a_topic_that_is_created_again_during_a_run_begins_anew",
    "test_appends_of_one_thread_keep_one_identity",
    "test_new_topics_and_partitions_join_in",
    "test_trimmed_records_are_passed_by_the_reset_policy",
)
"""Tests whose clients know immediately what the admin of the same log does, or the reverse.  With clients that hold
topics, the admin is like another process."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of these modules that does not bring its own store runs both ways; tests/contract compares the admin."""
    if "way" not in metafunc.fixturenames:
        return
    module = metafunc.module.__name__.rpartition(".")[2]
    own = any(text in inspect.getsource(metafunc.function) for text in EMBEDDED_ONLY)
    ways = ["embedded", "service", "topics"] if module in BOTH_WAYS and not own else ["embedded"]
    if metafunc.function.__name__ in ONE_STATE:
        ways.remove("topics")
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
    if found != "embedded":
        logs.services, logs.by_topic = request.getfixturevalue("services"), found == "topics"
    yield found
    logs.by_topic = False
    if logs.services is not None:
        logs.services.stop_all()
        logs.services = None


@pytest.fixture
def team(services: Services, tmp_path: Path) -> Iterator[Team]:
    found = Team(services.url(tmp_path / "log"))
    yield found
    found.close()
    services.stop_all()
