"""Flows with state under a seeded scheduler: `make sim` runs more of it."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.command import replay_command
from simulation.flow_sim.mutations import MUTATIONS
from simulation.flow_sim.run import simulate

NOTICED_IN = {"any_generation": 22, "erased_once": 8, "keeps_refused": 1, "one_lineage": 10}
"""A seed that notices that a rule is missing; 0 where none is named.  `--mutations` finds new ones."""
TRIES = 5
MODULE = "simulation.flow_sim"


# Promise: tasks/flow.md#exactly-once, tasks/flow.md#keep-state-by-key
def test_each_record_has_its_effect_once() -> None:
    """Tasks are killed, replaced and stalled, the state is changed by hand and erased, and the log is restored.  In
    seed 20 other tasks hold the group after the storage was away for a minute."""
    counts = Counter[str]()
    for seed in (1, 7, 20):
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed, module=MODULE)}"
        counts += result.counts
    assert all(counts[name] for name in ("processed", "replaced", "stopped", "restores", "edits", "erasures"))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_missing_rule_is_noticed(mutation: str) -> None:
    """Each rule, taken away, breaks a promise: the simulation can see what it is for."""
    first = NOTICED_IN.get(mutation, 0)
    violations = (simulate(seed, mutation).violation for seed in range(first, first + TRIES))
    assert any(found and not found.startswith("error: ") for found in violations), (
        f"find another seed for it: {replay_command(first, mutation, MODULE)}"
    )


def test_a_seed_decides_everything() -> None:
    first, second = (simulate(10, transcript=True) for _ in range(2))
    assert first == second
