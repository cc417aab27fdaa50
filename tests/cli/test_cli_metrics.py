"""Metrics of a log without a coordinator: `pylog maintain --every --metrics` and `pylog console`."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import spark_log
from spark_log.console.local_port import serving_metrics
from spark_log.errors import StorageUnavailable
from spark_log.model import TopicPartition
from tests.cli.commands import ROOT, Pylog

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
LAG = "pylog_group_lag", frozenset({("group", "billing"), ("topic", "orders")})


@contextmanager
def running(*args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that keeps running, and the first line that it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "spark_log.cli", *args],
        cwd=ROOT,
        env=os.environ | {"PYLOG_PROFILE": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def scraped(url: str, token: str = "") -> Samples:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    """A log whose group `billing` has read two of five records."""
    with spark_log.connect(str(tmp_path / "log"), durability="os") as opened:
        opened.append("orders", [{"value": b"x"}] * 5)
        opened.admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 2})
        yield opened


# Promise: monitoring.md#without-a-coordinator
def test_maintenance_that_repeats_serves_metrics(log: spark_log.Log) -> None:
    """Each scrape has the lag of that moment, not that of the last round, and the maintenance of the process."""
    with running("maintain", "-u", log.url, "--every", "1h", "--metrics", "0") as (process, line):
        assert line.startswith("metrics: http://127.0.0.1:")
        address = line.removeprefix("metrics: ")
        assert ("pylog_maintenance_timestamp_seconds", frozenset()) in scraped(address), "before the first round, too"
        assert process.stdout is not None
        process.stdout.readline()  # the first round has ended
        found = scraped(address)
        assert found[LAG] == 3 and found["pylog_maintenance_timestamp_seconds", frozenset()] > 0
        log.append("orders", [{"value": b"y"}] * 4)
        assert scraped(address)[LAG] == 7
        assert ("pylog_leading", frozenset()) not in found and (
            "pylog_group_rebalances_total",
            frozenset(),
        ) not in found


# Promise: monitoring.md#without-a-coordinator
def test_the_console_serves_metrics_with_a_token_of_a_file(log: spark_log.Log, tmp_path: Path) -> None:
    """Prometheus reads the same file."""
    file = tmp_path / "token"
    file.write_text("a-token-for-prometheus\n", encoding="utf-8")
    with running("console", "-u", log.url, "--listen", "0", "--token-file", str(file)) as (_, line):
        address, _, token = line.partition("/console/#token=")
        assert token == "a-token-for-prometheus"
        assert scraped(f"{address}/metrics", token)[LAG] == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"too-short",
        b"a-token-for-prometheus read",
        b"a-token-for-prometheus\n# a note\n",
        b"with+other/signs======",
        b"\xff" * 20,
    ],
)
def test_a_file_without_one_token_is_refused(log: spark_log.Log, tmp_path: Path, content: bytes) -> None:
    """A second word would limit the console to topics that begin with it."""
    file = tmp_path / "token"
    file.write_bytes(content)
    found = Pylog(log.url).refused("console", "--listen", "0", "--token-file", str(file))
    assert f"--token-file {file}: expected one token and nothing else" in found
    assert "a-token" not in found


# Promise: monitoring.md#without-a-coordinator
def test_metrics_are_for_this_machine_and_for_a_process_that_stays(log: spark_log.Log) -> None:
    """Both are said before any work."""
    pylog = Pylog(log.url)
    assert "other machines could reach it" in pylog.refused("maintain", "--every", "1h", "--metrics", "0.0.0.0:0")
    assert "add --every" in pylog.wrong("maintain", "--metrics", "0")


# Promise: monitoring.md#without-a-coordinator
def test_a_scrape_that_fails_says_why() -> None:
    """A storage that is unavailable ends neither the port nor the maintenance."""

    def text() -> str:
        if failures:
            raise failures.pop()
        return "fine 1\n"

    failures = [StorageUnavailable("the disk is away")]
    with serving_metrics(text, "0", "--metrics") as address:
        with pytest.raises(urllib.error.HTTPError) as caught:
            scraped(f"http://{address}/metrics")
        with caught.value as error:
            assert error.code == 503 and b"the disk is away" in error.read()
        assert scraped(f"http://{address}/metrics") == {("fine", frozenset()): 1}
