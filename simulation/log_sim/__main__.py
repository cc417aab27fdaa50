"""Deterministic simulation of the protocol and of the clients above it, with the real code: one seed decides
everything.

    python -m simulation.log_sim --seeds 2000 [--first 0] [--mutate NAME] [--jobs 2]
    python -m simulation.log_sim --mutations       remove each rule, until the simulation notices
    python -m simulation.log_sim --seeds 1 --first SEED     repeat one run

`world.py` has the store and the scheduler, `constants.py` the constants that are drawn small,
`log_sim/promises/oracle.py` the promises, `mutations.py` the rules.  `month.py` simulates a longer time.  Exits 1 if a
promise was broken, or if a rule was removed and the simulation did not notice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation.command import PROTOCOL, Subject, run_command
from simulation.log_sim.mutations import MUTATIONS
from simulation.log_sim.run import simulate

LOGS = Subject(PROTOCOL, __doc__ or "", simulate, MUTATIONS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command(LOGS, arguments)


if __name__ == "__main__":
    sys.exit(main())
