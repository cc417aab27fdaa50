"""The pure parts of the comparison with Kafka; the comparison itself runs with `make test-kafka`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.beside_kafka.figures import (
    Fact,
    Latency,
    Part,
    Round,
    as_json,
    cpu_per_million,
    percentile,
    rate,
    table,
    times_as_fast,
)
from benchmarks.beside_kafka.machine import bytes_on_disk, cpu_seconds, measured, peak_memory, tree


def part(**rounds: list[tuple[float, float]]) -> Part:
    """Of a million rows; by side (seconds, CPU seconds) of each round."""
    of_sides = {side: [Round(*one) for one in found] for side, found in rounds.items()}
    return Part("write", "batch write", "stock", 1_000_000, of_sides, {}, target=3, of_null_target=0.5)


def test_ratios_are_of_pairs() -> None:
    """A machine that was slow for the whole of one pair does not change them; medians of each side alone would."""
    found = part(pylog=[(1, 1), (10, 1), (1, 1)], kafka=[(3, 1), (30, 1), (12, 1)])
    assert times_as_fast(found, "pylog", "kafka") == 3
    assert times_as_fast(found, "kafka", "pylog") == pytest.approx(1 / 3)


def test_rates_and_cpu_are_medians() -> None:
    """Rows a second, and CPU seconds a million rows."""
    found = part(pylog=[(2, 5), (4, 1), (100, 2)])
    assert rate(found, "pylog") == 250_000
    assert cpu_per_million(found, "pylog") == 2


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 5), (99, 10), (100, 10)])
def test_a_percentile_is_one_of_the_values(percent: float, expected: float) -> None:
    """The smallest that so many are at or below."""
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected


# Promise: measurements-kafka.md#compared-with-sparks-kafka-connector
def test_the_table_has_a_line_for_each_thing_measured() -> None:
    """Columns are aligned.  More is better in rates, less in all else; the ratio says how many times as good."""
    parts = [part(pylog=[(1, 1)], kafka=[(4, 3)], null=[(0.5, 1)])]
    lines = table(
        parts,
        [Latency("stock", {"pylog": [10, 20], "kafka": [30, 80]})],
        [Fact("bytes", "stock", {"pylog": 2, "kafka": 3})],
    ).splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = {row[0]: row[2:7] for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)}
    assert cells["batch write, rows/s"] == ["1,000,000", "250,000", "4.00", "≥ 3", "0.50 (≥ 0.5)"]
    assert cells["batch write, CPU s a million rows"] == ["1", "3", "3.00", "≥ 2", ""]
    assert cells["record in → query → record out, p50, ms"] == ["10", "30", "3.00", "≥ 2", ""]
    assert cells["record in → query → record out, p99, ms"] == ["20", "80", "4.00", "≥ 2", ""]
    assert cells["bytes"] == ["2", "3", "1.50", "", ""]


def test_a_side_that_was_not_measured_leaves_its_cells_empty() -> None:
    """As the null source does where Kafka alone is of interest."""
    lines = table([part(kafka=[(4, 3)])], [], []).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[3:8]] == ["", "250,000", "", "≥ 3", ""]


def test_the_file_has_every_round() -> None:
    """So that another statistic can be had without another run."""
    found = part(pylog=[(1, 1), (2, 1)], kafka=[(4, 3), (4, 3)])
    read = json.loads(json.dumps(as_json([found], [], [])))
    (one,) = read["parts"]
    assert one["rounds"]["pylog"] == [{"seconds": 1, "cpu_seconds": 1}, {"seconds": 2, "cpu_seconds": 1}]
    assert one["times_as_fast_as"] == {"kafka": 3}


def test_cpu_of_a_child_counts_after_its_end() -> None:
    """Workers come and go while a round runs."""
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    one = measured(lambda: subprocess.run([sys.executable, "-c", burn], check=True), [os.getpid()])
    assert one.cpu_seconds >= 0.25
    assert one.seconds >= 0.25


def test_a_tree_has_children_of_children() -> None:
    """Spark's Python workers are children of its JVM."""
    grandchild = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", grandchild], stdin=subprocess.PIPE) as child:
        deadline = time.monotonic() + 30
        while len(found := tree(child.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.stdin is not None
        child.stdin.write(b"\n")
    assert len(found) == 2
    assert cpu_seconds([child.pid]) == 0


def test_the_peak_of_memory_is_by_kind_of_process() -> None:
    """The memory of a child that runs for a while is included."""
    hold = "block = bytearray(200_000_000); block[::4096] = b'x' * len(block[::4096]); import time; time.sleep(1.5)"
    with peak_memory([os.getpid()]) as peak:
        subprocess.run([sys.executable, "-c", hold], check=True)
    assert set(peak) <= {"Python", "Spark's JVM"}  # of a session that another test left in this process
    assert peak["Python"] > 200


def test_the_memory_of_a_short_round_is_known() -> None:
    """One that is over before the first look would be due again."""
    with peak_memory([os.getpid()]) as peak:
        pass
    assert peak["Python"] > 1


def test_an_empty_stretch_of_a_file_is_not_on_disk(tmp_path: Path) -> None:
    """Kafka makes its indexes large beforehand."""
    with (tmp_path / "index").open("wb") as file:
        file.truncate(10_000_000)
    assert bytes_on_disk([tmp_path]) < 100_000
    (tmp_path / "log").write_bytes(os.urandom(1_000_000))
    assert 1_000_000 <= bytes_on_disk([tmp_path]) < 1_100_000
