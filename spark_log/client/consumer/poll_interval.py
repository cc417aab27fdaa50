"""Poll interval of a reader that waits for records on storage, which cannot notify it.

The interval grows with the time since the last record, because the next record is likely to be equally far away.  A
poll costs about 0.2 ms of CPU on a disk, and a billed request in a bucket.
"""

from __future__ import annotations

from spark_log.runtime.clock import Clock

FIRST_MS = 2.0
LAST_MS, LAST_REMOTE_MS = 50.0, 250.0
SHARE, SHARE_REMOTE = 0.05, 0.5
"""Interval as a share of the time since the last record, on a disk and on remote storage."""


class PollBackoff:
    """The poll interval of one reader."""

    def __init__(self, clock: Clock, *, local: bool, most_ms: float, share: float = SHARE) -> None:
        """most_ms, share:  upper limit, and the share to use on a disk, for readers that need lower latency."""
        self._clock = clock
        self._share = share if local else SHARE_REMOTE
        self._last_ms = min(LAST_MS if local else LAST_REMOTE_MS, max(most_ms, FIRST_MS))
        self._found_ms = clock.monotonic_ms()

    def found(self) -> None:
        """The last poll returned records."""
        self._found_ms = self._clock.monotonic_ms()

    def wait_ms(self) -> float:
        """Time until the next poll, after one that returned nothing."""
        idle = self._clock.monotonic_ms() - self._found_ms
        return min(max(FIRST_MS, self._share * idle), self._last_ms)
