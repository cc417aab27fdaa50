"""Deterministic simulation of the protocol and of the clients above it, with the real code: one seed decides
everything.

    python -m spark_log.testing.simulation --seeds 2000 [--first 0] [--mutate NAME] [--jobs 2]
    python -m spark_log.testing.simulation --mutations       remove each rule, until the simulation notices
    python -m spark_log.testing.simulation --seeds 1 --first SEED     repeat one run

`sim/world.py` has the store and the scheduler, `sim/constants.py` the constants that are drawn small, `sim/oracle.py`
the promises, `sim/mutations.py` the rules.  `month.py` simulates a longer time.  Exits 1 if a promise was broken, or if
a rule was removed and the simulation did not notice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spark_log.testing.sim.mutations import MUTATIONS
from spark_log.testing.sim.run import simulate
from spark_log.testing.sim_command import PROTOCOL, Subject, run_command

LOGS = Subject(PROTOCOL, __doc__ or "", simulate, MUTATIONS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command(LOGS, arguments)


if __name__ == "__main__":
    sys.exit(main())
