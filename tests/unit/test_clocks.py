"""Every clock keeps the same promises: the machine's, and those of tests."""

from __future__ import annotations

import pytest

from simulation.harness.clocks import START_MS, ManualClock, SkewedClock
from spark_log.runtime.clock import Clock, SystemClock

HOUR_MS = 3_600_000


@pytest.fixture(params=["system", "manual", "skewed"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return {
        "system": SystemClock,
        "manual": ManualClock,
        "skewed": lambda: SkewedClock(ManualClock(), HOUR_MS),
    }[request.param]()


@pytest.mark.parametrize("milliseconds", [0, 2, 3.5])
def test_a_sleep_lasts_at_least_as_long_as_asked(clock: Clock, milliseconds: float) -> None:
    """By the monotonic time."""
    begin = clock.monotonic_ms()
    clock.sleep_ms(milliseconds)
    assert clock.monotonic_ms() - begin >= int(milliseconds)


def test_times_are_whole_milliseconds(clock: Clock) -> None:
    """Also after a sleep of a fraction of one."""
    clock.sleep_ms(0.25)
    assert (type(clock.now_ms()), type(clock.monotonic_ms())) == (int, int)


def test_the_wall_clock_shows_this_century(clock: Clock) -> None:
    """Milliseconds since 1970, not seconds or microseconds."""
    assert 1_700_000_000_000 < clock.now_ms() < 4_100_000_000_000


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    """By a sleep, or by the test."""
    clock = ManualClock()
    assert clock.now_ms() == clock.now_ms() == START_MS
    clock.ms += HOUR_MS
    clock.sleep_ms(2)
    assert clock.now_ms() == clock.monotonic_ms() == START_MS + HOUR_MS + 2


def test_a_short_sleep_of_a_manual_clock_advances_it() -> None:
    """By a whole millisecond, so that a loop of short sleeps ends."""
    clock = ManualClock()
    clock.sleep_ms(0.25)
    assert clock.ms == START_MS + 1


def test_a_skewed_clock_is_wrong_about_the_wall_clock_time_only() -> None:
    """Its sleeps advance the clock that it is based on."""
    true = ManualClock()
    ahead = SkewedClock(true, HOUR_MS)
    ahead.sleep_ms(5)
    assert (ahead.now_ms(), ahead.monotonic_ms()) == (true.now_ms() + HOUR_MS, true.monotonic_ms())
    ahead.skew_ms = -HOUR_MS
    assert true.now_ms() - ahead.now_ms() == HOUR_MS and true.now_ms() == START_MS + 5
