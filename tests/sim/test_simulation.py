"""The protocol of the metadata log under a seeded scheduler: `make sim` runs more of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from simulation.command import replay_command
from simulation.log_sim.__main__ import main
from simulation.log_sim.mutations import MUTATIONS
from simulation.log_sim.run import simulate
from simulation.log_sim.setting import RESTORED_IN, TOGETHER_FROM

SEEDS = 20
NOTICED_IN = {
    "active_segment_cleaned": 259,
    "any_clock": 22,
    "any_edition": 1,
    "any_epoch": 14,
    "any_generation": 5,
    "certain_after_asking": 166,
    "certain_refusal": 435,
    "begins_on_remains": 20,
    "cleaned_blindly": 4,
    "consumer_skips": 469,
    "dead_copies_left": 419,
    "decide_unlisted": 8,
    "erased_beyond": 9,
    "erased_once": 9,
    "erased_too_few": 9,
    "expire_any": 566,
    "export_skips": 1169,
    "follow_few_beyond": 70,
    "full_map_ignored": 19,
    "generation_repeats": 50,
    "hold_from_plan": 60,
    "horizon_too_early": 264,
    "keeps_no_tombstone": 299,
    "keeps_older": 19,
    "late_records_mirrored": 4669,
    "left_records_are_holes": 779,
    "leftovers_placed": 1,
    "list_before_put": 14,
    "list_of_older_state": 7,
    "lists_unread": 9,
    "lost_checkpoints_put": 3869,
    "lost_list_empty": 38,
    "lost_positions_committed": 24769,
    "lost_records_are_holes": 6969,
    "lost_records_count": 779,
    "merged_blindly": 109,
    "newest_lost": 39,
    "no_birth": 20,
    "no_fence_on_commit": 1,
    "no_fence_on_swap": 15,
    "no_readback": 1,
    "no_start_over": 3,
    "no_transaction_timeout": 11,
    "offsets_forgotten": 2,
    "one_former_holder": 101,
    "opened_unconfirmed": 3,
    "parallel_after_lost": 651,
    "peek_believed": 1,
    "peek_beyond_fence": 1141,
    "positions_by_name": 349,
    "query_skips": 189,
    "records_before_objects": 159,
    "resumes_stale_state": 56,
    "retention_one_too_many": 5,
    "taken_alive": 5,
    "taken_from_any": 46,
    "tombstones_immediately": 10,
    "trim_one_too_many": 5,
    "written_by_all": 6,
    "young_cleaned": 79,
}
"""A seed that notices that a rule is missing; 0 where none is named.  `--mutations` finds new ones."""
TRIES = 30
"""Seeds that are tried from there on: what is drawn changes with the code that draws."""

RECREATING, LOSING, MIRRORING, RESTORING, LEFT_BEHIND, LOOKING_BACK = 249, 4, 99, 7589, 779, 1002
"""Seeds in which a topic is created again, in which objects are left when `meta/` is lost, with mirrors, in which two
of them take the place of the log, in which a record is left behind the end of a log, and in which processes look for
such logs.
"""

CRASHES = ("error: AssertionError", "error: IndexError", "error: KeyError")
"""A run that ends so has met a fault of the simulation, or of the mutation: no promise was broken."""


# Promise: cli.md#pylog-maintain, testing.md#simulations
@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_promise_is_broken(first: int) -> None:
    """Writers, readers, consumers and maintainers under lost requests, late effects, stalls, crashes and zombies."""
    for seed in range(first, first + 10):
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed)}"
        assert result.counts["acked"] and result.counts["checkpoints"]


def test_no_promise_is_broken_where_rounds_are_shared() -> None:
    """As on an object store: the checkpoint with what follows it, a listing beside a read that finds nothing."""
    for seed in range(TOGETHER_FROM + 11, TOGETHER_FROM + 23, 2):
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed)}"


def test_no_promise_is_broken_where_processes_read_old_records_again() -> None:
    """They look for a log that was set back, although it is not."""
    for seed in range(LOOKING_BACK, LOOKING_BACK + 12, 4):
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed)}"


def test_retention_reads_on_in_the_next_slice_index() -> None:
    """In this seed all that is left of a first index is old, and so is a part of the next one."""
    assert not simulate(51996).violation


def test_coordinators_take_over_from_each_other() -> None:
    """One seed in ten has some that hang, die, release and are released by force, and members that commit in
    generations.
    """
    result = simulate(16)
    assert not result.violation
    assert result.counts["TakeOverRecord"] > 3 and result.counts["ReleaseRecord"] > 1
    assert result.counts["GroupGenerationRecord"] > 3 and result.counts["shared commits"] > 1


# Promise: testing.md#simulations
def test_threads_of_one_process_run_as_the_seed_says() -> None:
    """In one seed in ten several threads share a journal, and producers write with their own."""
    counts = sum((simulate(seed).counts for seed in (109, 219)), Counter[str]())
    assert counts["threads"] > 5 and counts["produced"] > 5


def test_erasures_and_retention_run_beside_passes() -> None:
    """In one seed in ten operators erase keys; in one in twenty, from a compacted topic as well.  In seed 10 that topic
    has retention.
    """
    counts = sum((simulate(seed).counts for seed in (9, 10, 19)), Counter[str]())
    assert counts["erasures"] > 5 and counts["erased"] > 5
    assert counts["cleaned by the product"] and counts["thinned"] and counts["expired from compacted"]


NOT_SEEN = {
    "peek_beyond_fence": "hundreds of seeds do not show it since a process that meets another line opens the log again",
}
"""Rules of which no seed is known that notices their absence; one that does fails here, and becomes its seed."""


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(name, marks=pytest.mark.xfail(reason=NOT_SEEN[name])) if name in NOT_SEEN else name
        for name in MUTATIONS
    ],
)
def test_a_missing_rule_is_noticed(mutation: str) -> None:
    """Each rule of the protocol, taken away, breaks a promise: the simulation can see what it is for."""
    first, tries = NOTICED_IN.get(mutation, 0), 3 if mutation in NOT_SEEN else TRIES
    violations = (simulate(seed, mutation).violation for seed in range(first, first + tries))
    assert any(violation and not violation.startswith(CRASHES) for violation in violations), (
        f"find another seed for it: {replay_command(first, mutation)}"
    )


def test_readers_of_a_topic_that_is_created_again() -> None:
    """They commit positions in a topic that was deleted meanwhile."""
    result = simulate(RECREATING)
    assert not result.violation, f"{result.violation}\nagain: {replay_command(RECREATING)}"
    assert result.counts["read again"]


def test_no_log_begins_where_the_metadata_of_another_one_is_lost() -> None:
    result = simulate(LOSING)
    assert not result.violation, f"{result.violation}\nagain: {replay_command(LOSING)}"
    assert result.counts["not begun"] == result.counts["lost metadata"] == 1


@pytest.mark.parametrize("seed", [3, 219, RESTORING])
def test_a_seed_decides_everything(seed: int) -> None:
    """Two runs have the same store operations in this order; 219 runs the product in threads, on real segments."""
    first, second = (simulate(seed, transcript=True) for _ in range(2))
    assert first == second
    assert first.transcript != simulate(seed + 1, transcript=True).transcript


def test_a_failure_prints_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit code says whether what was expected was seen."""
    assert main(["--seeds", "1", "--first", "3", "--mutate", "no_start_over"]) == 0
    out = capsys.readouterr().out
    assert "again: python -m simulation.log_sim --seeds 1 --first 3 --mutate no_start_over" in out
    assert "seeds/s" in out


def test_mirrors_are_whole_whenever_they_are_killed_and_when_they_are_recovered() -> None:
    result = simulate(MIRRORING)
    assert not result.violation, f"{result.violation}\nagain: {replay_command(MIRRORING)}"
    assert result.counts["mirrored"] and result.counts["mirrors behind"]
    assert result.counts["whole mirrors"] > result.counts["recovered"] == 2


def test_readers_of_a_restored_log_skip_nothing_and_are_told() -> None:
    result = simulate(RESTORING)
    assert not result.violation, f"{result.violation}\nagain: {replay_command(RESTORING)}"
    assert result.counts["recovered"] == 2 and result.counts["histories"] == 1
    assert result.counts["refused Query"] and result.counts["refused Export"] and result.counts["mirrors refused"]


def test_records_that_are_put_back_beside_later_ones_do_not_count() -> None:
    """The objects that they name are kept.  In one of these seeds, one of them was there all the time."""
    results = [simulate(seed) for seed in (1779, 3779, 5779, LEFT_BEHIND)]
    assert not any(result.violation for result in results)
    assert all(result.counts["objects put back"] for result in results)
    assert [result.counts["left behind"] for result in results] == [0, 0, 0, 1]


def test_readers_continue_where_the_log_was_not_restored_beyond_them() -> None:
    """In some of these seeds the restored log has all that some readers have read."""
    counts = Counter[str]()
    for seed in range(9, 609, 20):
        if seed % 100 in RESTORED_IN:
            result = simulate(seed)
            assert not result.violation, f"{result.violation}\nagain: {replay_command(seed)}"
            counts += result.counts
    assert counts["recovered"] > 2 and counts["refused Query"] < counts["recovered"]


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_does_the_same(hash_seed: str) -> None:
    """Sets have another order there, and the process another number."""
    code = f"from simulation.log_sim.run import simulate; print(simulate({RESTORING}, transcript=True).transcript)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    assert found.stdout.splitlines()[-1] == simulate(RESTORING, transcript=True).transcript
