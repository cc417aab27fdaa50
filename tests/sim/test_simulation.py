"""The protocol of the metadata log under a seeded scheduler: `make sim` runs more of it."""

from __future__ import annotations

import pytest

from spark_log.testing.sim.mutations import MUTATIONS
from spark_log.testing.sim.run import simulate
from spark_log.testing.sim.setting import TOGETHER_FROM
from spark_log.testing.simulation import main, replay_command

SEEDS = 150
NOTICED_IN = {
    "follow_one_beyond": 154,
    "leftovers_placed": 2,
    "certain_refusal": 84,
    "no_fence_on_swap": 50,
    "any_edition": 3,
    "drop_at_once": 1,
    "list_before_put": 1,
    "parallel_after_lost": 261,
    "decide_unlisted": 2,
    "fence_by_own_time": 29,
    "expire_any": 63,
    "no_birth": 9,
    "any_generation": 8,
    "hold_from_plan": 23,
    "taken_alive": 5,
    "forgotten_at_once": 8,
    "written_by_all": 6,
    "taken_from_any": 6,
    "certain_after_asking": 746,
    "goes_on_from_before": 56,
}
"""A seed that notices that a rule is missing; 0 where none is named.  `--mutations` finds new ones."""


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_promise_is_broken(first: int) -> None:
    """Writers, readers, consumers and maintainers under lost requests, late effects, stalls, crashes and zombies."""
    for seed in range(first, first + 10):
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed)}"
        assert result.counts["acked"] and result.counts["checkpoints"]


@pytest.mark.parametrize("first", range(TOGETHER_FROM + 1, TOGETHER_FROM + 61, 20))
def test_no_promise_is_broken_where_rounds_are_shared(first: int) -> None:
    """As on an object store: the checkpoint with what follows it, a listing beside a read that finds nothing."""
    for seed in range(first, first + 20, 2):
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed)}"


def test_coordinators_take_over_from_each_other() -> None:
    """One seed in ten has some that hang, die, release and are released by force, and members that commit in generations."""
    result = simulate(6)
    assert not result.violation
    assert result.counts["TakeOver"] > 3 and result.counts["Release"] > 1
    assert result.counts["GroupGeneration"] > 3 and result.counts["shared commits"] > 1


def test_a_generation_whose_fate_was_unknown_is_not_given_again() -> None:
    """In this seed its record lands after the coordinator was told that it may not have."""
    assert not simulate(19406).violation


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_missing_rule_is_noticed(mutation: str) -> None:
    """Each rule of the protocol, taken away, breaks a promise: the simulation can see what it is for."""
    seed = NOTICED_IN.get(mutation, 0)
    assert simulate(seed, mutation).violation, f"find another seed for it: {replay_command(0, mutation)}"


@pytest.mark.parametrize("seed", [3, 24])
def test_a_seed_decides_everything(seed: int) -> None:
    """The same store operations in the same order; 24 encodes real segments."""
    first, second = (simulate(seed, transcript=True) for _ in range(2))
    assert first == second
    assert first.transcript != simulate(seed + 1, transcript=True).transcript


def test_a_failure_prints_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit code says whether what was expected was seen."""
    assert main(["--seeds", "1", "--mutate", "no_readback"]) == 0
    out = capsys.readouterr().out
    assert "again: python -m spark_log.testing.simulation --seeds 1 --first 0 --mutate no_readback" in out
    assert "seeds/s" in out
