"""The comparison of `make bench-kafka` runs, tiny.  Nothing is timed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from spark_log.testing.kafka import fetch
from tests.kafka.conftest import FOLDER
from tests.spark.conftest import ROOT

ROWS = 20_000
PARTS = {"write", "drain", "query"}


def test_the_comparison_runs_and_reports(tmp_path: Path) -> None:
    """A batch, a stream, a query and the latency have figures of both sides, in the table and in the file."""
    fetch(FOLDER)
    for jars in ("broker", "connector"):
        (tmp_path / jars).symlink_to(FOLDER / jars)
    out = tmp_path / "figures.json"
    parts = ",".join([*sorted(PARTS), "latency"])
    options = f"--parts {parts} --rows {ROWS} --rounds 1 --warm 1 --records 2 --settings stock --out {out}".split()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.beside_kafka", *options],
        cwd=ROOT,
        env={**os.environ, "PYLOG_KAFKA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text())
    measured = {part["name"]: set(part["rounds"]) for part in found["parts"]}
    assert set(measured) == PARTS and all({"pylog", "kafka"} <= sides for sides in measured.values())
    assert [len(values) for values in found["latencies"][0]["ms"].values()] == [2, 2]
    assert "| batch write, rows/s" in done.stdout
