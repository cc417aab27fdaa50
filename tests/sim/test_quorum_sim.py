"""Quorums under faults: `make sim` runs more seeds."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.command import replay_command
from simulation.quorum_sim.__main__ import QUORUMS, main
from simulation.quorum_sim.mutations import MUTATIONS
from simulation.quorum_sim.run import simulate

SEEDS = 24
NOTICED_IN = {
    "any_chunk": 35,
    "any_log_elected": 3,
    "candidate_after_restart": 11,
    "change_before_own": 18,
    "changes_overlap": 4,
    "fetched_snapshot_dropped": 4,
    "follows_itself": 65,
    "half_commits": 1,
    "half_elects": 1,
    "hands_over_immediately": 3,
    "high_watermark_falls": 3,
    "joins_behind": 10,
    "late_answers": 18,
    "longest_log_elected": 4,
    "no_pre_vote": 11,
    "observers_counted": 1,
    "parked_despite_news": 2,
    "pre_vote_despite_leader": 54,
    "reads_unconfirmed": 81,
    "received_forgotten": 631,
    "removed_voter_waits": 4028,
    "resigns_silently": 22,
    "snapshot_without_voters": 4,
    "truncated_too_little": 402,
    "voters_of_truncated": 3,
    "votes_for_all": 2,
}
"""A seed that notices that a rule is missing; 0 where none is named.  `--mutations` finds new ones."""
TRIES = 12
"""Seeds that are tried from there on: what is drawn changes with the code that draws."""


# Promise: quorum.md#operate-a-quorum, quorum.md#when-a-node-is-lost, raft.md#a-replicated-log, raft.md#read,
# Promise: raft.md#stop-a-node, raft.md#write-the-disk, raft.md#write-the-loop
def test_no_promise_is_broken() -> None:
    """Messages are lost, doubled and late, replicas crash and stop, disks are replaced and voters changed."""
    total = Counter[str]()
    for seed in range(SEEDS):
        result = simulate(seed)
        assert not result.violation, f"{result.violation}\nagain: {replay_command(seed, module=QUORUMS.module)}"
        total += result.counts
    happened = [
        "added",
        "appends",
        "busy leaders",
        "crashes",
        "disks replaced",
        "leaders",
        "reads",
        "removed",
        "snapshots installed",
    ]
    assert [what for what in happened if not total[what]] == []


# Promise: raft.md#test-it
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_missing_rule_is_noticed(mutation: str) -> None:
    """Each rule of the protocol, taken away, breaks a promise: the simulation can see what it is for."""
    first = NOTICED_IN.get(mutation, 0)
    assert any(simulate(seed, mutation).violation for seed in range(first, first + TRIES)), (
        f"find another seed for it: {replay_command(first, mutation, QUORUMS.module)}"
    )


# Promise: raft.md#test-it
def test_a_seed_decides_everything() -> None:
    """The same messages at the same times."""
    first, second = (simulate(3, transcript=True) for _ in range(2))
    assert first == second and first.transcript.count("\n") > 100
    assert first.transcript != simulate(4, transcript=True).transcript


def test_a_failure_prints_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit code says whether what was expected was seen."""
    assert main(["--seeds", "1", "--mutate", "said_before_durable"]) == 0
    out = capsys.readouterr().out
    assert "again: python -m simulation.quorum_sim --seeds 1 --first 0 --mutate said_before_durable" in out


def test_a_voter_whose_removal_is_not_committed_can_be_elected() -> None:
    """In this seed nobody else can be: the leader lost the entry of the removal, and the removed voter has it."""
    assert not simulate(4028).violation
