"""Parses option values.  Each function raises InvalidRequest that names the option and the value found.  Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark_pylog.options.option_table import spelt
from spark_log.configs.config_types import UNITS_BYTES
from spark_log.errors import InvalidRequest

Options = Mapping[str, str]
"""By lower-case name, as Spark passes them."""

DURATIONS_MS = {
    unit: ms
    for units, ms in (
        (("", "ms", "millisecond", "milliseconds"), 1),
        (("s", "sec", "second", "seconds"), 1000),
        (("m", "min", "minute", "minutes"), 60_000),
        (("h", "hour", "hours"), 3_600_000),
        (("d", "day", "days"), 86_400_000),
    )
    for unit in units
}
DIGITS_MAX = 19


def flag(options: Options, name: str, default: bool) -> bool:
    """True or false."""
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequest(f"option {spelt(name)}: {text!r} is not true or false")
    return text == "true"


def one_of(options: Options, name: str, *words: str) -> str:
    """One of a few words; the first is the default."""
    text = options.get(name, words[0]).strip().lower()
    if text not in words:
        raise InvalidRequest(f"option {spelt(name)}: {text!r} is not one of {', '.join(words)}")
    return text


def whole(options: Options, name: str) -> int | None:
    """An integer of 0 or more, or None if it is not set."""
    if name not in options:
        return None
    text = options[name].strip()
    if not text.isdecimal() or len(text) > DIGITS_MAX:
        raise InvalidRequest(f"option {spelt(name)}: {text!r} is not a whole number of 1 to 19 digits")
    return int(text)


def positive(options: Options, name: str) -> int | None:
    """An integer of 1 or more, or None if it is not set."""
    number = whole(options, name)
    if number == 0:
        raise InvalidRequest(f"option {spelt(name)}: {options[name]!r} is not 1 or more")
    return number


def size(options: Options, name: str) -> int | None:
    """Bytes, or None if it is not set."""
    if name not in options:
        return None
    found = re.fullmatch(r"(\d{1,18})\s*([a-z]*)", options[name].strip().lower())
    if not found or found[2] not in UNITS_BYTES or int(found[1]) == 0:
        raise InvalidRequest(f"option {spelt(name)}: {options[name]!r} is not a size, such as 500000, 64m or 1g")
    return int(found[1]) * UNITS_BYTES[found[2]]


def duration_ms(options: Options, name: str, default: int) -> int:
    """Milliseconds."""
    if name not in options:
        return default
    found = re.fullmatch(r"(\d{1,18})\s*([a-z]*)", options[name].strip().lower())
    if not found or found[2] not in DURATIONS_MS:
        raise InvalidRequest(
            f"option {spelt(name)}: {options[name]!r} is not a duration; "
            "expected for example 5s, 15m, 1 minute or 500 (milliseconds)"
        )
    return int(found[1]) * DURATIONS_MS[found[2]]
