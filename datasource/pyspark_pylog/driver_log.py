"""Messages for users in the log of the driver, or of an executor if a task writes them.

Spark's Python workers configure no logging: warnings have no level or time, and lower levels are dropped.  Their stderr
is in the log of the process that started them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_log.log_lines import logger

LINE = "%(asctime)s %(levelname)s pylog: %(message)s"
"""The format of Spark's log lines."""
TIME = "%y/%m/%d %H:%M:%S"


def notice(level: int, message: str) -> None:
    """Write a line.  Logging that Spark's workers or the user have configured is used unchanged."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(LINE, TIME))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logger.log(level, "%s", message)


def tell(notes: Iterable[str]) -> None:
    """Log warnings about options, one line each."""
    for note in notes:
        notice(logging.WARNING, f"option {note}")
