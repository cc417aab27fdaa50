"""Deterministic simulation of flows with the real code: one seed decides everything.

    python -m simulation.flow_sim --seeds 100 [--first 0] [--mutate NAME] [--jobs 2]
    python -m simulation.flow_sim --mutations      remove each rule, until the simulation notices

Tasks of a flow count words by key, while they are killed, replaced by others, and by another number of tasks.  Writers
write words, others change the state by hand and erase a key from it, maintenance compacts it, and the log is lost and
restored from an older copy.  `oracle.py` has the promises, `mutations.py` the rules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation.command import Subject, run_command
from simulation.flow_sim.mutations import MUTATIONS
from simulation.flow_sim.run import simulate

FLOWS = Subject("simulation.flow_sim", __doc__ or "", simulate, MUTATIONS, tries=100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command(FLOWS, arguments)


if __name__ == "__main__":
    sys.exit(main())
