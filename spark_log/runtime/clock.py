"""Time behind a protocol: the core gets `now_ms` as an argument, and tests control the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The time, for code that does I/O."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970-01-01 UTC."""

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never goes back, for timeouts."""

    def sleep_ms(self, milliseconds: float) -> None:
        """Sleep this long."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, milliseconds: float) -> None:
        time.sleep(milliseconds / 1000)


def ticks_of(clock: Clock) -> Callable[[], float]:
    """Monotonic seconds as a function.  The system clock's is `time.monotonic`, because each record calls it."""
    return time.monotonic if type(clock) is SystemClock else lambda: clock.monotonic_ms() / 1000


def stamps_of(clock: Clock) -> Callable[[], int]:
    """Wall-clock nanoseconds as a function.  The system clock's is `time.time_ns`, because each record calls it."""
    return time.time_ns if type(clock) is SystemClock else lambda: clock.now_ms() * 1_000_000
