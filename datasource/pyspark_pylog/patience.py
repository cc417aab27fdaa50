"""`fetchOffset.numRetries` and `fetchOffset.retryIntervalMs`: how long the driver asks a storage that does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from pyspark_pylog.notices import notice
from pyspark_pylog.options import ReadOptions
from spark_log.clock import Clock
from spark_log.errors import StorageUnavailable

Seen = TypeVar("Seen")


def patiently(look: Callable[[], Seen], options: ReadOptions, clock: Clock) -> Seen:
    """What a look at the log gives, tried again while the storage does not answer.  Raises StorageUnavailable in the end."""
    for number in range(1, options.tries):
        try:
            return look()
        except StorageUnavailable as error:
            notice(logging.WARNING, f"try {number} of {options.tries} (fetchOffset.numRetries): {error}")
            clock.sleep_ms(options.try_wait_ms)
    return look()
