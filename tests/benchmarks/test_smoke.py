"""Each benchmark runs, tiny, and prints its figures.  Nothing is timed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
TINY = {
    "clients": 300,
    "commit": 30,
    "coordinator": 100,
    "memory": 8,
    "merge": 20,
    "plan": 300,
    "spark_read": 80_000,
    "spark_write": 5000,
    "window": 20_000,
}


QUICK = ("growth", "object_store")
"""They have several sizes each, and a switch for small ones."""

QUICK_JVM = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""So little work is done that most of the time would go into compiling it well."""


@pytest.mark.parametrize("name", [*sorted(TINY), *QUICK])
def test_a_benchmark_runs_and_reports(name: str) -> None:
    """One line of JSON under its name."""
    given = ["--quick"] if name in QUICK else ["--rows", str(TINY[name]), "--rounds", "1", "--warm", "0"]
    command = [sys.executable, str(FOLDER / f"{name}.py"), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=os.environ | QUICK_JVM)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["benchmark"] == name


def test_every_benchmark_has_its_smoke_run() -> None:
    """A new one is added above."""
    assert {path.stem for path in FOLDER.glob("[!_]*.py")} == {*TINY, *QUICK, "common"}
