"""The clocks of a quorum's nodes, for a leader whose own clock may be wrong.  Pure.

Each message between nodes carries the sender's clock.  A clock is remembered as its distance from this machine's
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_log.quorum.messages import ReplicaKey

AWAY_MS = 1_000
"""A clock may be so far from the median: messages take time."""


class VoterClocks:
    """The clocks of the other nodes, as this one has heard them."""

    def __init__(self) -> None:
        self._ahead_ms: dict[ReplicaKey, int] = {}

    def note(self, key: ReplicaKey, clock_ms: int, monotonic_ms: int) -> None:
        self._ahead_ms[key] = clock_ms - monotonic_ms

    def bounded(self, own_ms: int, monotonic_ms: int, others: Iterable[ReplicaKey]) -> int:
        """The own clock, but at most `AWAY_MS` away from the median of the voters'.

        A log's time never goes back, so a clock that is years ahead would stop expiry for years; one that is behind
        would stop it while its node leads.  Of an even number of clocks, the lower of the middle ones counts.
        """
        known = sorted([own_ms, *(monotonic_ms + self._ahead_ms[key] for key in others if key in self._ahead_ms)])
        median_ms = known[(len(known) - 1) // 2]
        return max(min(own_ms, median_ms + AWAY_MS), median_ms - AWAY_MS)
