"""Conditions that a read can use: a part of SQL's WHERE, with SQL's meaning.  Pure.

    timestamp >= '2026-01-31 10:00' AND partition IN (0, 1) AND offset >= 5 AND (amount > 100 OR country = 'DE')

Comparisons with constants, joined by AND, OR and NOT, with optional parentheses.  Those of timestamp, offset and
partition that are joined by AND to all others are reduced to a range of integers for each column, so that a read skips
data that holds no matching record.  The rest is a tree; its data columns are looked up in the schema of a topic later
(segment/column_conditions.py).  Other conditions are rejected, and so are conditions whose meaning in Spark depends on
its settings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

from spark_log.errors import InvalidRequest

LOWEST, HIGHEST = -(2**63), 2**63 - 1
"""The smallest and the largest value of a column."""

FORMS = (
    "=, <>, <, <=, >, >=, BETWEEN and IN with constants, for timestamp, offset, partition and the columns of a topic's "
    "schema, and IS [NOT] NULL for these columns, joined by AND, OR and NOT"
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


class Constant(NamedTuple):
    """A constant that a data column is compared with."""

    kind: str
    """number, text, binary, boolean; or date, timestamp, timestamp_ltz or timestamp_ntz, which stand before a text."""
    text: str
    shown: str
    """The text as it was written."""


class ColumnTest(NamedTuple):
    """A test of one column.  It is false for a null, unless it asks for nulls."""

    column: str
    """The column as it was written, without backquotes; one of `COLUMNS` in lower case."""
    sign: str
    """=, <>, <, <=, >, >=, in, not in, null, not null."""
    constants: tuple[Constant | int, ...] = ()
    """Numbers for `COLUMNS`: of timestamp in microseconds."""
    at: int = 0
    """Its position in the text."""


class Both(NamedTuple):
    """All of its parts are true."""

    all: tuple[Tree, ...]


class Either(NamedTuple):
    """One of its parts is true."""

    any: tuple[Tree, ...]


Tree: TypeAlias = ColumnTest | Both | Either
_OPPOSITE = {"=": "<>", "<": ">=", ">": "<=", "in": "not in", "null": "not null"}
_OPPOSITE |= {other: sign for sign, other in _OPPOSITE.items()}


def opposite(tree: Tree) -> Tree:
    """NOT: true where the tree is false; neither is true where a comparison has a null."""
    if isinstance(tree, Both):
        return Either(tuple(map(opposite, tree.all)))
    if isinstance(tree, Either):
        return Both(tuple(map(opposite, tree.any)))
    return tree._replace(sign=_OPPOSITE[tree.sign])


class Rest(NamedTuple):
    """The part of a condition that is not in ranges, before its columns are looked up in a schema."""

    tree: Tree
    what: str
    """The name of the text in error messages."""
    zone: tzinfo | None
    """The zone of times without one."""


class RowTest(Protocol):
    """The rest of a condition after its columns were looked up (segment/column_conditions.py)."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Stored names of the columns that it needs."""

    def may_match(self, stats: bytes) -> bool:
        """Whether a row may match, of those with these statistics; empty: unknown ones."""

    def mask(self, records: Any, offsets: Any, partition: int) -> Any:
        """The matching rows of a batch with the columns, as a boolean array of numpy."""


class Window(NamedTuple):
    """A read may skip slices and batches whose times are all outside of [start, end), and those without a match."""

    start: int
    end: int
    rows: RowTest | None = None

    @property
    def any_time(self) -> Window:
        """A window of all times, for records whose own times do not count."""
        return Window(LOWEST, HIGHEST + 1, self.rows)


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
    rest: Rest | None = None
    """Before its columns are looked up."""
    rows: RowTest | None = None
    """The rest, afterwards."""

    @property
    def empty(self) -> bool:
        """Whether no record can match."""
        return self.partition.empty or self.offset.empty or self.time_us.empty

    @property
    def window(self) -> Window | None:
        """None: nothing can be skipped."""
        if self.time_us == ALL and self.rows is None:
            return None
        return Window(self.time_us.first, self.time_us.last + 1, self.rows)

    def only_ranges(self) -> Condition:
        """Raises InvalidRequest if a part of the condition cannot be ranges."""
        if self.rest is not None:
            raise InvalidRequest(
                f"{self.rest.what}: for this topic only comparisons of timestamp, offset and partition that are joined by "
                "AND; leave other conditions to the query"
            )
        return self

    def both(self, other: Condition) -> Condition:
        """Records that match the other as well.  Only ranges."""
        one, two = self.only_ranges(), other.only_ranges()
        return Condition(
            partition=one.partition.both(two.partition),
            offset=one.offset.both(two.offset),
            time_us=one.time_us.both(two.time_us),
        )


EVERYTHING = Condition()


def parse_condition(text: str, what: str, zone: tzinfo | None) -> Condition:
    """Parse a condition.

    what:  the name of the text in error messages, e.g. the option.
    zone:  the time zone of times without one; None rejects such times.
    Raises InvalidRequest that names the unsupported part.
    """
    try:
        return _Parser(text, what, zone).parse()
    except RecursionError:
        raise InvalidRequest(
            f"{what}: NOT and parentheses are nested too deeply: write lists of values with IN"
        ) from None


# -------------------------------------------------------------------------------------------------------------- grammar

COLUMNS = ("timestamp", "offset", "partition")
UNUSABLE = ("key", "value", "headers", "topic", "timestamptype")
"""Columns of a record that no condition can have."""
_SIGNS = {"==": "=", "!=": "<>"} | {sign: sign for sign in ("=", "<>", "<", "<=", ">", ">=")}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
"""Each comparison, and the same comparison with its sides swapped."""
_TYPED = ("timestamp", "timestamp_ltz", "timestamp_ntz", "date", "x")
"""Words before a text that make it a constant of another type."""
_WORDS = ("and", "or", "not", "in", "between", "is", "null", "true", "false", "like")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>'(?:[^'\\]|''|\\[\s\S])*'|"(?:[^"\\]|""|\\[\s\S])*")
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))
    | (?P<name>[^\W\d]\w*(?![\w.]))
    | (?P<quoted>`[^`]+`)
    | (?P<sign><=>|<=|>=|<>|!=|==|[=<>(),+-])
    | (?P<other>[\w.]+|\S)
    )""",
    re.VERBOSE,
)
_TIME = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)(?:[T ](\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d{1,9}))?(Z|[+-](?:0\d|1[0-7]):[0-5]\d)?)?)?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 86_400_000_000


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
        found = self._either()
        if self._next.text == ")":
            self._say("a parenthesis is closed that was not opened", self._next)
        if self._next.kind != "end":
            self._refuse()
        return self._ranges(found)

    def _ranges(self, tree: Tree) -> Condition:
        """Comparisons become ranges where that is possible; the rest stays a tree."""
        found, rest = EVERYTHING, list[Tree]()
        for one in _conjuncts(tree):
            if isinstance(one, ColumnTest) and one.column in COLUMNS and one.sign not in ("<>", "not in"):
                found = found.both(_range(one.column, one.sign, [n for n in one.constants if isinstance(n, int)]))
            else:
                rest.append(one)
        if not rest:
            return found
        return replace(found, rest=Rest(rest[0] if len(rest) == 1 else Both(tuple(rest)), self._what, self._zone))

    def _either(self) -> Tree:
        parts = [self._both()]
        while self._skip("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _both(self) -> Tree:
        parts = [self._factor()]
        while self._skip("and"):
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _factor(self) -> Tree:
        begin = self._part = self._at
        if self._skip("not"):
            return opposite(self._factor())
        if not self._skip("("):
            return self._test()
        found = self._either()
        if self._next.kind == "end":
            self._say("a parenthesis is not closed", self._tokens[begin])
        self._expect(")")
        self._part = begin
        return found

    def _test(self) -> Tree:
        column = self._maybe_column()
        if column is None:
            constant, sign = self._constant(), _TURNED[self._sign()]
            column = self._maybe_column()
            if column is None:
                self._refuse()
            return self._made(column, sign, [constant])
        if self._skip("is"):
            return self._nulls(column)
        negated = self._skip("not")
        if self._skip("between"):
            low = self._made(column, ">=", [self._constant()])
            self._expect("and")
            between = Both((low, self._made(column, "<=", [self._constant()])))
            return opposite(between) if negated else between
        if self._skip("in"):
            return self._made(column, "not in" if negated else "in", self._list(column))
        if not negated and self._ends_here and column.text not in COLUMNS:
            return ColumnTest(column.text, "=", (Constant("boolean", "true", "true"),), column.start)
        return self._made(column, self._refuse() if negated else self._sign(), [self._constant()])

    @property
    def _ends_here(self) -> bool:
        """Whether the column that was read is a whole test: a boolean."""
        return self._next.kind == "end" or self._next.text in (")", "and", "or")

    def _nulls(self, column: _Token) -> ColumnTest:
        sign = "not null" if self._skip("not") else "null"
        self._expect("null")
        if column.text in COLUMNS:  # never null
            self._refuse()
        return ColumnTest(column.text, sign, (), column.start)

    def _list(self, column: _Token) -> list[_Token]:
        if column.text == "timestamp":  # Spark compares times in a list as times or as text, depending on its settings
            self._refuse()
        self._expect("(")
        found = [self._constant()]
        while self._skip(","):
            found.append(self._constant())
        self._expect(")")
        return found

    def _made(self, column: _Token, sign: str, constants: Sequence[_Token]) -> ColumnTest:
        values: list[Constant | int] = []
        for one in constants:
            if column.text in COLUMNS:
                values.append(self._number(column.text, one))
            else:
                values.append(Constant(one.kind, one.text, self._quoted(one)))
        return ColumnTest(column.text, sign, tuple(values), column.start)

    def _maybe_column(self) -> _Token | None:
        """A column: one of `COLUMNS` in lower case, or as it was written."""
        name = self._next
        if name.kind == "name":
            is_constant = name.text in _TYPED and self._tokens[self._at + 1].kind == "text"  # as timestamp '…'
            if name.text in _WORDS or is_constant:
                return None
        elif name.kind != "quoted":
            return None
        if name.text in UNUSABLE:
            self._refuse()
        self._at += 1
        return name if name.text in COLUMNS else name._replace(text=self._quoted(name).strip("`"))

    def _sign(self) -> str:
        if self._next.kind != "sign" or self._next.text not in _SIGNS:
            self._refuse()
        self._at += 1
        return _SIGNS[self._tokens[self._at - 1].text]

    def _constant(self) -> _Token:
        """A text, a boolean, or a number, whose sign becomes part of it."""
        first = self._next
        if first.kind == "sign" and first.text in ("+", "-"):
            self._at += 1
            number = self._take("number")
            return _Token("number", first.text + number.text, first.start, number.end)
        if first.kind == "name" and first.text in ("true", "false"):
            self._at += 1
            return first._replace(kind="boolean")
        if first.kind == "name" and first.text == "null":
            self._say("nothing is equal to NULL: write IS NULL or IS NOT NULL", first)
        if first.kind == "name" and first.text in _TYPED:
            self._at += 1
            text = self._take("text")
            return _Token("binary" if first.text == "x" else first.text, text.text, first.start, text.end)
        return self._take("number" if first.kind == "number" else "text")

    def _number(self, column: str, constant: _Token) -> int:
        """The value of a constant in the unit of the column."""
        if column != "timestamp":
            if constant.kind != "number" or not constant.text.lstrip("+-").isdecimal():
                self._say(f"{column} is compared with whole numbers, and {self._quoted(constant)} is not one", constant)
            return int(constant.text)
        if constant.kind not in ("text", "date", "timestamp", "timestamp_ltz"):
            self._say(
                f"timestamp is compared with times, as '2026-01-31T10:00:00Z', and {self._quoted(constant)} is not one",
                constant,
            )
        try:
            return time_us(Constant(constant.kind, constant.text, self._quoted(constant)), self._zone)
        except ValueError as error:
            self._say(str(error), constant)

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
        part, first = self._whole_part(), self._tokens[self._part]
        if not part:
            self._say(f"a comparison is missing; expected {FORMS}", first)
        self._say(f"{part!r} cannot be used by a read: expected {FORMS}; leave other conditions to the query", first)

    def _whole_part(self) -> str:
        """The text that is being parsed, up to the next AND or OR outside of parentheses."""
        depth, end = 0, self._tokens[self._part].start
        for token in self._tokens[self._part :]:
            word = token.text if token.kind in ("name", "sign") else ""
            depth += (word == "(") - (word == ")")
            if depth < 0 or (depth == 0 and word in ("and", "or") and token.start >= self._next.start):
                break
            end = token.end
        return self._text[self._tokens[self._part].start : end]

    def _say(self, sentence: str, at: _Token) -> NoReturn:
        raise InvalidRequest(placed(self._what, sentence, at.start))


def placed(what: str, sentence: str, at: int) -> str:
    """A message about a place in a condition."""
    return f"{what}: {sentence} (at character {at + 1})"


def _token(found: re.Match[str]) -> _Token:
    kind = found.lastgroup or "other"
    text = found[kind]
    value = _unescaped(text) if kind == "text" else text.strip("`").lower()
    return _Token(kind, value, found.start(kind), found.end(kind))


_ESCAPE = re.compile(
    r"""(?P<quotes>''|"")|\\(?:U(?P<long>[0-9A-Fa-f]{8})|u(?P<short>[0-9A-Fa-f]{4})|(?P<octal>[01][0-7]{2})|(?P<one>[\s\S]))"""
)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _unescaped(literal: str) -> str:
    """The text of a literal, as Spark reads it: a doubled quote is one, and a backslash escapes what follows."""
    text = _ESCAPE.sub(lambda found: _escaped(found, literal[0]), literal[1:-1])
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # two halves are one character


def _escaped(found: re.Match[str], quote: str) -> str:
    if quotes := found["quotes"]:
        return quote if quotes[0] == quote else quotes
    if found["one"]:
        return _ESCAPED.get(found["one"], found["one"])
    code = int(found["octal"], 8) if found["octal"] else int(found["long"] or found["short"], 16)
    return chr(code) if code <= sys.maxunicode else "\ufffd"


def _conjuncts(tree: Tree) -> Iterator[Tree]:
    """The parts that all must be true."""
    if isinstance(tree, Both):
        for one in tree.all:
            yield from _conjuncts(one)
    else:
        yield tree


def _range(column: str, sign: str, numbers: Sequence[int]) -> Condition:
    """A comparison of one of `COLUMNS`."""
    match sign:
        case "<":
            return _condition(column, Values(last=numbers[0] - 1))
        case "<=":
            return _condition(column, Values(last=numbers[0]))
        case ">":
            return _condition(column, Values(first=numbers[0] + 1))
        case ">=":
            return _condition(column, Values(first=numbers[0]))
        case _:
            return _condition(column, listed_values(numbers) if sign == "in" else Values(numbers[0], numbers[0]))


def _condition(column: str, values: Values) -> Condition:
    values = ALL.both(values)
    match column:
        case "timestamp":
            return Condition(time_us=values)
        case "offset":
            return Condition(offset=values)
        case _:
            return Condition(partition=values)


# ---------------------------------------------------------------------------------------------------------------- times


def time_us(constant: Constant, zone: tzinfo | None) -> int:
    """A time in microseconds.  zone: of a time without one.  Raises ValueError with a sentence."""
    found = _TIME.fullmatch(constant.text.strip())
    if found is None or (constant.kind == "date" and found[4]):
        raise ValueError(
            f"{constant.shown} is not a supported time: write '2026-01-31', '2026-01-31 10:00', "
            "'2026-01-31 10:00:00.5' or, with seconds and a zone, '2026-01-31T10:00:00+01:00'"
        )
    zone = zone if found[8] is None else _fixed_zone(found[8])
    if zone is None:
        raise ValueError(
            f"the time {constant.shown} has no zone: write one, as in '2026-01-31T10:00:00Z', or give the "
            "option timeZone; spark_log.where(…) gives both options with the session's zone"
        )
    moment = _moment(found, zone)
    if moment is None:
        raise ValueError(f"there is no such time as {constant.shown}")
    return moment


def local_time_us(constant: Constant) -> int:
    """A time without a zone.  Raises ValueError with a sentence."""
    found = _TIME.fullmatch(constant.text.strip())
    if found is not None and found[8]:
        raise ValueError(f"{constant.shown} has a zone, and the column has none: leave the zone out")
    return time_us(constant, timezone.utc)


def day(constant: Constant) -> int:
    """A date, in days since 1970.  Raises ValueError with a sentence."""
    return local_time_us(constant._replace(kind="date")) // _DAY_US


def _fixed_zone(text: str) -> tzinfo:
    east = timedelta() if text == "Z" else timedelta(hours=int(text[1:3]), minutes=int(text[4:6]))
    return timezone(-east if text[0] == "-" else east)


def _moment(found: re.Match[str], zone: tzinfo) -> int | None:
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
