"""Looks at a local disk for the name of the next record, which cost microseconds: a look at the log costs 0.2 ms."""

from __future__ import annotations

from spark_log.runtime.clock import Clock
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import log_key

CHECK_MS_MIN = 1.0
CHECKS_A_LOOK = 5
"""Number of checks in the interval between two looks; none with 0."""


def is_quick(store: ObjectStore) -> bool:
    """Whether names can be checked often."""
    return store.local and CHECKS_A_LOOK > 0


def await_record(store: ObjectStore, version: int, most_ms: float, clock: Clock) -> None:
    """Sleep until the storage has this version of the log, or for `most_ms`."""
    if not is_quick(store):
        clock.sleep_ms(most_ms)
        return
    until_ms, pause_ms = clock.monotonic_ms() + most_ms, max(CHECK_MS_MIN, most_ms / CHECKS_A_LOOK)
    while (left_ms := until_ms - clock.monotonic_ms()) > 0:
        clock.sleep_ms(min(pause_ms, left_ms))
        if store.size(log_key(version)) is not None:
            return
