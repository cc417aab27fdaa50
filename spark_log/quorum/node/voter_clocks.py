"""The clocks of a quorum's nodes, for a leader whose own clock may be wrong.  Pure.

Each message between nodes carries the sender's clock.  A clock is remembered as its distance from this machine's
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_log.quorum.messages import ReplicaKey

AWAY_MS = 1_000
"""A clock may be so far from the median: messages take time."""
SILENT_MS = 3_000
"""A voter that has been silent for longer may have another clock by now.  A leader hears those that fetch
from it twice a second.
"""


class VoterClocks:
    """The clocks of the other nodes, as this one has heard them."""

    def __init__(self) -> None:
        self._heard: dict[ReplicaKey, tuple[int, int]] = {}
        """By voter: how far its clock is ahead of this machine's monotonic clock, and when that was heard."""

    def note(self, key: ReplicaKey, clock_ms: int, monotonic_ms: int) -> None:
        self._heard[key] = clock_ms - monotonic_ms, monotonic_ms

    def bounded(self, own_ms: int, monotonic_ms: int, others: Iterable[ReplicaKey]) -> int:
        """The own clock, but at most `AWAY_MS` away from the median of the voters'.

        A log's time never goes back, so a clock that is years ahead would stop expiry for years; one that is behind
        would stop it while its node leads.  Of an even number of clocks, the lower of the middle ones counts.  Voters
        that are silent do not count, unless all are: one may have been stopped because its clock was wrong, and with
        this node's there would be two wrong ones of three.
        """
        heard = [self._heard[key] for key in others if key in self._heard]
        lately = [one for one in heard if monotonic_ms - one[1] <= SILENT_MS]
        known = sorted([own_ms, *(monotonic_ms + ahead_ms for ahead_ms, _ in lately or heard)])
        median_ms = known[(len(known) - 1) // 2]
        return max(min(own_ms, median_ms + AWAY_MS), median_ms - AWAY_MS)
