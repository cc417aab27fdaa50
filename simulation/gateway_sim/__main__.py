"""Deterministic simulation of the gateway's writes with the real code: one seed decides everything.

    python -m simulation.gateway_sim --seeds 100 [--first 0] [--mutate NAME] [--jobs 2]
    python -m simulation.gateway_sim --mutations      remove each rule, until the simulation notices

Idempotent producers of Kafka have batches under way at one of two gateways.  When an answer does not come, or is an
error, they send them again, maybe through the other gateway.  Gateways are killed, stall and commit late, and the topic
is created again.  `run.py` has the promises, `mutations.py` the rules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation.command import Subject, run_command
from simulation.gateway_sim.mutations import MUTATIONS
from simulation.gateway_sim.run import simulate

GATEWAYS = Subject("simulation.gateway_sim", __doc__ or "", simulate, MUTATIONS, tries=200)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_command(GATEWAYS, arguments)


if __name__ == "__main__":
    sys.exit(main())
