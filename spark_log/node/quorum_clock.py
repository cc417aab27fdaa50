"""The clock of a coordinator on a quorum: that of its machine, bounded by the clocks of the other voters."""

from __future__ import annotations

from collections.abc import Callable

from spark_log.clock import SystemClock


class QuorumClock(SystemClock):
    """For commits, and also for duties: retention deletes by this clock."""

    def __init__(self, time_ms: Callable[[], int]) -> None:
        """
        time_ms:  may be called in any thread.
        """
        self._time_ms = time_ms

    def now_ms(self) -> int:
        return self._time_ms()
