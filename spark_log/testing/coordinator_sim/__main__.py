"""Deterministic simulation of coordinators on a quorum, with the real code: one seed decides everything.

    python -m spark_log.testing.coordinator_sim --seeds 2000 [--first 0] [--mutate NAME] [--jobs 2]
    python -m spark_log.testing.coordinator_sim --mutations       remove each rule, until the simulation notices
    python -m spark_log.testing.coordinator_sim --seeds 1 --first SEED     repeat one run

The nodes are the product's: replica, disk, coordinator, server and groups (`nodes.py`), on simulated machines
(`simulated_process.py`).  The clients are the actors of the simulation of the log, with the product's `ServedLog`
(`setting.py`), on connections that break (`links.py`, `network.py`).  `faults.py` has what goes wrong, `setting.py` the
promises beside those of `sim/oracle.py`, and `mutations.py` the rules.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from spark_log.testing.coordinator_sim.mutations import MUTATIONS
from spark_log.testing.coordinator_sim.run import simulate
from spark_log.testing.sim.run import Result

Over = Callable[..., Iterable[Result]]
"""`map`, in one process or in several."""
TRIES = 500
"""Number of seeds within which a missing rule has to be noticed."""
SAID_EVERY = 200
"""Number of seeds between two progress lines of a long run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 if a promise was broken, or a missing rule was not noticed."""
    args = _parser().parse_args(arguments)
    if args.jobs == 1:
        return _run(args, map)
    with ProcessPoolExecutor(args.jobs) as pool:
        return _run(args, pool.map)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_log.testing.coordinator_sim", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--mutate", default="", choices=["", *MUTATIONS], help="a rule to take away")
    parser.add_argument("--mutations", action="store_true", help="take each rule away in turn, until that is noticed")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    return parser


def _run(args: argparse.Namespace, over: Over) -> int:
    if args.mutations:
        return max(_hunt(over, name, args.first) for name in MUTATIONS)
    seeds = range(args.first, args.first + args.seeds)
    return _report(over(partial(simulate, mutation=args.mutate), seeds), args.mutate)


def _report(results: Iterable[Result], mutation: str) -> int:
    started, total, broken, seeds = time.monotonic(), Counter[str](), 0, 0
    for result in results:
        seeds += 1
        total += result.counts
        if result.violation:
            broken += 1
            print(
                f"seed {result.seed}: {result.violation}\n    again: {replay_command(result.seed, mutation)}",
                flush=True,
            )
        if seeds % SAID_EVERY == 0:
            print(f"{seeds} seeds so far, {broken} with violations", flush=True)
    rate = seeds / (time.monotonic() - started)
    numbers = ", ".join(f"{name} {count}" for name, count in sorted(total.items()))
    print(f"{seeds} seeds, {broken} with violations, {rate:.1f} seeds/s; {numbers}", flush=True)
    return int(bool(broken) != bool(mutation))


def _hunt(over: Over, mutation: str, first: int) -> int:
    """Run seeds with a mutation until one notices it; 1 if none does."""
    for result in over(partial(simulate, mutation=mutation), range(first, first + TRIES)):
        if result.violation:
            print(f"{mutation}: noticed in seed {result.seed}: {result.violation}", flush=True)
            return 0
    print(f"{mutation}: NOT noticed in {TRIES} seeds: {MUTATIONS[mutation].rule}", flush=True)
    return 1


def replay_command(seed: int, mutation: str = "") -> str:
    """The command that repeats a seed."""
    command = f"python -m spark_log.testing.coordinator_sim --seeds 1 --first {seed}"
    return f"{command} --mutate {mutation}" if mutation else command


if __name__ == "__main__":
    sys.exit(main())
