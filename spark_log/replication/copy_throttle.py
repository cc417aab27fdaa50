"""The throttle of copies: a limit of bytes per second for all that a process copies and moves."""

from __future__ import annotations

import threading
from collections.abc import Callable

from spark_log.bounds import LONG_MAX
from spark_log.client.log import Log
from spark_log.configs.settings import THROTTLE, cluster_config
from spark_log.runtime.clock import Clock

Rate = Callable[[], int | None]
"""Gives bytes per second; None: no limit."""
PACE_BURST_S = 0.25
"""A throttle lets the bytes of so many seconds pass without a wait."""


class Pace:
    """A limit of bytes per second, shared by threads."""

    def __init__(self, clock: Clock, bytes_per_s: int | None = None, rate: Rate | None = None) -> None:
        """
        bytes_per_s:  None: no limit.
        rate:         gives the limit instead, and may change.
        """
        self._clock = clock
        self._rate: Rate = rate or (lambda: bytes_per_s)
        self._free_ms = 0.0
        """When all bytes that have passed are paid for, on the monotonic clock."""
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Let so many bytes pass; waits until they may."""
        rate = self._rate()
        if rate is None:
            return
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._free_ms = max(self._free_ms, now_ms - PACE_BURST_S * 1000) + size * 1000 / rate
            wait_ms = self._free_ms - now_ms
        if wait_ms > 0:
            self._clock.sleep_ms(wait_ms)


def rate_of(log: Log, bytes_per_s: int | None = None) -> int | None:
    """The limit of all that a process copies and moves: its own one, or that of the log if it is lower."""
    limit = int(cluster_config(log.journal.state.configs, THROTTLE))
    lower = limit if bytes_per_s is None else min(limit, bytes_per_s)
    return None if lower == LONG_MAX else lower


def pace_of(log: Log, bytes_per_s: int | None = None) -> Pace:
    """Keeps to `rate_of`, also when the config of the log changes."""
    return Pace(log.journal.context.clock, rate=lambda: rate_of(log, bytes_per_s))
