"""Lines for people in the log of the driver, or of an executor when they come from a task.

Spark's Python workers set up no logging: warnings come without a level or a time, and anything below is dropped.  What
they write to stderr is in the log of the process that started them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

LINE = "%(asctime)s %(levelname)s pylog: %(message)s"
"""As Spark's own lines begin."""
TIME = "%y/%m/%d %H:%M:%S"

logger = logging.getLogger("spark_log")


def notice(level: int, message: str) -> None:
    """Write a line.  Logging that is set up, by Spark's worker logging or by the user, is left as it is."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(LINE, TIME))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logger.log(level, "%s", message)


def tell(notes: Iterable[str]) -> None:
    """Warnings about options, one line each."""
    for note in notes:
        notice(logging.WARNING, f"option {note}")
