"""Where to start or end reading: the one grammar for Spark options, Python and the command line.  Pure.

    earliest | latest | N | latest-100 | now-10m | @2026-01-31T10:00Z | @1769853600000 | group:NAME

Keywords and units in any case; units are ms, s, m, h, d, w.  In Python also a datetime, and a timedelta, which is how
long ago.  A time without a zone is UTC, as in a record's timestamp.  Positions are resolved to offsets elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone

from spark_log.errors import InvalidRequest
from spark_log.model import EARLIEST, LATEST

FORMS = "earliest, latest, an offset, latest-100, now-10m, @2026-01-31T10:00Z, @1769853600000, group:NAME"

OF_PYTHON = "a datetime, or a timedelta (how long ago)"

OFFSET_MAX = 2**63 - 1
TIME_MS_MAX = (2**63 - 1) // 1000
"""Times are stored in microseconds, in 64 bits."""

UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
# datetime.fromisoformat reads neither Z nor two digits of a second's fraction before Python 3.11
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?\s*(Z|([+-])(\d\d)(?::?(\d\d))?)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record of a partition."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end: one past the last record."""


@dataclass(frozen=True, slots=True)
class At:
    """An offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class LatestMinus:
    """This many records before the end of each partition."""

    records: int


@dataclass(frozen=True, slots=True)
class SinceNow:
    """The first record with a timestamp at or after now minus this many milliseconds."""

    ms: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with a timestamp at or after this one."""

    ms: int


@dataclass(frozen=True, slots=True)
class OfGroup:
    """The committed offset of a group."""

    name: str


Position = Earliest | Latest | At | LatestMinus | SinceNow | AtTime | OfGroup


def parse_position(given: object, what: str = "position") -> Position:
    """Parse a position from a text, a number, a datetime, a timedelta or a position.

    -1 is the end and -2 the first record, as in Kafka.  A datetime without a zone is UTC; below 1 ms is cut off.

    Raises InvalidRequest that names `what`, e.g. the option, the value found and the supported forms.
    """
    if isinstance(given, Position):
        return given
    found = None
    if isinstance(given, int) and not isinstance(given, bool):
        found = _offset(given)
    elif isinstance(given, str):
        found = _parse_text(given.strip())
    elif isinstance(given, datetime):
        found = _at_time(given)
    elif isinstance(given, timedelta) and given >= timedelta(0):
        found = _since_now(given // _MILLISECOND)
    if found is None:
        forms = f"{FORMS}, {OF_PYTHON}" if isinstance(given, date | time | timedelta) else FORMS
        raise InvalidRequest(f"{what}: {given!r} is not a position; expected {forms}")
    return found


def format_position(position: Position) -> str:
    """The text of a position: `parse_position(format_position(p)) == p`."""
    match position:
        case Earliest():
            return "earliest"
        case Latest():
            return "latest"
        case At(offset):
            return str(offset)
        case LatestMinus(records):
            return f"latest-{records}"
        case SinceNow(ms):
            unit = next(unit for unit, size in UNITS_MS.items() if ms % size == 0)
            return f"now-{ms // UNITS_MS[unit]}{unit}"
        case AtTime(ms):
            return f"@{format_timestamp_ms(ms)}"
        case OfGroup(name):
            return f"group:{name}"


def parse_timestamp_ms(given: object, what: str = "timestamp") -> int:
    """Milliseconds since 1970 of a number, a number as text, or ISO-8601 text (no zone is UTC; below 1 ms is cut off).

    Raises InvalidRequest that names `what`.
    """
    found = None
    if isinstance(given, int) and not isinstance(given, bool):
        found = given
    elif isinstance(given, str):
        found = _parse_time(given.strip())
    if found is None or abs(found) > TIME_MS_MAX:
        raise InvalidRequest(
            f"{what}: {given!r} is not a time; expected milliseconds since 1970 or ISO-8601, "
            "as 1769853600000 and 2026-01-31T10:00:00Z"
        )
    return found


def format_timestamp_ms(ms: int) -> str:
    """ISO-8601 in UTC, or the number if it is beyond the calendar."""
    try:
        time = _EPOCH + ms * _MILLISECOND
    except OverflowError:
        return str(ms)
    return f"{time.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _parse_text(text: str) -> Position | None:
    word = text.lower()
    if word == "earliest":
        return Earliest()
    if word == "latest":
        return Latest()
    if re.fullmatch(r"-?[0-9]{1,19}", word):
        return _offset(int(word))
    if found := re.fullmatch(r"latest-([0-9]{1,18})", word):
        return LatestMinus(int(found[1]))
    if found := re.fullmatch(r"now-([0-9]{1,12})(ms|[smhdw])", word):
        return _since_now(int(found[1]) * UNITS_MS[found[2]])
    if word.startswith("@"):
        ms = _parse_time(text[1:].strip())
        return None if ms is None or abs(ms) > TIME_MS_MAX else AtTime(ms)
    if word.startswith("group:") and (name := text[len("group:") :].strip()):
        return OfGroup(name)
    return None


def _offset(number: int) -> Position | None:
    if number == EARLIEST:
        return Earliest()
    if number == LATEST:
        return Latest()
    return At(number) if 0 <= number <= OFFSET_MAX else None


def _at_time(given: datetime) -> Position | None:
    """None for a time that is not one, as pandas has it."""
    if given != given:
        return None
    zoned = given.replace(tzinfo=timezone.utc) if given.utcoffset() is None else given
    return AtTime((zoned - _EPOCH) // _MILLISECOND)


def _since_now(ms: int) -> Position | None:
    return SinceNow(ms) if ms <= TIME_MS_MAX else None


def _parse_time(text: str) -> int | None:
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        return int(text)
    found = _ISO.fullmatch(text)
    return None if found is None else _iso_ms(found)


def _iso_ms(found: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second, fraction, _, sign, zone_hours, zone_minutes = found.groups()
    east = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    try:
        time = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=timezone.utc
        )
    except ValueError:
        return None
    if east >= timedelta(days=1):
        return None
    since = time - _EPOCH - (-east if sign == "-" else east)
    return since // _MILLISECOND + int((fraction or "").ljust(3, "0")[:3])
