"""Deterministic simulation of quorums, with the real machine: one seed decides everything.

    python -m simulation.quorum_sim --seeds 5000 [--first 0] [--mutate NAME] [--jobs 2]
    python -m simulation.quorum_sim --mutations       remove each rule, until the simulation notices
    python -m simulation.quorum_sim --seeds 1 --first SEED     repeat one run

`world.py` has the clock, the network and the disks' delays, `faults.py` what goes wrong, `oracle.py` the promises,
`calm.py` those that have a time, and `mutations.py` the rules.  Exits 1 if a promise was broken, or if a rule was
removed and the simulation did not notice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation.command import Subject, run_command
from simulation.quorum_sim.mutations import MUTATIONS
from simulation.quorum_sim.run import simulate

QUORUMS = Subject("simulation.quorum_sim", __doc__ or "", simulate, MUTATIONS, tries=3000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command(QUORUMS, arguments)


if __name__ == "__main__":
    sys.exit(main())
