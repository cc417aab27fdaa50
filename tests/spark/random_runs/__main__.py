"""Random runs of a stream over a log: `python -m tests.spark.random_runs --seeds 200`, or `--engine spark`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.builders import CONFS
from tests.spark.random_runs.engines import CallsEngine, Engine, SparkEngine
from tests.spark.random_runs.run import Result, Run

STEPS = {"calls": 60, "spark": 40}


def replay_command(seed: int, engine: str, steps: int) -> str:
    return f"python -m tests.spark.random_runs --engine {engine} --first {seed} --seeds 1 --steps {steps} --verbose"


def run_seed(engine: Engine, seed: int, steps: int) -> Result:
    """One run in a separate folder, which is deleted."""
    with tempfile.TemporaryDirectory(prefix="random-run-") as folder:
        return Run(engine, Path(folder), seed).steps(steps)


def told(result: Result, engine: str, steps: int) -> str:
    """A failure: the steps that led to it, what was violated, and how to run it again."""
    lines = [f"    {number}. {step}" for number, step in enumerate(result.steps)]
    return "\n".join(
        [f"seed {result.seed}: {result.violation}", *lines, f"    again: {replay_command(result.seed, engine, steps)}"]
    )


def _results(seeds: range, engine: str, steps: int, jobs: int) -> Iterator[Result]:
    if engine == "calls":
        with ProcessPoolExecutor(jobs) as pool:
            yield from pool.map(partial(run_seed, CallsEngine(), steps=steps), seeds)
        return
    session = _session()
    try:
        for seed in seeds:
            yield run_seed(SparkEngine(session), seed, steps)
    finally:
        session.stop()


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.pop("SPARK_HOME", None)
    builder = SparkSession.builder.master("local[2]").appName("random runs")
    for name, value in CONFS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.random_runs", description=(__doc__ or "").partition(":")[0]
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument(
        "--engine", choices=list(STEPS), default="calls", help="Spark's calls without a JVM, or real Spark"
    )
    parser.add_argument("--steps", type=int, help="operations of a seed (default 60, with real Spark 40)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1; real Spark takes one)")
    parser.add_argument("--verbose", action="store_true", help="print the steps of each seed")
    args = parser.parse_args(arguments)
    steps = args.steps or STEPS[args.engine]
    logging.getLogger("spark_log").addHandler(logging.NullHandler())
    logging.getLogger("spark_log").setLevel(logging.CRITICAL)
    total: Counter[str] = Counter()
    failed, began = 0, time.monotonic()
    for result in _results(range(args.first, args.first + args.seeds), args.engine, steps, args.jobs):
        total += result.counts
        if result.violation or args.verbose:
            failed += bool(result.violation)
            print(told(result, args.engine, steps), flush=True)
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(total.items()))
    print(f"{args.seeds} seeds, {failed} with violations, {time.monotonic() - began:.0f} s; {counts}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
