"""Brokers, replicas and the ISR under a seeded scheduler: `make sim` runs more of it."""

from __future__ import annotations

import pytest

from simulation.command import replay_command
from simulation.replica_sim.__main__ import REPLICAS, main
from simulation.replica_sim.mutations import MUTATIONS
from simulation.replica_sim.run import simulate

SEEDS = (0, 1, 3, 5, 19, 471, 2889, 2943)
"""The last ones have found faults: two commits are given up in a round; old copies are dropped while others are away;
a partition gets its former replicas again, after a lost commit has put a hole on the new ones.
"""
MOVING = 9
"""A seed in which partitions get other replicas, as in every fifth one."""
COPYING = 27
"""A seed with backups, as in two of ten."""
NOTICED_IN = {
    "checksums_unchecked": 1,
    "missing_ignored": 1,
    "lacking_stay": 1,
    "shown_below_min": 5,
    "late_stays": 8,
    "misses_ignored": 1,
    "any_broker_epoch": 5,
    "async_in_isr": 6,
    "below_min": 1,
    "nobody_stays": 1,
    "swap_anywhere": 1,
    "swap_forgets": 1,
    "returns_blindly": 1,
    "keeps_copies": 5,
    "root_not_checked_again": 15,
    "collects_dropped": 5,
    "fenced_counts": 249,
    "sizes_unchecked": 1,
    "unknown_stay": 366,
    "loses_held": 5,
    "gives_up_early": 23,
    "late_refused": 9,
    "late_forgotten": 4,
    "forgets_before_fence": 29,
    "groups_go_early": 39,
    "moves_anywhere": 9,
    "swaps_to_former": 104,
    "ends_blindly": 424,
    "all_passes_pending": 5,
    "answers_pending": 4,
    "pending_for_ever": 5,
    "copies_without_pending": 27,
    "given_up_in_turn": 27,
}
"""A seed that notices that a rule is missing; 0 where none is named.  `--mutations` finds new ones."""
TRIES = 3
"""Seeds that are tried from there on: what is drawn changes with the code that draws."""


def _again(seed: int, mutation: str = "") -> str:
    return f"again: {replay_command(seed, mutation, REPLICAS.module)}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    """Roots go down, hang, vanish, come back empty or old, and lose single copies, while all actors continue."""
    result = simulate(seed)
    assert not result.violation, f"{result.violation}\n{_again(seed)}"
    assert result.counts["acked"] and result.counts["copied"] and result.counts["swaps"]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_missing_rule_is_noticed(mutation: str) -> None:
    """Each rule of replicas, taken away, breaks a promise: the simulation can see what it is for."""
    first = NOTICED_IN.get(mutation, 0)
    violations = (simulate(seed, mutation).violation for seed in range(first, first + TRIES))
    assert any(violation and not violation.startswith("error: ") for violation in violations), (
        f"find another seed for it: {_again(first, mutation)}"
    )


def test_copies_are_whole() -> None:
    """Backups are made beside pending commits, roots that are away, and commits that are lost."""
    result = simulate(COPYING)
    assert not result.violation, f"{result.violation}\n{_again(COPYING)}"
    assert result.counts["copied whole"] and result.counts["left out of copies"]


def test_partitions_move() -> None:
    """Beside writers whose uploads began before, and mergers."""
    result = simulate(MOVING)
    assert not result.violation, f"{result.violation}\n{_again(MOVING)}"
    assert result.counts["reassigned"] and result.counts["moved"] and result.counts["late commits"]


def test_a_seed_decides_everything() -> None:
    """The same operations on the same roots in the same order."""
    first, second = (simulate(2, transcript=True) for _ in range(2))
    assert first == second
    assert first.transcript != simulate(4, transcript=True).transcript


def test_a_failure_prints_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit code says whether what was expected was seen."""
    assert main(["--seeds", "1", "--mutate", "root_unchecked"]) == 0
    assert "again: python -m simulation.replica_sim --seeds 1 --first 0 --mutate root_unchecked" in (
        capsys.readouterr().out
    )
