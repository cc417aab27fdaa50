"""Numbers over time: ends of topics and lags of groups.  Bounded, whatever the log has."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping

SAMPLES_MAX = 240
SERIES_MAX = 500
RATE_MS = 120_000
"""A rate is that of the last samples within this time."""


class History:
    """Samples of some numbers, by name.  Safe for threads."""

    def __init__(self, samples_max: int = SAMPLES_MAX, series_max: int = SERIES_MAX) -> None:
        self._samples_max, self._series_max = samples_max, series_max
        self._series: dict[str, tuple[array[int], array[int]]] = {}
        """Times and values."""
        self._lock = threading.Lock()

    def note(self, now_ms: int, values: Mapping[str, int]) -> None:
        """Add a sample of each number.  Those that are missing are forgotten."""
        with self._lock:
            for name in self._series.keys() - values.keys():
                del self._series[name]
            for name, value in values.items():
                if name not in self._series and len(self._series) >= self._series_max:
                    continue
                times, numbers = self._series.setdefault(name, (array("q"), array("q")))
                times.append(now_ms)
                numbers.append(value)
                del times[: -self._samples_max], numbers[: -self._samples_max]

    def of(self, name: str, most: int = SAMPLES_MAX) -> list[tuple[int, int]]:
        """(milliseconds since 1970, number), oldest first; every n-th if there are more than `most`."""
        times, numbers = self._copy(name)
        each = -(-len(times) // most)
        return list(zip(times[::-1][::each], numbers[::-1][::each], strict=True))[::-1] if times else []

    def rate(self, name: str) -> float | None:
        """Growth per second; None before there are two samples."""
        times, numbers = self._copy(name)
        if len(times) < 2:
            return None
        first = next(at for at, time in enumerate(times) if time >= times[-1] - RATE_MS)
        first = min(first, len(times) - 2)
        return max(0.0, 1000 * (numbers[-1] - numbers[first]) / max(1, times[-1] - times[first]))

    def _copy(self, name: str) -> tuple[array[int], array[int]]:
        with self._lock:
            times, numbers = self._series.get(name, (array("q"), array("q")))
            return times[:], numbers[:]
