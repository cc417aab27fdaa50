"""When a poll has enough records to return, and how long it waits for more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spark_log.client.consumer.fetch_positions import FetchPositions, Reading
from spark_log.client.consumer.poll_interval import PollBackoff
from spark_log.metadata.state import State
from spark_log.runtime.clock import Clock


class FetchWait:
    """The rules of `fetch_min_bytes` and `fetch_max_wait_ms`, and the poll interval of storage."""

    def __init__(self, clock: Clock, settings: Mapping[str, Any], reading: Reading, *, local: bool) -> None:
        self._clock = clock
        self._reading = reading
        self._min_bytes: int = settings["fetch_min_bytes"]
        self._max_wait_ms: int = settings["fetch_max_wait_ms"]
        self._fetched_ms = clock.monotonic_ms()
        self._backoff = PollBackoff(clock, local=local, most_ms=self._max_wait_ms)

    def is_enough(self, positions: FetchPositions, state: State) -> bool:
        """Whether `fetch_min_bytes` are available, or the consumer has waited `fetch_max_wait_ms` for them.

        If so, the next wait begins now.
        """
        enough = self._is_enough(positions, state)
        if enough:
            self._fetched_ms = self._clock.monotonic_ms()
        return enough

    def _is_enough(self, positions: FetchPositions, state: State) -> bool:
        if self._min_bytes <= 1 or self.until_due_ms() == 0 or positions.anything_buffered():
            return True
        return self._reading.has_bytes(positions, state, self._min_bytes)

    def until_due_ms(self) -> float:
        """How long to wait for `fetch_min_bytes`; infinite if that is one byte."""
        if self._min_bytes <= 1:
            return math.inf
        return float(max(0, self._fetched_ms + self._max_wait_ms - self._clock.monotonic_ms()))

    def found(self) -> None:
        """The poll has records."""
        self._backoff.found()

    def refresh_ms(self) -> float:
        """Time until storage is polled again."""
        return self._backoff.wait_ms()
