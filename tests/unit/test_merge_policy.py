"""The merge policy as a pure function, alone and for a month together with retention."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from spark_log.maintenance.retention import expired, limits_of
from spark_log.metadata.state import ObjectRow
from spark_log.model import APPEND_TIME, APPEND_TIME_IN_ROWS, CREATE_TIME, Slice
from spark_log.rewriting.merge_policy import (
    RETENTION_PARTS,
    SEGMENT_BYTES,
    WINDOWS_MAX,
    find_stretches,
    thin_objects,
    window_ms,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NO_LIMIT = {"retention.ms": "-1"}


def piece(start: int, size_mib: int, *, newest_ms: int = 0, time_kind: int = CREATE_TIME) -> Slice:
    return Slice(start, start + 1, f"o{start}", 0, size_mib << 20, 0, 1, 0, 1000 * newest_ms, time_kind)


def starts(slices: Sequence[Slice], *, window: int = DAY, thin: frozenset[str] = frozenset()) -> list[list[int]]:
    """The stretches, each as the first offsets of its slices."""
    return [[one.start for one in some] for some in find_stretches(slices, SEGMENT_BYTES, 1000 * window, thin)]


# ------------------------------------------------------------------------------------------------------------ tiers


# Promise: cli.md#pylog-merge
@pytest.mark.parametrize(
    ("sizes_mib", "expected"),
    [
        ((), []),
        ((1,), []),
        ((1, 1, 1), [[0, 1, 2]]),
        ((2, 1), []),
        ((2, 1, 1), [[0, 1, 2]]),
        ((8, 4, 2, 1), []),
        ((8, 4, 2, 1, 1), [[0, 1, 2, 3, 4]]),
        ((9, 4, 2, 1, 1), [[1, 2, 3, 4]]),
        ((40, 6, 6), [[1, 2]]),
        ((128, 1, 1), [[1, 2]]),
        ((1, 64, 1, 1), [[2, 3]]),
        ((2, 1, 64, 1), [[0, 1]]),
        ((2, 1, 64), [[0, 1]]),
    ],
)
def test_tiers(sizes_mib: tuple[int, ...], expected: list[list[int]]) -> None:
    """At the end a slice waits until what follows has its size; before a full segment everything is merged."""
    assert starts([piece(i, size) for i, size in enumerate(sizes_mib)]) == expected


def test_slices_of_thin_objects_are_rewritten_whatever_their_size() -> None:
    """A full or heavy slice moves if its object is otherwise dead, and takes nobody else with it."""
    assert starts([piece(0, 100)], thin=frozenset(["o0"])) == [[0]]
    heavy = [piece(0, 60), piece(1, 20), piece(2, 2), piece(3, 2)]
    assert starts(heavy, thin=frozenset(["o1"])) == [[1], [2, 3]]
    assert starts(heavy, thin=frozenset(["o0", "o1"])) == [[0, 1], [2, 3]]


def test_objects_less_than_half_alive_are_thin() -> None:
    """Half alive is enough; objects of which nothing is alive have nothing to move."""
    rows_of = {"a": ObjectRow(110, 100, 1), "b": ObjectRow(110, 100, 1), "gone": ObjectRow(110, 100, 1)}
    assert thin_objects(rows_of, {"a": 49, "b": 50, "gone": 0}) == {"a"}


def test_kinds_of_timestamps_are_kept_apart() -> None:
    """The log's times do not mix with producers'; the log's own two kinds do."""
    kinds = [CREATE_TIME, CREATE_TIME, APPEND_TIME, APPEND_TIME_IN_ROWS, CREATE_TIME, CREATE_TIME]
    assert starts([piece(i, 1, time_kind=kind) for i, kind in enumerate(kinds)]) == [[0, 1], [2, 3], [4, 5]]


# ---------------------------------------------------------------------------------------------------------- windows


# Promise: topic-configs.md#when-records-expire
@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, 7 * DAY // RETENTION_PARTS),
        (NO_LIMIT, 7 * DAY),
        ({"cleanup.policy": "compact", "retention.ms": str(HOUR)}, 7 * DAY),
        ({"retention.ms": str(HOUR)}, HOUR // RETENTION_PARTS),
        ({"retention.ms": str(HOUR), "segment.ms": str(MINUTE)}, MINUTE),
        ({"retention.ms": str(9 * 7 * DAY)}, 7 * DAY),
        ({"retention.ms": "0"}, 1),
    ],
)
def test_a_segment_spans_segment_ms_or_an_eighth_of_retention_ms(configs: dict[str, str], expected: int) -> None:
    """The less of the two; where retention is not by time, segment.ms, whose default is 7 days."""
    assert window_ms(configs) == expected


def at(*hours: float) -> list[Slice]:
    """Slices of 1 MiB whose newest records have these times."""
    return [piece(i, 1, newest_ms=int(hour * HOUR)) for i, hour in enumerate(hours)]


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        ((0.1, 0.9, 1.0, 1.5), [[0, 1], [2, 3]]),
        ((0.1, 1.1, 2.1), []),
        ((-0.6, -0.1, 0.1, 0.2), [[0, 1], [2, 3]]),
    ],
    ids=["two windows", "one slice each", "before 1970"],
)
def test_slices_of_one_window_are_merged(hours: tuple[float, ...], expected: list[list[int]]) -> None:
    """Windows are counted from 1970, so they are the same in every round."""
    assert starts(at(*hours), window=HOUR) == expected


def test_late_records_do_not_stop_merging() -> None:
    """A slice of old records cannot expire ahead of those in front of it, so it belongs to their window."""
    assert starts(at(5.1, 2.0, 5.2, 0.5, 5.3, 3.0), window=HOUR) == [[0, 1, 2, 3, 4, 5]]


# Promise: topic-configs.md#when-records-expire
def test_a_record_from_the_future_holds_back_only_what_follows() -> None:
    """It is not merged with what is before it; what is behind it waits for it anyway, and is merged."""
    slices = at(5.1, 5.2, 90_000, 5.3, 5.4, 6.5)
    assert starts(slices, window=HOUR) == [[0, 1], [2, 3, 4, 5]]
    now_ms = 90 * HOUR
    limits = limits_of({"retention.ms": str(HOUR)}, now_ms)
    assert expired(slices, limits) == 2
    assert expired(slices, limits_of({"retention.ms": str(HOUR)}, 90_002 * HOUR)) == 6


def test_a_slice_that_spans_days_already_is_not_made_newer() -> None:
    """A slice merged without a bound expires when its newest record is old enough, however much is appended."""
    old = Slice(0, 1000, "old", 0, 1 << 20, 0, 1, 0, 1000 * 72 * HOUR)
    young = [piece(1000 + i, 1, newest_ms=(73 + i) * HOUR) for i in range(5)]
    assert starts([old, *young], window=HOUR) == []
    assert expired([old, *young], limits_of({"retention.ms": str(HOUR)}, 73 * HOUR + 1)) == 1


# Promise: topic-configs.md#when-records-expire
@pytest.mark.parametrize("seed", range(50))
def test_merging_keeps_nothing_for_longer_than_a_window(seed: int) -> None:
    """Whatever the timestamps: the time at which a record can go moves by less than a window, and never back."""
    rng, log = random.Random(seed), Simulated({"retention.ms": "-1", "segment.ms": str(HOUR)})
    before: list[int] = []
    for _ in range(200):
        newest_ms = rng.choice([rng.randrange(30 * DAY), rng.randrange(HOUR), DAY + len(before) * MINUTE])
        log.append(rng.choice([1, 10, 1000]), newest_ms)
        before += [max([newest_ms, *before[-1:]])] * (len(log.times) - len(before))
        if rng.random() < 0.3:
            log.merge()
    after = 0
    for one in log.slices:
        after = max(after, one.max_us // 1000)
        assert all(
            before[offset] <= after < (before[offset] // HOUR + 1) * HOUR for offset in range(one.start, one.end)
        )


@pytest.mark.parametrize("step_ms", [1, HOUR, 365 * DAY])
def test_timestamps_far_apart_do_not_stop_merging(step_ms: int) -> None:
    """However sparse the times or short the windows: a partition does not keep more than so many windows."""
    log = Simulated({"retention.ms": "-1", "segment.ms": "1"})
    for number in range(3 * WINDOWS_MAX):
        log.append(1, number * step_ms)
        if number % 16 == 15:
            log.merge()
    assert len(log.slices) <= WINDOWS_MAX + 16
    doublings = 2
    assert log.rewritten <= log.bound() + doublings * log.written


# ------------------------------------------------------------------------------------------------------ a long time

OVERHEAD = 700
"""Bytes of a slice beside its records."""
EACH = 40


@dataclass
class Simulated:
    """One partition: what is appended is merged by the policy and removed by retention, in simulated time."""

    configs: dict[str, str]
    slices: list[Slice] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """Of every record that was ever appended, by offset."""
    written: int = 0
    rewritten: int = 0
    largest: int = 0

    def append(self, count: int, now_ms: int) -> None:
        start, size = len(self.times), OVERHEAD + EACH * count
        self.times += [now_ms] * count
        self.slices.append(Slice(start, start + count, f"o{start}", 0, size, 0, 1, 1000 * now_ms, 1000 * now_ms))
        self.written += size

    def merge(self) -> None:
        for stretch in find_stretches(self.slices, SEGMENT_BYTES, 1000 * window_ms(self.configs), ()):
            low = self.slices.index(stretch[0])
            self.slices[low : low + len(stretch)] = list(self._segments(stretch))

    def _segments(self, stretch: Sequence[Slice]) -> Iterator[Slice]:
        """Full segments and what is left, as merging writes them."""
        while stretch:
            taken, size = 0, OVERHEAD
            while taken < len(stretch) and size < SEGMENT_BYTES:
                size += stretch[taken].length - OVERHEAD
                taken += 1
            old, stretch = stretch[:taken], stretch[taken:]
            low, high = min(one.min_us for one in old), max(one.max_us for one in old)
            self.rewritten += sum(one.length for one in old)
            self.largest = max(self.largest, size)
            yield Slice(old[0].start, old[-1].end, f"m{old[0].start}", 0, size, 0, 1, low, high)

    def expire(self, now_ms: int) -> range:
        """The offsets that go."""
        start = self.start
        self.slices = self.slices[expired(self.slices, limits_of(self.configs, now_ms)) :]
        return range(start, self.start)

    @property
    def start(self) -> int:
        return self.slices[0].start if self.slices else len(self.times)

    def tiers(self) -> float:
        """1 + log2 n: how many slices may wait at the end."""
        return 1 + math.log2(max(self.largest, OVERHEAD + EACH) / (OVERHEAD + EACH))

    def bound(self) -> float:
        """Of the bytes that merging read, and so of those that it wrote: the bound that the policy states."""
        return 2 * (2 + self.tiers()) * self.written


def steadily(minute: int, rng: random.Random) -> int:
    """1 record a minute."""
    return 1


def in_bursts(minute: int, rng: random.Random) -> int:
    """Nothing most of the time, then up to 100,000 records."""
    return int(10 ** rng.uniform(0, 5)) if rng.random() < 0.02 else 0


def by_office_hours(minute: int, rng: random.Random) -> int:
    """From 9 to 17 o'clock, 5 days a week."""
    day, hour = divmod(minute // 60, 24)
    return rng.randint(0, 50) if day % 7 < 5 and 9 <= hour < 17 else 0


# Promise: topic-configs.md#when-records-expire
@pytest.mark.parametrize("rate", [steadily, in_bursts, by_office_hours])
@pytest.mark.parametrize("every_min", [10, 60, 24 * 60])
@pytest.mark.parametrize(
    "configs",
    [
        {"retention.ms": str(HOUR)},
        {"retention.ms": str(3 * DAY), "segment.ms": str(DAY)},
        {"retention.ms": str(7 * DAY), "segment.ms": str(HOUR)},
        NO_LIMIT,
    ],
    ids=["an hour", "three days", "a week by the hour", "for ever"],
)
def test_a_month(rate: Callable[[int, random.Random], int], every_min: int, configs: dict[str, str]) -> None:
    """Nothing goes early; nothing stays longer than retention.ms + segment.ms + a round; few slices; few rewrites."""
    log, rng = Simulated(configs), random.Random(1)
    age, window = int(configs["retention.ms"]), window_ms(configs)
    for minute in range(30 * 24 * 60):
        now_ms = minute * MINUTE
        if count := rate(minute, rng):
            log.append(count, now_ms)
        if minute % every_min == 0:
            gone = log.expire(now_ms)
            assert not gone or (age >= 0 and log.times[gone[-1]] < now_ms - age)
            assert age < 0 or log.start == len(log.times) or log.times[log.start] >= now_ms - age - window
            log.merge()
            kept = (30 * DAY if age < 0 else age) / window + 2
            full = sum(one.length for one in log.slices) / (SEGMENT_BYTES / 2)
            assert len(log.slices) <= kept + full + log.tiers()
    assert log.rewritten <= log.bound()
    covered = [offset for one in log.slices for offset in (one.start, one.end)]
    assert covered == sorted(covered)
    assert not covered or covered[-1] == len(log.times)


def test_a_byte_is_rewritten_log_n_times() -> None:
    """A hundred thousand commits in one window, a round after each: the cost nears the bound and never exceeds it."""
    log = Simulated(NO_LIMIT)
    for number in range(100_000):
        log.append(100, number)
        log.merge()
    assert log.written * 5 < log.rewritten <= log.bound()
    assert len(log.slices) <= log.tiers()
