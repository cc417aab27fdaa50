"""The group protocol in a world of faults: see simulated.py."""

from __future__ import annotations

import pytest

from tests.groups.simulated import MUTATIONS, Violation, World

SEEDS = 200
"""Of 2,500 that were run none failed."""


def violation(seed: int, mutation: str = "") -> str:
    try:
        World(seed, mutation).run()
    except Violation as found:
        return str(found)
    return ""


def test_members_share_partitions_whatever_happens() -> None:
    """Never two owners in one generation, offsets never go back, and at rest every partition is owned once."""
    assert {seed: found for seed in range(SEEDS) if (found := violation(seed))} == {}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_missing_rule_is_noticed(mutation: str) -> None:
    """A simulation that notices nothing proves nothing."""
    assert any(violation(seed, mutation) for seed in range(SEEDS))


def test_a_seed_gives_the_same_world_again() -> None:
    """A failure can be repeated."""
    worlds = [World(7), World(7)]
    for world in worlds:
        world.run()
    assert worlds[0].owners == worlds[1].owners
    assert worlds[0].coordinator.state == worlds[1].coordinator.state
