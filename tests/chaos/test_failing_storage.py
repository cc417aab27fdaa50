"""A coordinator, in a separate process, whose storage hangs, fails, is full or slow; its standby's storage works."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import StorageError
from tests.chaos.test_hung_coordinator import BOUND_S, eventually, values
from tests.cli.commands import Pylog
from tests.processes import ControlledProcess, Process, free_port


@pytest.fixture
def first(tmp_path: Path) -> Iterator[ControlledProcess]:
    """A coordinator that leads."""
    process = ControlledProcess(tmp_path / "log", free_port(), tmp_path / "control")
    eventually(lambda: process.leads)
    yield process
    process.kill()


# Promise: monitoring.md#probes, service.md#leadership
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("hang", "does not answer, or is too slow"), ("fail", "the storage fails"), ("full", "no space left")],
)
def test_a_coordinator_whose_storage_takes_no_writes_steps_down(
    first: ControlledProcess, tmp_path: Path, trouble: str, reason: str
) -> None:
    """It answers with the reason; the standby leads immediately, and clients continue.  When its storage works, it is a
    standby.
    """
    standby = Process(tmp_path / "log", free_port(), "--takeover-after", "1h")
    try:
        with spark_log.connect(f"pylog://{first.address},{standby.address}") as log:
            log.append("t", [{"value": b"1"}])
            assert first.health()[0] == 200 and first.health()[1].storage_age_ms < 4000
            with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
                assert sum(map(len, consumer.poll(20_000).values())) == 1
                first.storage(trouble)
                append_in_the_end(log, b"2")
                assert standby.leads and not first.leads
                assert sum(map(len, consumer.poll(60_000).values())) == 1
            status, health = first.health()
            assert status == 503 and not health.healthy and health.storage_age_ms >= 4000
            assert "no write to file:" in health.reason and reason in health.reason
            assert first.health("/alive")[0] == 200
            with urllib.request.urlopen(f"http://{first.address}/metrics", timeout=20) as answer:
                found = re.search(r"^pylog_storage_write_age_seconds (.*)$", answer.read().decode(), re.MULTILINE)
            assert found is not None and float(found[1]) >= 4
            told = Pylog(f"pylog://{first.address}").run("cluster", "health")
            assert told.exit_code == 1 and reason in told.stdout
            first.storage("")
            eventually(lambda: first.health()[0] == 200)
            log.append("t", [{"value": b"3"}])
            assert standby.leads and not first.leads
            assert values(log) == [b"1", b"2", b"3"]
    finally:
        standby.kill()


def append_in_the_end(log: spark_log.Log, value: bytes) -> None:
    """A change that the storage refuses is certainly not applied and fails immediately; others wait for the standby."""
    deadline = time.monotonic() + BOUND_S
    while True:
        try:
            log.append("t", [{"value": value}])
            return
        except StorageError as error:
            if error.maybe_applied or "no space left" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


# Promise: monitoring.md#probes
@pytest.mark.parametrize("trouble", ["hang", "full"])
def test_without_a_standby_it_leads_again_when_its_storage_works(first: ControlledProcess, trouble: str) -> None:
    """Under its epoch; a change that waited meanwhile is in, once."""
    with spark_log.connect(f"pylog://{first.address}") as log:
        log.append("t", [{"value": b"1"}])
        epoch = first.health()[1].epoch
        first.storage(trouble)
        eventually(lambda: first.health()[0] == 503)
        assert not first.leads
        first.storage("")
        append_in_the_end(log, b"2")
        status, health = first.health()
        assert (status, health.leading, health.epoch) == (200, True, epoch)
        assert values(log) == [b"1", b"2"]


# Promise: monitoring.md#probes
def test_a_slow_storage_is_healthy(first: ControlledProcess) -> None:
    """Two seconds a write are within the timeout: clients wait, and nobody steps down."""
    with spark_log.connect(f"pylog://{first.address}") as log:
        log.append("t", [{"value": b"1"}])
        epoch = first.health()[1].epoch
        first.storage("slow 2")
        for number in range(2, 5):
            log.append("t", [{"value": b"%d" % number}])
            status, health = first.health()
            assert (status, health.leading, health.epoch) == (200, True, epoch)
        assert values(log) == [b"1", b"2", b"3", b"4"]


# Promise: monitoring.md#probes
def test_a_coordinator_whose_storage_hangs_ends_when_it_is_told_to(first: ControlledProcess) -> None:
    """SIGTERM waits for the storage no longer than its timeout; the exit status says that the log was not released."""
    first.storage("hang")
    eventually(lambda: first.health()[0] == 503)
    assert first.terminate() == 1
