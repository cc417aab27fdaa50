"""Numbers over time: ends of topics and lags of groups.  Bounded, whatever the log has."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence

SAMPLES_MAX = 240
KEPT_MS = 3_600_000
"""Older samples are dropped, also if there are few."""
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
                surplus = max(len(times) - self._samples_max, bisect_left(times, now_ms - KEPT_MS))
                del times[:surplus], numbers[:surplus]

    def samples(self) -> dict[str, tuple[array[int], array[int]]]:
        """A copy of all samples: times and values, by name."""
        with self._lock:
            return {name: (times[:], numbers[:]) for name, (times, numbers) in self._series.items()}

    def restore(self, found: Mapping[str, tuple[Sequence[int], Sequence[int]]], since_ms: int, until_ms: int) -> None:
        """Put samples of before in front, of a time range.  Raises OverflowError for what is not a time or a number."""
        with self._lock:
            for name, (times, numbers) in sorted(found.items())[: self._series_max]:
                rows = [row for row in zip(times, numbers, strict=True) if since_ms <= row[0] <= until_ms]
                if rows and name not in self._series and rows == sorted(rows, key=lambda row: row[0]):
                    kept = rows[-self._samples_max :]
                    self._series[name] = array("q", [row[0] for row in kept]), array("q", [row[1] for row in kept])

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
