"""Deterministic simulation of coordinators on a quorum, with the real code: one seed decides everything.

    python -m simulation.coordinator_sim --seeds 2000 [--first 0] [--mutate NAME] [--jobs 2]
    python -m simulation.coordinator_sim --mutations       remove each rule, until the simulation notices
    python -m simulation.coordinator_sim --seeds 1 --first SEED     repeat one run

The nodes are the product's: replica, disk, coordinator, server and groups (`nodes.py`), on simulated machines
(`simulated_process.py`). The clients are the actors of the simulation of the log, with the product's `ServedLog`
(`setting.py`), on connections that break (`links.py`, `network.py`). `faults.py` has what goes wrong, `setting.py` the
promises beside those of `log_sim/promises/oracle.py`, and `mutations.py` the rules. Exits 1 if a promise was broken, or
if a rule was removed and the simulation did not notice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation.command import Subject, run_command
from simulation.coordinator_sim.mutations import MUTATIONS
from simulation.coordinator_sim.run import simulate

COORDINATORS = Subject("simulation.coordinator_sim", __doc__ or "", simulate, MUTATIONS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command(COORDINATORS, arguments)


if __name__ == "__main__":
    sys.exit(main())
