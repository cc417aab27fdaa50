"""What Spark 4.2 brought for streams: it says where a query stands and how much to read; before, the source limits itself."""

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
        """Stand-in."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]
    ReadLimit = Any  # type: ignore[misc, assignment]

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]
