"""How long a reader that waits sleeps between two looks at a log on storage, where nobody tells it of news.

The longer nothing came, the later the next look, as the next record is likely to be as far away again.  On a disk a look
costs some 0.2 ms of CPU, in a bucket a request that is paid for.
"""

from __future__ import annotations

from spark_log.clock import Clock

FIRST_MS = 2.0
LAST_MS, LAST_REMOTE_MS = 50.0, 250.0
SHARE, SHARE_REMOTE = 0.05, 0.5
"""Of the time since the last record."""


class PollBackoff:
    """Of one reader."""

    def __init__(self, clock: Clock, *, local: bool, most_ms: float, share: float = SHARE) -> None:
        """most_ms, share:  a reader may want to look more often than it would have to; the share is of a disk."""
        self._clock = clock
        self._share = share if local else SHARE_REMOTE
        self._last_ms = min(LAST_MS if local else LAST_REMOTE_MS, max(most_ms, FIRST_MS))
        self._found_ms = clock.monotonic_ms()

    def found(self) -> None:
        """There were records."""
        self._found_ms = self._clock.monotonic_ms()

    def wait_ms(self) -> float:
        """Until the next look, now that one has found nothing."""
        idle = self._clock.monotonic_ms() - self._found_ms
        return min(max(FIRST_MS, self._share * idle), self._last_ms)
