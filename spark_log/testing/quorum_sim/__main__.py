"""Deterministic simulation of quorums, with the real machine: one seed decides everything.

    python -m spark_log.testing.quorum_sim --seeds 5000 [--first 0] [--mutate NAME] [--jobs 2]
    python -m spark_log.testing.quorum_sim --mutations       remove each rule, until the simulation notices
    python -m spark_log.testing.quorum_sim --seeds 1 --first SEED     repeat one run

`world.py` has the clock, the network and the disks' delays, `faults.py` what goes wrong, `oracle.py` the promises,
`calm.py` those that have a time, and `mutations.py` the rules.  Exits 1 if a promise was broken, or if a rule was
removed and the simulation did not notice.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from spark_log.testing.quorum_sim.mutations import MUTATIONS
from spark_log.testing.quorum_sim.run import Result, simulate

TRIES = 3000
"""Number of seeds within which a missing rule has to be noticed."""
SAID_EVERY = 1000
"""Number of seeds between two progress lines of a long run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = _parser().parse_args(arguments)
    with ProcessPoolExecutor(args.jobs) as pool:
        if args.mutations:
            return max(_hunt(pool, name, args.first, args.jobs) for name in MUTATIONS)
        seeds = range(args.first, args.first + args.seeds)
        results = pool.map(partial(simulate, mutation=args.mutate), seeds, chunksize=max(1, min(16, len(seeds) // 8)))
        return _report(results, args.mutate)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_log.testing.quorum_sim", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many (default 500)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--mutate", default="", choices=["", *MUTATIONS], help="a rule to take away")
    parser.add_argument("--mutations", action="store_true", help="take each rule away in turn, until that is noticed")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    return parser


def _report(results: Iterable[Result], mutation: str) -> int:
    started, total, broken, seeds = time.monotonic(), Counter[str](), 0, 0
    for result in results:
        seeds += 1
        total += result.counts
        if result.violation:
            broken += 1
            again = replay_command(result.seed, mutation)
            print(f"seed {result.seed}: {result.violation}\n    again: {again}", flush=True)
        if seeds % SAID_EVERY == 0:
            print(f"{seeds} seeds so far, {broken} with violations", flush=True)
    rate = seeds / (time.monotonic() - started)
    numbers = ", ".join(f"{name} {count}" for name, count in sorted(total.items()))
    print(f"{seeds} seeds, {broken} with violations, {rate:.1f} seeds/s; {numbers}", flush=True)
    return int(bool(broken) != bool(mutation))


def _hunt(pool: ProcessPoolExecutor, mutation: str, first: int, jobs: int) -> int:
    """Run seeds with a mutation until one notices it; 1 if none does."""
    for start in range(first, first + TRIES, jobs):
        for result in pool.map(partial(simulate, mutation=mutation), range(start, start + jobs)):
            if result.violation:
                print(f"{mutation}: noticed in seed {result.seed}: {result.violation}", flush=True)
                return 0
    print(f"{mutation}: NOT noticed in {TRIES} seeds: {MUTATIONS[mutation].rule}", flush=True)
    return 1


def replay_command(seed: int, mutation: str = "") -> str:
    """The command that repeats a seed."""
    command = f"python -m spark_log.testing.quorum_sim --seeds 1 --first {seed}"
    return f"{command} --mutate {mutation}" if mutation else command


if __name__ == "__main__":
    sys.exit(main())
