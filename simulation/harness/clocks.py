"""Clocks for tests: one that a test advances, and one whose wall-clock time is wrong."""

from __future__ import annotations

import math

from spark_log.runtime.clock import Clock

START_MS = 1_800_000_000_000
"""2027-01-15."""


class ManualClock:
    """A clock that advances only by `sleep_ms`, or when a test sets `ms`.  Its two times are the same.

    Sleeps are rounded up to whole milliseconds, so that a loop of short sleeps ends.
    """

    def __init__(self, ms: int = START_MS) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def sleep_ms(self, milliseconds: float) -> None:
        self.ms += math.ceil(milliseconds)


class SkewedClock:
    """Another clock, with a wall-clock time that is `skew_ms` ahead of it.  A test may change `skew_ms`."""

    def __init__(self, clock: Clock, skew_ms: int = 0) -> None:
        self._clock = clock
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.skew_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def sleep_ms(self, milliseconds: float) -> None:
        self._clock.sleep_ms(milliseconds)
