"""Coordinators on a quorum under faults: `make sim` runs more seeds."""

from __future__ import annotations

import logging
import threading
from collections import Counter

import pytest

from simulation.command import replay_command
from simulation.coordinator_sim.__main__ import COORDINATORS, main
from simulation.coordinator_sim.mutations import MUTATIONS
from simulation.coordinator_sim.run import simulate

SEEDS = (*range(6), 29, 3006, 903837, 904403, 904827, 900005, 902111, 17)
"""In the last one, the log begins on the storage, and a client knows the version at which it is restored.  In the one
before, a node has no leader for long.  In 900005, a node that lacks all records answers with a snapshot.  In 3006, a
deposed leader lacks the version of a claim.  In 903837, a node is elected again while it prepares to lead.  In 904403,
a query pauses long after each batch.  In 904827, a command that cancels an adoption fails when that is done."""
NOTICED_IN = {
    "claimed_newest": 4,
    "commits_unchecked": 8,
    "forgets_in_the_same_file": 9,
    "forgets_later": 9,
    "forgets_without_sync": 9,
    "forgotten_by_the_leader": 29,
    "leads_immediately": 2,
    "levels_unchecked": 8,
    "not_moved": 7,
    "refusal_not_final": 0,
    "two_directories": 47,
}
"""A seed that notices that a rule is missing; 0 where none is named.  `--mutations` finds new ones."""


def test_no_promise_is_broken() -> None:
    """Nodes crash, stop, lose disks and connections; clients write, read and maintain the log.  A quorum adopts it from
    the storage, and another one continues with a disk of that.
    """
    total = Counter[str]()
    for seed in SEEDS:
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed, module=COORDINATORS.module)}"
        total += result.counts
    happened = [
        "acked",
        "refused",
        "refusals",
        "TakeOverRecord",
        "SwapRecord",
        "crash",
        "stop",
        "isolate",
        "catch",
        "stale leaders",
        "certain",
        "unknown",
        "claims",
        "fences",
        "members' commits",
        "compared",
        "adoptions",
        "killed adoptions",
        "moved",
        "restored",
        "erasures",
    ]
    assert [what for what in happened if not total[what]] == []


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_missing_rule_is_noticed(mutation: str) -> None:
    """Each rule, taken away, breaks a promise: the simulation can see what it is for."""
    first = NOTICED_IN.get(mutation, 0)
    assert any(simulate(seed, mutation).violation for seed in range(first, first + 3)), (
        f"find another seed for it: {replay_command(first, mutation, COORDINATORS.module)}"
    )


def test_errors_of_other_threads_of_the_process_do_not_count() -> None:
    """A thread that an earlier test left may fail at any time."""
    ends = threading.Event()

    def fail() -> None:
        while not ends.wait(0.001):
            logging.getLogger("spark_log").error("a leftover", exc_info=ValueError("not simulated"))

    other = threading.Thread(target=fail)
    other.start()
    try:
        assert simulate(0).violation == ""
    finally:
        ends.set()
        other.join()


def test_a_seed_decides_everything() -> None:
    """The same messages at the same times."""
    first, second = (simulate(1, transcript=True) for _ in range(2))
    assert first == second and first.transcript != simulate(2, transcript=True).transcript


def test_a_failure_prints_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit code says whether what was expected was seen."""
    assert main(["--seeds", "1", "--mutate", "answered_when_offered"]) == 0
    out = capsys.readouterr().out
    assert "again: python -m simulation.coordinator_sim --seeds 1 --first 0 --mutate answered_when_offered" in out
