"""Numbers with units: sizes, durations, counts.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from spark_log.errors import InvalidRequest
from spark_log.text import counted, duration_text

SIZES = ("KiB", "MiB", "GiB", "TiB", "PiB")
FACTORS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def size_text(count: int) -> str:
    """`512 B`, `1.2 MiB`."""
    if count < 1024:
        return f"{count} B"
    size, units = count / 1024, list(reversed(SIZES))
    while size >= 1023.95 and len(units) > 1:
        size /= 1024
        units.pop()
    return f"{size:.1f} {units[-1]}"


def parse_rate(text: str) -> int:
    """Bytes per second, such as 50MB.  Raises InvalidRequest."""
    found = re.fullmatch(r"([0-9]{1,12})([kmg]i?)?b?(?:/s)?", text.strip().lower())
    if found is None or not int(found[1]):
        raise InvalidRequest(f"{text!r} is not a number of bytes per second, such as 50MB")
    return int(found[1]) * FACTORS[found[2] or ""]


def count_text(count: float) -> str:
    """`1,234`, `56.7`."""
    return f"{count:,}"


UNITS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("bytes", "lag_bytes", "lacking_bytes", "size", "length", "segment_bytes"), size_text),
    **dict.fromkeys(("lag_ms", "timeout_ms", "ahead_ms", "keep_ms"), duration_text),
    **dict.fromkeys(
        (
            "records",
            "rows",
            "lag",
            "trimmed",
            "objects",
            "lacking_objects",
            "batches",
            "segments",
            "slices",
            "topics",
            "partitions",
            "groups",
            "producers",
            "polls",
            "records_per_second",
            "appended_per_second",
            "consumed_per_second",
        ),
        count_text,
    ),
}
"""By field name.  Offsets, versions and other numeric ids are left out, because people copy those."""

TITLES = {
    "lag_bytes": "bytes",
    "lacking_objects": "lacks objects",
    "lacking_bytes": "lacks bytes",
    "lag_ms": "age",
    "timeout_ms": "timeout",
    "appended_per_second": "in/s",
    "consumed_per_second": "out/s",
}
"""Titles of columns whose values have units."""


def human(name: str, value: object) -> object:
    """A field's value with its unit, if it has one."""
    if name in UNITS and isinstance(value, int | float) and not isinstance(value, bool):
        return UNITS[name](value)
    return value


def moved_text(moved_bytes: int, partitions: int) -> str:
    """The end of a line about maintenance or replicas; empty if nothing has moved."""
    if not moved_bytes and not partitions:
        return ""
    return f"; {size_text(moved_bytes)} of partitions moved, {counted(partitions, 'move')} done"
