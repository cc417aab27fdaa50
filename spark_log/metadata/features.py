"""Features of a log and their levels, as Kafka's `metadata.version`: which records it may hold.  Pure.

A log is at level 1 of each feature.  Its first batch raises it to the highest levels that its creator supports, and an
administrator raises it later.  A level is never lowered.  A new kind of record, or a new field, belongs to a level, and
is written only to logs at that level.  So an older pylog rejects the log with a message about both levels, instead of
failing at a record that it cannot read.  Fields with their default are left out of records, so an unused field needs no
level.  Values that are unnamed lists grow at their end.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_log.errors import UnsupportedVersion

METADATA_VERSION = "metadata.version"

SUPPORTED: Mapping[str, int] = {METADATA_VERSION: 1}
"""The highest supported level of each feature."""


def check_level(name: str, level: int, where: str) -> None:
    """Raises UnsupportedVersion for an unsupported feature or level, found in the object `where`."""
    supported = SUPPORTED.get(name, 0)
    if level > supported:
        raise UnsupportedVersion(
            f"the log is at level {level} of {name}, this pylog supports "
            f"{f'up to {supported}' if supported else 'no such feature'} ({where}): update pylog"
        )
