"""Gateways with Kafka's idempotent producers under a seeded scheduler: `make sim` runs more of it."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.command import replay_command
from simulation.gateway_sim.mutations import MUTATIONS
from simulation.gateway_sim.run import simulate

NOTICED_IN = {"begins_anywhere": 18, "begins_with_0": 42}
"""A seed that notices that a rule is missing; 0 where none is named.  `--mutations` finds new ones."""
TRIES = 5
MODULE = "simulation.gateway_sim"


# Promise: gateway.md#writes, format/metadata.md#kafkas-producers
def test_each_batch_is_written_once_and_in_order() -> None:
    """Gateways are killed and stall, producers send batches again through another one, and the topic is created
    again."""
    counts = Counter[str]()
    for seed in range(40, 40 + TRIES):
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed, module=MODULE)}"
        counts += result.counts
    assert all(counts[name] for name in ("acked", "connections", "producers", "deleted", "begun again"))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_missing_rule_is_noticed(mutation: str) -> None:
    """Each rule, taken away, breaks a promise: the simulation can see what it is for."""
    first = NOTICED_IN.get(mutation, 0)
    violations = (simulate(seed, mutation).violation for seed in range(first, first + TRIES))
    assert any(found and not found.startswith("error: ") for found in violations), (
        f"find another seed for it: {replay_command(first, mutation, MODULE)}"
    )


def test_a_seed_decides_everything() -> None:
    first, second = (simulate(18, transcript=True) for _ in range(2))
    assert first == second
