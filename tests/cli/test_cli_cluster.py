"""`pylog cluster health`."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log.journal.journal import Journal
from spark_log.net.address import this_host
from spark_log.store.local import LocalStore
from tests.cli.commands import Pylog
from tests.services import Services


def test_a_log_that_is_embedded_is_healthy(pylog: Pylog) -> None:
    """It says so, with what it looked at."""
    found = pylog.json("cluster", "health")
    assert found["healthy"] and [one["check"] for one in found["checks"]] == ["log", "coordinator", "checkpoint"]
    assert "embedded writers have the log" in pylog.ok("cluster", "health")


@pytest.mark.parametrize("asked", ["coordinators", "storage"])
def test_coordinators_are_asked_how_they_are(services: Services, tmp_path: Path, asked: str) -> None:
    """All that the URL names, one of which may stand by; or the one that has the log."""
    first = services.start(tmp_path / "log")
    Pylog(f"pylog://{first.coordinator.address}").ok("topic", "create", "t")  # from then on it leads
    second = services.start(tmp_path / "log" / ".." / "log")
    addresses = [running.coordinator.address for running in (first, second)]
    url = f"pylog://{','.join(addresses)}" if asked == "coordinators" else str(tmp_path / "log")
    checks = {one["check"]: one["says"] for one in Pylog(url).json("cluster", "health")["checks"]}
    assert checks[f"coordinator {addresses[0]}"].startswith("leads, epoch 1")
    if asked == "coordinators":
        assert checks[f"coordinator {addresses[1]}"].startswith("stands by")
        services.stop(second)
        assert f"not healthy: coordinator {addresses[1]}" in Pylog(url).run("cluster", "health").stderr
    services.stop_all()


def test_a_coordinator_that_is_gone_is_told_with_status_1(pylog: Pylog) -> None:
    """It did not release the log, so nobody writes it."""
    Journal.open(LocalStore(pylog.url, "os"), create=True).take_over(0, "127.0.0.1:1", this_host())
    result = pylog.run("cluster", "health")
    assert result.exit_code == 1 and "not healthy: coordinator 127.0.0.1:1" in result.stderr
    assert "does not answer" in result.stdout


def test_no_log_is_not_healthy(tmp_path: Path) -> None:
    """And what it is instead is said."""
    result = Pylog(tmp_path / "none").run("cluster", "health")
    assert result.exit_code == 1 and "there is no log" in result.stdout
