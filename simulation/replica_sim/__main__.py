"""Deterministic simulation of brokers, replicas and the ISR: one seed decides everything.

    python -m simulation.replica_sim --seeds 2000 [--first 0] [--mutate NAME] [--jobs 2]
    python -m simulation.replica_sim --mutations     remove each rule, until the simulation notices
    python -m simulation.replica_sim --seeds 1 --first SEED     repeat one run

The metadata log, its decisions and their replay are the product's, and so are the placement of objects, the order of
copies for a reader, swaps, and the rule of garbage.  The product puts and copies in threads, because roots hang; here
the actors do that in separate steps (`replica_sim/copying.py`, `replica_sim/maintenance.py`).

`replica_sim/roots.py` has the roots, `faults.py` what happens to them, `oracle.py` the promises, `mutations.py` the
rules.  Exits 1 if a promise was broken, or if a rule was removed and the simulation did not notice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation.command import Subject, run_command
from simulation.replica_sim.mutations import MUTATIONS
from simulation.replica_sim.run import simulate

REPLICAS = Subject("simulation.replica_sim", __doc__ or "", simulate, MUTATIONS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command(REPLICAS, arguments)


if __name__ == "__main__":
    sys.exit(main())
