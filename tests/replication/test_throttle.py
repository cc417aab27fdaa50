"""The limit of what a process copies and moves: that of the process, or that of the log if it is lower."""

from __future__ import annotations

from pathlib import Path

import spark_log
from simulation.harness.clocks import ManualClock
from spark_log.configs.settings import THROTTLE
from spark_log.replication.copy_throttle import Pace, pace_of, rate_of


# Promise: replicas.md#move-partitions
def test_the_lower_limit_applies_and_may_change(tmp_path: Path) -> None:
    """The next bytes keep to it, without a restart."""
    log = spark_log.connect(tmp_path / "log", create=True, durability="os")
    pace = pace_of(log, 100)
    assert (rate_of(log), rate_of(log, 100)) == (None, 100)
    log.admin.incremental_alter_configs({None: {THROTTLE: "50"}})
    assert (rate_of(log), rate_of(log, 100), rate_of(log, 10)) == (50, 50, 10)
    assert pace._rate() == 50
    log.admin.incremental_alter_configs({None: {THROTTLE: None}})
    assert pace._rate() == 100


def test_bytes_wait_for_their_turn() -> None:
    clock, rates = ManualClock(), iter([None, 1000, 500])
    pace = Pace(clock, rate=lambda: next(rates))
    waited = []
    for _ in range(3):
        before = clock.monotonic_ms()
        pace.take(1000)
        waited.append(clock.monotonic_ms() - before)
    assert waited == [0, 750, 2000]
