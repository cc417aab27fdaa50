"""Deterministic simulation of the metadata log's protocol, with the real code.

    python -m spark_log.testing.simulation --seeds 2000 [--first 0] [--mutate NAME] [--jobs 2]
    python -m spark_log.testing.simulation --mutations       every rule taken away in turn, until each is caught
    python -m spark_log.testing.simulation --seeds 1 --first SEED     one run again

`sim/world.py` has the store and the scheduler, `sim/oracle.py` the promises, `sim/mutations.py` the rules.
"""

from __future__ import annotations

from spark_log.testing.sim.run import simulate

import sys, time

if __name__ == "__main__":
    t = time.time()
    n = int(sys.argv[2])
    f = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    from collections import Counter

    tot = Counter()
    for s in range(f, f + n):
        r = simulate(s)
        tot += r.counts
        if r.violation:
            print(s, r.violation)
    print(n / (time.time() - t), tot)
