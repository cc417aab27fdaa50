"""The command line of each simulation: runs seeds, and hunts for missing rules."""

from __future__ import annotations

import argparse
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from simulation.mutation import Mutation
from simulation.verdict import Result

PROTOCOL = "simulation.log_sim"
"""The module of the simulation of the protocol."""
GARBAGE = 50_000
"""Objects that are made between two collections."""
SAID_EVERY = 1000
"""Number of seeds between two progress lines of a long run."""


class Subject(NamedTuple):
    """The subject of a simulation."""

    module: str
    """The module that is run."""
    about: str
    simulate: Callable[..., Result]
    """Runs a seed, without a rule if `mutation` names one."""
    mutations: Mapping[str, Mutation]
    tries: int = 1000
    """Number of seeds within which a missing rule has to be noticed."""


def run_command(subject: Subject, arguments: Sequence[str] | None = None) -> int:
    """Run the command line of a simulation; return the exit code."""
    args = _parser(subject).parse_args(arguments)
    with ProcessPoolExecutor(args.jobs, initializer=_prepare) as pool:
        if args.mutations:
            return max(_hunt(pool, subject, name, args.first, args.jobs) for name in subject.mutations)
        seeds = range(args.first, args.first + args.seeds)
        run = partial(subject.simulate, mutation=args.mutate)
        results = pool.map(run, seeds, chunksize=max(1, min(16, len(seeds) // 8)))
        return _report(results, subject, args.mutate)


def _parser(subject: Subject) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {subject.module}", description=" ".join(subject.about.partition("\n\n")[0].split())
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many (default 500)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--mutate", default="", choices=["", *subject.mutations], help="a rule to take away")
    parser.add_argument("--mutations", action="store_true", help="take each rule away in turn, until that is noticed")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    return parser


def _prepare() -> None:
    """Leave out the product's log lines about injected faults, and collect garbage less often: a seed keeps most of
    what it makes, and modules stay.
    """
    logger = logging.getLogger("spark_log")
    logger.setLevel(logging.CRITICAL)
    logger.addHandler(logging.NullHandler())  # otherwise Spark's source adds one, and sets the level
    gc.freeze()
    gc.set_threshold(GARBAGE)


def _report(results: Iterable[Result], subject: Subject, mutation: str) -> int:
    started, total, broken, seeds = time.monotonic(), Counter[str](), 0, 0
    for result in results:
        seeds += 1
        total += result.counts
        if result.violation:
            broken += 1
            print(
                f"seed {result.seed}: {result.violation}\n    again: {replay_command(result.seed, mutation, subject.module)}",
                flush=True,
            )
        if seeds % SAID_EVERY == 0:
            print(f"{seeds} seeds so far, {broken} with violations", flush=True)
    rate = seeds / (time.monotonic() - started)
    print(f"{seeds} seeds, {broken} with violations, {rate:.1f} seeds/s; {_numbers(total)}", flush=True)
    return int(bool(broken) != bool(mutation))


def _hunt(pool: Executor, subject: Subject, mutation: str, first: int, jobs: int) -> int:
    """Run seeds with a mutation until one notices it; 1 if none does."""
    for start in range(first, first + subject.tries, jobs):
        for result in pool.map(partial(subject.simulate, mutation=mutation), range(start, start + jobs)):
            if result.violation:
                print(f"{mutation}: noticed in seed {result.seed}: {result.violation}", flush=True)
                return 0
    print(f"{mutation}: NOT noticed in {subject.tries} seeds: {subject.mutations[mutation].rule}", flush=True)
    return 1


def replay_command(seed: int, mutation: str = "", module: str = PROTOCOL) -> str:
    """The command that repeats a seed."""
    command = f"python -m {module} --seeds 1 --first {seed}"
    return f"{command} --mutate {mutation}" if mutation else command


def _numbers(total: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(total.items()))
