"""Each benchmark runs, tiny, and prints its figures.  Nothing is timed here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
ONCE = "--rounds 1 --warm 0"
TINY = {
    "append_threads": "--rows 8 --rounds 1",
    "bucket_latency": "--tries 1",
    "busy_month": "--days 3.1 --scale 100",
    "checkpoint": "--rows 2000",
    "clients": f"--rows 6 {ONCE}",
    "cold_open": f"--rows 50 {ONCE}",
    "commit": "--rows 30 --rounds 1",
    "compaction": "--rows 3000",
    "coordinator": "--rows 2",
    "dropped": "--rows 2000",
    "flow": "--rows 2",
    "gateway": "--rows 2000 --rounds 1",
    "groups": "--rows 100 --rounds 1",
    # The table of partitions is left out: its Spark does what `spark_read` and `spark_write` do.
    "growth": "--quick --only commits,maintained,record_size,writers,slices,objects,maintenance,groups,topics",
    "memory": "--rows 1",
    "million_commits": "--rows 400",
    "merge": f"--rows 20 {ONCE}",
    "mirror": "--rows 1000 --rounds 20 --warm 0",
    "native_read": f"--rows 100 {ONCE}",
    "native_write": f"--rows 100 {ONCE}",
    "object_store": "--quick",
    "plan": "--rows 300 --rounds 1",
    "producers": "--rows 2000",
    "push_down": f"--rows 400 {ONCE}",
    "quorum": "--rows 2 --rounds 1 --positions 1000 --parts coordinators,state,snapshots",
    "replica_month": "--days 2.5",
    "replica_state": "--rows 4000",
    "replicas": f"--rows 100 {ONCE}",
    "served_tasks": "--rows 200 --rounds 2 --nodes 3",
    "spark_read": f"--rows 400 {ONCE}",
    "spark_round_trips": "--rounds 1",
    "spark_tune": f"--rows 400 {ONCE}",
    "spark_typed": f"--rows 400 {ONCE}",
    "spark_write": f"--rows 400 {ONCE}",
    "standby_reads": f"--rows 2 --seconds 1 {ONCE}",
    "topic_client": "--rows 1000 --rounds 2",
    "typed": f"--rows 3000 {ONCE}",
    "trigger": f"--records 1 --first 0 {ONCE}",
    "wide_consumer": "--rows 1000 --rounds 2",
    "maintenance": "--partitions 100 --slices 1000 --idle",
    "maintenance_tasks": "--rows 300",
    "window": f"--rows 400 {ONCE}",
    "latest": f"--rows 400 {ONCE}",
    "levels": f"--rows 3000 {ONCE}",
    "write_task": f"--rows 3000 {ONCE}",
}


ONE_JVM = [
    name
    for name in TINY
    if name != "growth" and "common.session(" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")
]
"""Those with Spark: they run in one process."""


def output(*command: str) -> list[str]:
    """The lines that a program prints, which must succeed."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def of_one_jvm() -> set[str]:
    """The benchmarks with Spark that have reported."""
    program = str(Path(__file__).parents[1] / "one_jvm.py")
    lines = output(program, *(f"{FOLDER / name}.py {TINY[name]}" for name in ONE_JVM))
    return {json.loads(line)["benchmark"] for line in lines if line.startswith('{"benchmark": ')}


@pytest.mark.parametrize("name", ONE_JVM)
def test_a_benchmark_with_spark_runs_and_reports(name: str, of_one_jvm: set[str]) -> None:
    """One line of JSON under its name."""
    assert name in of_one_jvm


# Promise: measurements-alone.md#pylog-alone, measurements.md#a-busy-month, measurements.md#a-million-commits
@pytest.mark.parametrize("name", [name for name in TINY if name not in ONE_JVM])
def test_a_benchmark_runs_and_reports(name: str) -> None:
    """One line of JSON under its name, at the end."""
    line = output(str(FOLDER / f"{name}.py"), *TINY[name].split())[-1]
    assert json.loads(line)["benchmark"] == name


def test_every_benchmark_has_its_smoke_run() -> None:
    """A new one is added above."""
    assert {path.stem for path in FOLDER.glob("[!_]*.py")} == {*TINY, "common"}


def test_an_option_of_a_benchmark_is_one_that_it_uses() -> None:
    """`--help` names no option that changes nothing."""
    for name in TINY:
        source = (FOLDER / f"{name}.py").read_text()
        offered = options(source)
        assert offered, f"{name} has none"
        unused = [option for option in offered if f"given.{option}" not in source]
        assert not unused, f"{name} offers {unused} and does not look at them"


def options(source: str) -> set[str]:
    """The options of a benchmark's command line."""
    own = set(re.findall(r'add_argument\("--(\w+)"', source))
    shared = re.search(r"common\.arguments\((.*?)\)", source, re.DOTALL)
    if shared is None:
        return own
    left_out = set(re.findall(r"(\w+)=None", shared[1]))
    return own | ({"rows", "rounds", "warm"} - left_out)
