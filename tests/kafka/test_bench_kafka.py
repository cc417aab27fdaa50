"""The comparison of `make bench-kafka` runs, tiny.  Nothing is timed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulation.harness.kafka import fetch
from tests.kafka.conftest import FOLDER
from tests.spark.conftest import ROOT

ROWS = 20_000
PARTS = {"write", "drain", "query", "orders", "orders-json-stream"}


# Promise: measurements-kafka.md#compared-with-sparks-kafka-connector
def test_the_comparison_runs_and_reports(tmp_path: Path) -> None:
    """Batches, streams, queries and the latency have figures of both sides, in the table and in the file."""
    found, shown = compared(tmp_path, f"--parts {','.join([*sorted(PARTS), 'latency'])} --records 2")
    measured = {part["name"]: set(part["rounds"]) for part in found["parts"]}
    assert set(measured) == PARTS and all({"pylog", "kafka"} <= sides for sides in measured.values())
    assert [len(values) for values in found["latencies"][0]["ms"].values()] == [2, 2]
    assert "| batch write, rows/s" in shown


# Promise: measurements-kafka.md#three-replicas
def test_writes_with_three_replicas_are_compared(tmp_path: Path) -> None:
    """Three roots, and three brokers."""
    found, _ = compared(tmp_path, "--parts write --replicas 3")
    assert found["replicas"] == 3
    assert {"pylog", "kafka"} <= set(found["parts"][0]["rounds"])


def compared(tmp_path: Path, options: str) -> tuple[dict[str, Any], str]:
    """The figures of a run, and its output."""
    fetch(FOLDER)
    for jars in ("broker", "connector"):
        (tmp_path / jars).symlink_to(FOLDER / jars)
    out = tmp_path / "figures.json"
    options += f" --rows {ROWS} --rounds 1 --warm 1 --settings stock --out {out}"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.beside_kafka", *options.split()],
        cwd=ROOT,
        env={**os.environ, "PYLOG_KAFKA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text()), done.stdout
