"""Features of a log and their levels, as Kafka's `metadata.version`: which records it may hold.  Pure.

A log is at level 1 of each feature until a `FeatureLevel` record raises it; a level is never lowered.  A new kind of record, or
a new field, belongs to a level, and is written only to logs that are at it: then an older pylog refuses the log with both
levels, instead of failing at a record that it cannot read.  Fields that have their default are left out of records, so a
field that is not used needs no level.  Values that are lists without names grow at their end.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_log.errors import UnsupportedVersion

METADATA_VERSION = "metadata.version"

SUPPORTED: Mapping[str, int] = {METADATA_VERSION: 1}
"""The highest level of each feature that this pylog reads and writes."""


def check_level(name: str, level: int, where: str) -> None:
    """Raises UnsupportedVersion for a feature or a level that this pylog does not know, found in the object `where`."""
    supported = SUPPORTED.get(name, 0)
    if level > supported:
        raise UnsupportedVersion(
            f"the log is at level {level} of {name}, this pylog supports "
            f"{f'up to {supported}' if supported else 'no such feature'} ({where}): update pylog"
        )


def levels_of(found: Mapping[str, int]) -> dict[str, int]:
    """The level of each feature that this pylog knows, of a log that has raised `found`."""
    return {name: found.get(name, 1) for name in SUPPORTED}
