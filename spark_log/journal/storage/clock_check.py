"""Compares a writer's clock with the storage's.

A batch has the time of its writer's clock, and the log's time never decreases.  A clock that is years ahead would stop
fences, expiry and sessions for years.  So a clock that is far from the log's time is compared with the storage's clock.

The storage is asked only if the difference exceeds `log.clock.skew.max.ms`: a clock that agrees with the log is free.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from spark_log.configs.settings import cluster_config
from spark_log.errors import ClockSkewed
from spark_log.journal.storage.disk_reserve import with_reserve
from spark_log.journal.store_operations import OWN_ROOT, Steps, StoreTime
from spark_log.log_lines import logger
from spark_log.metadata.state import State
from spark_log.runtime.clock import Clock
from spark_log.store.object_names import data_key

CLOCK = "meta/pin/clock-"
"""Prefix of objects written to read the storage's time and then deleted; dead writers' are deleted with the pins."""
ASKED_TIMES = 3
"""Attempts to get a fast answer: a slow one, e.g. of a suspended process, is inexact."""
WARN_MS = 10_000
"""Smaller differences give no warning: sessions and transactions have longer timeouts."""
RESET = "`pylog cluster reset-clock` puts the log's time right"


class Stamp(NamedTuple):
    """One reading of a clock.  A batch gets exactly the time that was checked: the clock may be set in between."""

    now_ms: int
    monotonic_ms: int


def stamp_of(clock: Clock) -> Stamp:
    return Stamp(clock.now_ms(), clock.monotonic_ms())


@dataclass(slots=True)
class ClockWatch:
    """The clock readings that a process remembers."""

    store_ahead_ms: int | None = None
    """The storage's clock minus the monotonic clock, at the last question; a suspension makes it wrong."""
    silent: bool = False
    """The storage does not return times."""
    warned: bool = False

    def store_time(self, stamp: Stamp) -> int | None:
        """The storage's time at the stamp; None: not known yet."""
        return None if self.store_ahead_ms is None else stamp.monotonic_ms + self.store_ahead_ms

    def warn(self, message: str) -> None:
        """Log a warning once per process."""
        if not self.warned:
            self.warned = True
            logger.warning(message)


def check_clock(
    state: State,
    stamp: Stamp,
    clock: Clock,
    watch: ClockWatch,
    unique: Callable[[], str],
    *,
    in_data: bool = False,
) -> Steps[None]:
    """Compare a clock reading with the log's time, and if it is far away with the storage's time.

    unique:   returns a name for an object whose write time is the storage's time.
    in_data:  write it beside the records, for a process that has no access to the metadata.
    Raises ClockSkewed if the reading is far from both.
    """
    bound, now = cluster_config(state.configs, "log.clock.skew.max.ms"), stamp.now_ms
    ahead = now - state.time
    if bound < 0 or watch.silent:
        return
    if abs(ahead) <= bound:
        if ahead < -WARN_MS:
            watch.warn(
                f"this machine's clock is {_span(ahead)} behind the log's time {time_text(state.time)}: synchronize the clocks"
            )
        return
    known = watch.store_time(stamp)
    if known is None or abs(now - known) > bound:  # a remembered time may accept a clock, but not reject one
        known = yield from _ask_store(stamp, clock, watch, lambda: _question(state, unique, in_data=in_data))
        if known is None:
            return
    if abs(now - known) > bound:
        raise ClockSkewed(_refused(now, state.time, known, bound))
    if abs(now - known) > WARN_MS:
        watch.warn(
            f"this machine's clock {time_text(now)} is {_span(now - known)} away from the storage's: synchronize it"
        )
    if now - state.time < -bound:
        watch.warn(
            f"the log's time {time_text(state.time)} is {_span(ahead)} ahead of this machine's clock {time_text(now)}, "
            f"which the storage confirms: nothing expires and no garbage is collected before the clock reaches that "
            f"time; if the clock is right, {RESET}"
        )


def _question(state: State, unique: Callable[[], str], *, in_data: bool) -> Steps[int | None]:
    """If this process ends before the object is deleted, maintenance deletes it: with the pins, or as garbage."""
    data = b'{"version":%d}' % state.version
    if in_data:
        return (yield StoreTime(data_key(state.version, f"clock-{unique()}"), data, OWN_ROOT))
    return (yield from with_reserve(StoreTime(CLOCK + unique(), data)))


def _ask_store(
    stamp: Stamp, clock: Clock, watch: ClockWatch, question: Callable[[], Steps[int | None]]
) -> Steps[int | None]:
    """The storage's time at the stamp; None if it returns none."""
    ahead = 0
    for _ in range(ASKED_TIMES):
        began = clock.monotonic_ms()
        written = yield from question()
        if written is None:
            watch.silent = True
            return None
        ahead = written - clock.monotonic_ms()
        # The storage read its clock at an unknown moment of a slow request.
        if clock.monotonic_ms() - began < WARN_MS:
            break
    watch.store_ahead_ms = ahead
    return stamp.monotonic_ms + ahead


def _refused(now: int, log: int, store: int, bound: int) -> str:
    poisoned = f"; the log's time is wrong as well: {RESET}" if abs(log - store) > bound and log > store else ""
    return (
        f"the clock of {platform.node()}, {time_text(now)}, is {_span(now - store)} "
        f"{'ahead of' if now > store else 'behind'} the storage's {time_text(store)} (the log's time is "
        f"{time_text(log)}), more than log.clock.skew.max.ms={bound}: set the clock (NTP), nothing was written{poisoned}"
    )


def _span(ms: int) -> str:
    return str(timedelta(seconds=abs(ms) // 1000))


def time_text(ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)).strftime("%Y-%m-%d %H:%M:%S UTC")
