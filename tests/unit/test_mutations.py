"""Rules that a simulation runs without: what they replace is there.

A function that moves to another module is noticed here in a second; the simulations take minutes.
"""

from __future__ import annotations

import pytest

from simulation.coordinator_sim.mutations import MUTATIONS as COORDINATORS
from simulation.flow_sim.mutations import MUTATIONS as FLOWS
from simulation.gateway_sim.mutations import MUTATIONS as GATEWAYS
from simulation.log_sim.mutations import MUTATIONS as LOGS
from simulation.mutation import Mutation, Patch
from simulation.quorum_sim.mutations import MUTATIONS as QUORUMS
from simulation.replica_sim.mutations import MUTATIONS as REPLICAS


def _is_there(patch: Patch) -> bool:
    return patch.name in patch.owner if isinstance(patch.owner, dict) else hasattr(patch.owner, patch.name)


@pytest.mark.parametrize(
    "mutation",
    [mutation for rules in (COORDINATORS, FLOWS, GATEWAYS, LOGS, QUORUMS, REPLICAS) for mutation in rules.values()],
)
def test_what_a_mutation_replaces_is_there(mutation: Mutation) -> None:
    assert [patch.name for patch in mutation.patches if not _is_there(patch)] == []
