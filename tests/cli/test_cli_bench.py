"""`pylog bench`: that it does what it counts.  How fast it is says benchmarks/clients.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log.cli.commands.bench import figures, latencies_ms, percentile
from tests.cli.commands import Pylog

LATENCIES = [
    "latency_avg_ms",
    "latency_p50_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "latency_p99.9_ms",
    "latency_max_ms",
]


def test_what_was_sent_is_there(pylog: Pylog) -> None:
    """So many records of such a size, each acknowledged, in a topic that is created; rates and latencies go with it."""
    told = pylog.json("bench", "produce", "load", "-n", "2500", "--record-size", "60")
    assert (told["topic"], told["records"]) == ("load", 2500)
    assert told["records_per_second"] == pytest.approx(2500 / told["seconds"], rel=0.2)
    assert told["mb_per_second"] == pytest.approx(2500 * 60 / told["seconds"] / 1e6, rel=0.2)
    assert [name for name in told if name.startswith("latency")] == LATENCIES
    assert 0 < told["latency_p50_ms"] <= told["latency_p99_ms"] <= told["latency_max_ms"]
    lines = pylog.ok("consume", "load").splitlines()
    assert len(lines) == 2500 and {len(line) for line in lines} == {60} and len(set(lines)) > 1000


def test_values_may_come_from_a_file(pylog: Pylog, tmp_path: Path) -> None:
    """Its lines in turn."""
    file = tmp_path / "payloads"
    file.write_text("a\nbb\n")
    pylog.ok("bench", "produce", "load", "-n", "3", "--payload-file", str(file))
    assert pylog.ok("consume", "load").split() == ["a", "bb", "a"]
    file.write_text("")
    assert "is empty" in pylog.refused("bench", "produce", "load", "-n", "3", "--payload-file", str(file))
    assert "either" in pylog.wrong("bench", "produce", "load", "--payload-file", str(file), "--record-size", "5")


# Promise: cli.md#pylog-bench-produce
def test_a_throughput_is_kept(pylog: Pylog) -> None:
    """Not more than so many records a second."""
    told = pylog.json("bench", "produce", "load", "-n", "50", "--throughput", "100")
    assert told["seconds"] >= 0.48


# Promise: cli.md#pylog-bench-produce
def test_a_record_that_is_refused_ends_it(pylog: Pylog) -> None:
    """With the reason."""
    pylog.ok("topic", "create", "small", "-c", "max.message.bytes=1000")
    assert "max.message.bytes" in pylog.refused("bench", "produce", "small", "-n", "5", "--record-size", "2000")


# Promise: cli.md#pylog-bench-consume
@pytest.mark.parametrize("how", [[], ["--arrow"], ["--group", "readers"], ["--max-poll-records", "7"]])
def test_what_is_there_is_read(pylog: Pylog, how: list[str]) -> None:
    """As objects or as Arrow, alone or in a group; a group's positions do not move."""
    pylog.ok("bench", "produce", "load", "-n", "1200", "--record-size", "10")
    told = pylog.json("bench", "consume", "load", "-n", "1200", *how)
    assert told["records"] == 1200 and told["polls"] >= 1
    assert not [name for name in told if name.startswith("latency")]
    if "--group" in how:
        assert all(row["committed"] is None for row in pylog.json("group", "lag", "readers"))


def test_too_few_records_are_told_as_they_are(pylog: Pylog) -> None:
    """Of a topic that ends, and of one without any."""
    assert pylog.json("bench", "consume", "orders", "-n", "99", "--timeout", "200ms")["records"] == 10
    pylog.ok("topic", "create", "empty")
    assert "no record of empty" in pylog.refused("bench", "consume", "empty", "--timeout", "100ms")
    assert "no record of orders" in pylog.refused("bench", "consume", "orders", "--from-latest", "--timeout", "100ms")


def test_a_percentile_is_one_of_the_values() -> None:
    """The smallest that so many are at or below; averages and rates by hand."""
    values = [n / 1000 for n in range(1, 1001)]
    assert [percentile(values, percent) for percent in (50, 95, 99.9, 100)] == [0.5, 0.95, 0.999, 1.0]
    assert latencies_ms([0.003, 0.001, 0.002]) == dict(zip(LATENCIES, [2, 2, 3, 3, 3, 3], strict=True))
    assert set(latencies_ms([]).values()) == {None}
    assert figures(100, 5_000_000, 2.0) == {
        "records": 100,
        "seconds": 2.0,
        "records_per_second": 50,
        "mb_per_second": 2.5,
    }
    assert figures(100, 5000, 0.0)["records_per_second"] is None
