"""The scenarios of tests/scenarios/quorum give the transcripts that are written there.

    PYLOG_REWRITE=1 python -m pytest tests/unit/quorum/test_scenarios.py

writes what they give now: read the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.quorum.scenarios import Scenario

FOLDER = Path(__file__).parents[2] / "scenarios" / "quorum"
FILES = sorted(FOLDER.glob("*.txt"))
EXPECTED_NAMES = {
    "aba_race",
    "campaign",
    "checkquorum",
    "commit_index_regression",
    "confchange",
    "confirm",
    "directory_id",
    "divergence",
    "hand_over",
    "lagging_commit",
    "leader_fsync",
    "own_epoch_commit",
    "prevote_checkquorum",
    "restart_of_a_leader",
    "slow_follower_after_compaction",
    "slow_follower_of_a_busy_leader",
}


def replay(text: str) -> str:
    """The file with the transcript that its commands give: each block has comments, commands, `----` and lines."""
    scenario = Scenario()
    return "\n".join(_replay_block(scenario, block) for block in text.strip().split("\n\n"))


def _replay_block(scenario: Scenario, block: str) -> str:
    head = block.partition("----\n")[0].strip()
    commands = [line for line in head.splitlines() if not line.startswith("#")]
    shown = [lines for lines in map(scenario.run, commands) if lines]
    return "\n".join([head, "----", *(shown or ["ok"])]) + "\n"


# Promise: raft.md#append-entries, raft.md#make-snapshots, raft.md#stop-a-node, raft.md#write-the-disk
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_gives_its_transcript(file: Path) -> None:
    written = file.read_text(encoding="utf-8")
    found = replay(written)
    if os.environ.get("PYLOG_REWRITE"):
        file.write_text(found, encoding="utf-8")
    assert found == written or os.environ.get("PYLOG_REWRITE")


def test_every_scenario_is_there() -> None:
    """None was lost with its file."""
    assert {file.stem for file in FILES} == EXPECTED_NAMES
