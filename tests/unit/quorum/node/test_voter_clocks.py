"""The clock of a leader, bounded by those of the other voters."""

from __future__ import annotations

import pytest

from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.voter_clocks import AWAY_MS, SILENT_MS, VoterClocks

ONE, OTHER = ReplicaKey(2, "two"), ReplicaKey(3, "three")
YEAR_MS = 365 * 86_400_000


# Promise: service.md#keep-the-metadata-in-a-quorum
@pytest.mark.parametrize(
    ("own", "one", "other", "expected"),
    [
        pytest.param(0, 5, -5, 0, id="clocks that agree"),
        pytest.param(YEAR_MS, 0, 0, AWAY_MS, id="the leader is ahead"),
        pytest.param(-YEAR_MS, 0, 0, -AWAY_MS, id="the leader is behind"),
        pytest.param(0, YEAR_MS, 0, 0, id="another is ahead"),
        pytest.param(0, -YEAR_MS, 0, 0, id="another is behind"),
    ],
)
def test_one_wrong_clock_of_three_does_not_move_the_log(own: int, one: int, other: int, expected: int) -> None:
    now_ms, clocks = 1_700_000_000_000, VoterClocks()
    clocks.note(ONE, now_ms + one, 1_000)
    clocks.note(OTHER, now_ms + other - 10, 990)  # heard a while ago
    assert clocks.bounded(now_ms + own, 1_000, [ONE, OTHER]) == now_ms + expected


def test_a_voter_that_was_stopped_for_its_wrong_clock_does_not_count() -> None:
    """Then this node's clock goes wrong: with the other one's, which nobody has seen corrected, there would be two."""
    clocks = VoterClocks()
    clocks.note(ONE, YEAR_MS, 0)
    clocks.note(OTHER, SILENT_MS + 1, SILENT_MS + 1)
    assert clocks.bounded(YEAR_MS, SILENT_MS + 1, [ONE, OTHER]) == SILENT_MS + 1 + AWAY_MS


def test_a_node_that_was_suspended_remembers_the_clocks() -> None:
    """It has heard nobody lately, so all count."""
    clocks = VoterClocks()
    clocks.note(ONE, 0, 0)
    clocks.note(OTHER, 0, 0)
    assert clocks.bounded(YEAR_MS, 2 * SILENT_MS, [ONE, OTHER]) == 2 * SILENT_MS + AWAY_MS


def test_only_voters_count() -> None:
    """Of two, the lower one counts; a clock that was not heard does not."""
    clocks = VoterClocks()
    clocks.note(ONE, 1_000, 0)
    clocks.note(OTHER, 50_000, 0)
    assert clocks.bounded(60_000, 0, [ONE]) == 1_000 + AWAY_MS
    assert clocks.bounded(60_000, 0, []) == 60_000
    assert clocks.bounded(60_000, 0, [ReplicaKey(4, "four")]) == 60_000
