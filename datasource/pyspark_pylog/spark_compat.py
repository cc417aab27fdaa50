"""Spark 4.2's additions for streams: it reports a query's position and limits; before, the source limits itself."""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Substitute for older Sparks."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]
    ReadLimit = Any  # type: ignore[misc, assignment]

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]
