"""Rounds: of maintenance, of a mirror, and of jobs that repeat their work.  A failure that may pass ends none of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from spark_log.errors import ClockSkewed, CorruptObject, SparkLogError, StorageError
from spark_log.journal.failure_isolation import log_failure
from spark_log.runtime.clock import Clock

Result = TypeVar("Result")
BACKOFF_MS, BACKOFF_MS_MAX = 100, 60_000
"""The least pause after a failed round, which doubles with each one in a row."""


def may_pass(error: Exception) -> bool:
    """Whether the same work may succeed later, without a change of its settings: the storage or a coordinator was away,
    the disk full, an object damaged that another process repairs, the clock not set yet after a suspension.
    """
    return isinstance(error, SparkLogError) and (error.maybe_applied or kind_may_pass(type(error)))


def kind_may_pass(kind: type[SparkLogError]) -> bool:
    """Whether `may_pass` is true, for the class of an error of another process."""
    return kind.retriable or kind.maybe_applied or issubclass(kind, StorageError | CorruptObject | ClockSkewed)


def rounds(
    clock: Clock,
    interval_ms: int,
    work: Callable[[], Result],
    failed: str,
    passes: Callable[[Exception], bool] = may_pass,
) -> Iterator[Result]:
    """Results of rounds, which start every `interval_ms`, until the caller stops iterating.

    Errors of the first round are raised, so that the caller sees whether the work can be done.  Later, an error that
    passes is logged, and the next round tries again; others are raised.

    failed:  what the log says before the error.
    """
    began, pause_ms = clock.monotonic_ms(), 0
    yield work()
    while True:
        clock.sleep_ms(max(pause_ms, began + interval_ms - clock.monotonic_ms()))
        began = clock.monotonic_ms()
        try:
            result = work()
        except Exception as error:
            if not passes(error):
                raise
            log_failure(failed, error)
            pause_ms = min(max(BACKOFF_MS, 2 * pause_ms), BACKOFF_MS_MAX)
        else:
            pause_ms = 0
            yield result
