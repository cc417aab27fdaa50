"""The clock of a coordinator on a quorum: that of its machine, bounded by the clocks of the other voters."""

from __future__ import annotations

from collections.abc import Callable

from spark_log.runtime.clock import Clock


class QuorumClock:
    """For commits, and also for duties: retention deletes by this clock."""

    def __init__(self, time_ms: Callable[[], int], clock: Clock) -> None:
        """
        time_ms:  may be called in any thread.
        clock:    of the machine.
        """
        self._time_ms = time_ms
        self.monotonic_ms, self.sleep_ms = clock.monotonic_ms, clock.sleep_ms

    def now_ms(self) -> int:
        return self._time_ms()
