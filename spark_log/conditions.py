"""Conditions that a read can use: a part of SQL's WHERE, with SQL's meaning.  Pure.

    timestamp >= '2026-01-31 10:00' AND timestamp < '2026-01-31 11:00' AND partition IN (0, 1) AND offset >= 5

Comparisons of timestamp, offset and partition with constants, joined by AND, with optional parentheses.  Each column is
reduced to a range of integers, so that a read skips data that holds no matching record.  Other conditions are rejected,
and so are conditions whose meaning in Spark depends on its settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple, NoReturn

from spark_log.errors import InvalidRequest

LOWEST, HIGHEST = -(2**63), 2**63 - 1
"""The smallest and the largest value of a column."""

FORMS = (
    "=, <, <=, >, >= and BETWEEN of timestamp, offset and partition with constants, IN for offset and partition, "
    "all joined by AND"
)


@dataclass(frozen=True, slots=True)
class Values:
    """Integers from `first` to `last`, both included; if `among` is set, only those in it."""

    first: int = LOWEST
    last: int = HIGHEST
    among: frozenset[int] | None = None

    @property
    def empty(self) -> bool:
        return self.first > self.last

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last and (self.among is None or number in self.among)

    def both(self, other: Values) -> Values:
        """The values that are in both."""
        listed = self.among if self.among is not None else other.among
        if listed is None:
            return Values(max(self.first, other.first), min(self.last, other.last))
        return listed_values(number for number in listed if number in self and number in other)


ALL, NONE = Values(), Values(0, -1)


def listed_values(numbers: Iterable[int]) -> Values:
    """Values that contain exactly `numbers`."""
    among = frozenset(numbers)
    return Values(min(among), max(among), among) if among else NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Which records a read returns."""

    partition: Values = ALL
    offset: Values = ALL
    time_us: Values = ALL
    """Timestamps in microseconds."""

    @property
    def empty(self) -> bool:
        """Whether no record can match."""
        return self.partition.empty or self.offset.empty or self.time_us.empty

    @property
    def window(self) -> tuple[int, int] | None:
        """Timestamps in microseconds, half-open; None for all."""
        return None if self.time_us == ALL else (self.time_us.first, self.time_us.last + 1)

    def both(self, other: Condition) -> Condition:
        """Records that match the other as well."""
        return Condition(
            partition=self.partition.both(other.partition),
            offset=self.offset.both(other.offset),
            time_us=self.time_us.both(other.time_us),
        )


EVERYTHING = Condition()


def parse_condition(text: str, what: str, zone: tzinfo | None) -> Condition:
    """Parse a condition.

    what:  the name of the text in error messages, e.g. the option.
    zone:  the time zone of times without one; None rejects such times.
    Raises InvalidRequest that names the unsupported part.
    """
    return _Parser(text, what, zone).parse()


# -------------------------------------------------------------------------------------------------------------- grammar

COLUMNS = ("timestamp", "offset", "partition")
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "==": "=="}
"""Each comparison, and the same comparison with its sides swapped."""
_TYPED = ("timestamp", "timestamp_ltz", "date")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>'[^'\\]*'|"[^"\\]*")
    | (?P<number>[0-9]+(?![\w.]))
    | (?P<name>[A-Za-z_]\w*)
    | (?P<quoted>`\w+`)
    | (?P<sign><=>|<=|>=|<>|!=|==|[=<>(),+-])
    | (?P<other>[\w.]+|\S)
    )""",
    re.VERBOSE | re.ASCII,
)
_TIME = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)(?:[T ](\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d{1,9}))?(Z|[+-](?:0\d|1[0-7]):[0-5]\d)?)?)?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


class _Token(NamedTuple):
    kind: str
    """A group of `_TOKEN`, or `end`."""
    text: str
    """Names and keywords in lower case, without backquotes."""
    start: int
    end: int


class _Parser:
    """Reads a condition from left to right."""

    def __init__(self, text: str, what: str, zone: tzinfo | None) -> None:
        self._text = text
        self._what = what
        self._zone = zone
        self._tokens = [*map(_token, _TOKEN.finditer(text)), _Token("end", "", len(text), len(text))]
        self._at = 0
        self._part = 0
        """Number of the first token of the comparison that is being parsed."""

    def parse(self) -> Condition:
        found = self._condition()
        if self._next.text == ")":
            self._say("a parenthesis is closed that was not opened")
        if self._next.kind != "end":
            self._refuse()
        return found

    def _condition(self) -> Condition:
        found = self._factor()
        while self._skip("and"):
            found = found.both(self._factor())
        return found

    def _factor(self) -> Condition:
        begin = self._part = self._at
        if not self._skip("("):
            return self._comparison()
        found = self._condition()
        if self._next.kind == "end":
            self._say("a parenthesis is not closed")
        self._expect(")")
        self._part = begin
        return found

    def _comparison(self) -> Condition:
        column = self._maybe_column()
        if column is None:
            constant, sign = self._constant(), _TURNED[self._sign()]
            column = self._maybe_column()
            if column is None:
                self._refuse()
            return _compared(column, sign, self._number(column, constant))
        if self._skip("between"):
            low = self._number(column, self._constant())
            self._expect("and")
            return _condition(column, Values(low, self._number(column, self._constant())))
        if self._skip("in"):
            return _condition(column, self._list(column))
        return _compared(column, self._sign(), self._number(column, self._constant()))

    def _list(self, column: str) -> Values:
        if column == "timestamp":  # Spark compares times in a list as times or as text, depending on its settings
            self._refuse()
        self._expect("(")
        numbers = [self._number(column, self._constant())]
        while self._skip(","):
            numbers.append(self._number(column, self._constant()))
        self._expect(")")
        return listed_values(numbers)

    def _maybe_column(self) -> str | None:
        name = self._next
        if name.kind not in ("name", "quoted") or name.text not in COLUMNS:
            return None
        if name.kind == "name" and self._tokens[self._at + 1].kind == "text":  # timestamp '…' is a constant
            return None
        self._at += 1
        return name.text

    def _sign(self) -> str:
        if self._next.kind != "sign" or self._next.text not in _TURNED:
            self._refuse()
        self._at += 1
        return self._tokens[self._at - 1].text

    def _constant(self) -> _Token:
        """A text or a number, whose sign becomes part of it."""
        first = self._next
        if first.kind == "sign" and first.text in ("+", "-"):
            self._at += 1
            number = self._take("number")
            return _Token("number", first.text + number.text, first.start, number.end)
        if first.kind == "name" and first.text in _TYPED:
            self._at += 1
            text = self._take("text")
            return _Token("date" if first.text == "date" else "text", text.text, first.start, text.end)
        return self._take("number" if first.kind == "number" else "text")

    def _number(self, column: str, constant: _Token) -> int:
        """The value of a constant in the unit of the column."""
        if column != "timestamp":
            if constant.kind != "number":
                self._say(f"{column} is compared with whole numbers, and {self._quoted(constant)} is not one")
            return int(constant.text)
        if constant.kind == "number":
            self._say(f"timestamp is compared with times, as '2026-01-31T10:00:00Z', and {constant.text} is not one")
        return self._time_us(constant)

    def _time_us(self, constant: _Token) -> int:
        found = _TIME.fullmatch(constant.text.strip())
        if found is None or (constant.kind == "date" and found[4]):
            self._say(
                f"{self._quoted(constant)} is not a supported time: write '2026-01-31', '2026-01-31 10:00', "
                "'2026-01-31 10:00:00.5' or, with seconds and a zone, '2026-01-31T10:00:00+01:00'"
            )
        zone = self._zone if found[8] is None else _fixed_zone(found[8])
        if zone is None:
            self._say(
                f"the time {self._quoted(constant)} has no zone: write one, as in '2026-01-31T10:00:00Z', or give the "
                "option timeZone; spark_log.where(…) gives both options with the session's zone"
            )
        time_us = _time_us(found, zone)
        if time_us is None:
            self._say(f"there is no such time as {self._quoted(constant)}")
        return time_us

    # ----------------------------------------------------------------------------------------------------------- tokens

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _skip(self, text: str) -> bool:
        """Consume the next token if it is `text`; returns whether it was."""
        if self._next.kind not in ("name", "sign") or self._next.text != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            self._refuse()

    def _take(self, kind: str) -> _Token:
        token = self._next
        if token.kind != kind:
            self._refuse()
        self._at += 1
        return token

    def _quoted(self, token: _Token) -> str:
        return self._text[token.start : token.end]

    def _refuse(self) -> NoReturn:
        part = self._whole_part()
        if not part:
            self._say(f"a comparison is missing; expected {FORMS}")
        self._say(f"{part!r} cannot be used by a read: expected {FORMS}; leave other conditions to the query")

    def _whole_part(self) -> str:
        """The text that is being parsed, up to the next AND outside of parentheses."""
        depth, end = 0, self._tokens[self._part].start
        for token in self._tokens[self._part :]:
            word = token.text if token.kind in ("name", "sign") else ""
            depth += (word == "(") - (word == ")")
            if depth < 0 or (depth == 0 and word == "and" and token.start >= self._next.start):
                break
            end = token.end
        return self._text[self._tokens[self._part].start : end]

    def _say(self, sentence: str) -> NoReturn:
        raise InvalidRequest(f"{self._what}: {sentence}")


def _token(found: re.Match[str]) -> _Token:
    kind = found.lastgroup or "other"
    text = found[kind]
    value = text[1:-1] if kind == "text" else text.strip("`").lower()
    return _Token(kind, value, found.start(kind), found.end(kind))


def _compared(column: str, sign: str, number: int) -> Condition:
    match sign:
        case "<":
            return _condition(column, Values(last=number - 1))
        case "<=":
            return _condition(column, Values(last=number))
        case ">":
            return _condition(column, Values(first=number + 1))
        case ">=":
            return _condition(column, Values(first=number))
        case _:
            return _condition(column, Values(number, number))


def _condition(column: str, values: Values) -> Condition:
    values = ALL.both(values)
    match column:
        case "timestamp":
            return Condition(time_us=values)
        case "offset":
            return Condition(offset=values)
        case _:
            return Condition(partition=values)


def _fixed_zone(text: str) -> tzinfo:
    east = timedelta() if text == "Z" else timedelta(hours=int(text[1:3]), minutes=int(text[4:6]))
    return timezone(-east if text[0] == "-" else east)


def _time_us(found: re.Match[str], zone: tzinfo) -> int | None:
    year, month, day, hour, minute, second, fraction, _ = found.groups()
    try:
        time = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=zone
        )
        since = time - _EPOCH
    except (ValueError, OverflowError):
        return None
    # Digits below a microsecond are cut off, as in Spark.
    return since // _MICROSECOND + int((fraction or "").ljust(6, "0")[:6])


def as_condition(where: str | Condition | None) -> Condition:
    """Parse a condition whose times without a zone are UTC; None gives all records.  Raises InvalidRequest."""
    if isinstance(where, str):
        return parse_condition(where, "where", timezone.utc)
    return EVERYTHING if where is None else where
