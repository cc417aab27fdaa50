"""Conditions on data columns, for a topic's schema: which rows match, and which batches and slices cannot.

A constant is brought into the type of its column, so that the comparison is exact, and the same as Spark's whatever
its settings are; constants for which this is impossible are refused.  Floats are ordered as in Spark: NaN is greater
than all other numbers, and 0.0 is equal to -0.0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isinf
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.conditions import (
    COLUMNS,
    Both,
    ColumnTest,
    Condition,
    Constant,
    Either,
    Rest,
    Tree,
    day,
    local_time_us,
    placed,
    time_us,
)
from spark_log.errors import InvalidRequest
from spark_log.schema.ddl import sql_type
from spark_log.schema.names import PREFIX, column_named, shown_name, stored_name
from spark_log.segment.arrays.numpy_arrays import micros_of
from spark_log.segment.statistics import Bounds, Stats, decode_stats, has_order, order

Mask: TypeAlias = npt.NDArray[np.bool_]
_EXACT = Context(prec=200)
_DIGITS_MAX = 38
_FLOAT_INTEGER_MAX = 2**24
"""Up to here, each whole number is a FLOAT."""


class Leaf(NamedTuple):
    """A test of one column, in its type.  Values are as in statistics, decimals as Decimal."""

    column: str
    """The stored name of a data column, or one of `COLUMNS`."""
    sign: str
    """The sign of a `ColumnTest`, or `never`."""
    values: tuple[Any, ...]
    """Those of a list ascend, without duplicates: it may have thousands, and is looked up for each slice."""
    type: pa.DataType


class AllOf(NamedTuple):
    all: tuple[Bound, ...]


class AnyOf(NamedTuple):
    any: tuple[Bound, ...]


Bound: TypeAlias = Leaf | AllOf | AnyOf


class RowTests(NamedTuple):
    """A condition on rows: `conditions.RowTest`."""

    tree: Bound
    columns: tuple[str, ...]
    """Stored names of the columns that it needs."""

    def may_match(self, stats: bytes) -> bool:
        return not stats or _may_match(self.tree, decode_stats(stats))

    def mask(self, records: pa.RecordBatch, offsets: npt.NDArray[np.int64], partition: int) -> Mask:
        return _mask(self.tree, records, offsets, partition)

    @property
    def data_types(self) -> dict[str, pa.DataType]:
        """The types of its data columns, by their names in the schema."""
        return {leaf.column[len(PREFIX) :]: leaf.type for leaf in _leaves(self.tree) if leaf.column not in COLUMNS}


def bound(where: Condition, columns: Mapping[str, pa.DataType] | None, topic: str) -> Condition:
    """A condition whose data columns are looked up.

    columns:  the types of the topic's data columns; None: it has no schema.
    Raises InvalidRequest for a column that the topic does not have, and for a constant that does not fit its type.
    """
    return where if where.rest is None else replace(where, rest=None, rows=row_tests(where.rest, columns, topic))


def row_tests(rest: Rest, columns: Mapping[str, pa.DataType] | None, topic: str) -> RowTests:
    """The part of a condition that is not in ranges, as by `bound`."""
    tree = _bound(rest.tree, _Binding(rest, columns, topic))
    names = dict.fromkeys(leaf.column for leaf in _leaves(tree) if leaf.column not in ("offset", "partition"))
    return RowTests(tree, tuple(names))


def _leaves(tree: Bound) -> list[Leaf]:
    if isinstance(tree, Leaf):
        return [tree]
    return [leaf for one in tree[0] for leaf in _leaves(one)]


def _bound(tree: Tree, binding: _Binding) -> Bound:
    if isinstance(tree, Both):
        return AllOf(tuple(_bound(one, binding) for one in tree.all))
    if isinstance(tree, Either):
        return AnyOf(tuple(_bound(one, binding) for one in tree.any))
    return binding.leaf(tree)


# ------------------------------------------------------------------------------------------------- columns and constants


class _Binding:
    """Brings tests into the types of a topic."""

    def __init__(self, rest: Rest, columns: Mapping[str, pa.DataType] | None, topic: str) -> None:
        self._rest, self._columns, self._topic = rest, columns, topic

    def leaf(self, test: ColumnTest) -> Leaf:
        if test.column in COLUMNS:
            return Leaf(test.column, test.sign, test.constants, pa.int64())
        name, kind = self._column(test)
        if not test.constants:
            return Leaf(stored_name(name), test.sign, (), kind)
        try:
            constants = [one for one in test.constants if isinstance(one, Constant)]
            if test.sign in ("in", "not in"):
                _check_listed(constants, kind)
            sign, values = _fitted(test.sign, [self._value(one, kind) for one in constants], kind)
        except ValueError as error:
            column = f"column {shown_name(name)!r} is {sql_type(kind)}"
            raise InvalidRequest(placed(self._rest.what, f"{column}: {error}", test.at)) from None
        ascending = tuple(sorted(set(values), key=order)) if sign in ("in", "not in") else values
        return Leaf(stored_name(name), sign, ascending, kind)

    def _column(self, test: ColumnTest) -> tuple[str, pa.DataType]:
        if self._columns is None:
            self._refuse(
                test,
                f"topic {self._topic!r} has no schema, so there is no column {test.column!r}; expected {_listed(())}",
            )
        columns = self._columns
        name = column_named(test.column, columns)
        if name is None:
            self._refuse(test, f"topic {self._topic!r} has no column {test.column!r}; expected {_listed(columns)}")
        kind = columns[name]
        if not has_order(kind) and test.constants:
            self._refuse(test, f"column {test.column!r} is {sql_type(kind)}, which cannot be compared with a constant")
        return name, kind

    def _refuse(self, test: ColumnTest, sentence: str) -> NoReturn:
        raise InvalidRequest(placed(self._rest.what, sentence, test.at))

    def _value(self, constant: Constant, kind: pa.DataType) -> Any:
        """Raises ValueError with a sentence."""
        types = pa.types
        if types.is_timestamp(kind):
            return self._time(constant, kind)
        if types.is_date(kind):
            return day(_of_kind(constant, ("text", "date"), "a date, as DATE '2026-01-31'"))
        if types.is_string(kind):
            return _text(_of_kind(constant, ("text",), "a text in quotes"))
        if types.is_boolean(kind):
            return _of_kind(constant, ("boolean",), "TRUE or FALSE").text == "true"
        if types.is_binary(kind):
            return bytes.fromhex(_of_kind(constant, ("binary",), "bytes in hex, as X'0AFF'").text)
        return _number(_of_kind(constant, ("number",), "a number"), kind)

    def _time(self, constant: Constant, kind: pa.DataType) -> int:
        if kind.tz is None:
            return local_time_us(
                _of_kind(constant, ("text", "date", "timestamp_ntz"), "a time without a zone, as '2026-01-31 10:00'")
            )
        kinds = ("text", "date", "timestamp", "timestamp_ltz")
        return time_us(_of_kind(constant, kinds, "a time, as '2026-01-31T10:00:00Z'"), self._rest.zone)


def _listed(columns: Iterable[str]) -> str:
    """The columns that a condition may test, of a topic with these data columns."""
    *most, last = [*COLUMNS, *map(shown_name, columns)]
    return f"{', '.join(most)} or {last}"


def _check_listed(constants: list[Constant], kind: pa.DataType) -> None:
    """Spark compares times in a list as times or as text, depending on its settings."""
    if pa.types.is_temporal(kind) and (wrong := next((one for one in constants if one.kind == "text"), None)):
        word = "DATE" if pa.types.is_date(kind) else "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
        raise ValueError(f"in a list, write {word} {wrong.shown}")


def _of_kind(constant: Constant, kinds: tuple[str, ...], expected: str) -> Constant:
    if constant.kind not in kinds:
        raise ValueError(f"it is compared with {expected}, and {constant.shown} is not one")
    return constant


def _text(constant: Constant) -> str:
    if not constant.text.isascii() and any("\ud800" <= character <= "\udfff" for character in constant.text):
        raise ValueError(f"{constant.text!a} has half of a pair of surrogates, which is no character")
    return constant.text


def _number(constant: Constant, kind: pa.DataType) -> Decimal | float:
    number = Decimal(constant.text)
    if pa.types.is_floating(kind):
        if isinf(float(number)):
            raise ValueError(f"{constant.shown} is out of range")
        if kind == pa.float32() and constant.text.lstrip("+-").isdecimal() and abs(number) > _FLOAT_INTEGER_MAX:
            raise ValueError(
                f"Spark rounds {constant.shown} or does not, depending on its settings: write {constant.shown}.0"
            )
        return float(number)
    if "e" in constant.text.lower():
        raise ValueError(f"Spark would compare rounded numbers: write {constant.shown} without an exponent")
    scale = max(0, -int(number.as_tuple().exponent))
    digits, of_column = max(1, number.adjusted() + 1), kind.precision - kind.scale if pa.types.is_decimal(kind) else 20
    if max(digits, of_column) + max(scale, kind.scale if pa.types.is_decimal(kind) else 0) > _DIGITS_MAX:
        raise ValueError(f"Spark would round to compare it with {constant.shown}, which has too many digits")
    return number


def _fitted(sign: str, values: list[Any], kind: pa.DataType) -> tuple[str, tuple[Any, ...]]:
    """A test with values of the column's type, apart from its range."""
    if not (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        return sign, tuple(values)
    scale = 0 if pa.types.is_integer(kind) else kind.scale
    low, high = ([_at_scale(value, scale, to) for value in values] for to in (ROUND_FLOOR, ROUND_CEILING))
    if sign in ("<", "<="):
        return ("<=" if low[0] != high[0] else sign), (low[0],)
    if sign in (">", ">="):
        return (">=" if low[0] != high[0] else sign), (high[0],)
    exact = tuple(one for one, other in zip(low, high, strict=True) if one == other)
    if exact:
        return sign, exact
    return ("never" if sign in ("=", "in") else "not null"), ()


def _at_scale(value: Decimal, scale: int, rounding: str) -> Any:
    found = value.quantize(Decimal(1).scaleb(-scale), rounding, _EXACT)
    return int(found) if scale == 0 else found


# --------------------------------------------------------------------------------------------------------- statistics


def _may_match(tree: Bound, stats: Stats) -> bool:
    if isinstance(tree, AllOf):
        return all(_may_match(one, stats) for one in tree.all)
    if isinstance(tree, AnyOf):
        return any(_may_match(one, stats) for one in tree.any)
    bounds = stats.get(tree.column[len(PREFIX) :])
    if bounds is None or tree.column in COLUMNS:
        return True
    try:
        return _may_have(tree, bounds)
    except (TypeError, ArithmeticError, ValueError):  # of another type than this pylog writes
        return True


def _may_have(leaf: Leaf, bounds: Bounds) -> bool:
    """Whether a column may have a value that passes the test."""
    if leaf.sign == "null":
        return bounds.nulls > 0
    if bounds.low is None or leaf.sign == "never":
        return False
    if leaf.sign == "not null":
        return True
    low, high = _ordered(bounds.low, leaf.type), None if bounds.high is None else _ordered(bounds.high, leaf.type)
    match leaf.sign:
        case "=" | "in":
            return _has_between(leaf.values, low, high)
        case "<>" | "not in":
            return low != high or not _has_between(leaf.values, low, low)
    value = order(leaf.values[0])
    match leaf.sign:
        case "<" | "<=":
            return bool(low < value if leaf.sign == "<" else low <= value)
        case _:
            return high is None or bool(high > value if leaf.sign == ">" else high >= value)


def _has_between(ascending: Sequence[Any], low: Any, high: Any) -> bool:
    """Whether one of the values is from `low` to `high`, which may be None for no end."""
    at = bisect_left(ascending, low, key=order)
    return at < len(ascending) and (high is None or bool(order(ascending[at]) <= high))


def _ordered(value: Any, kind: pa.DataType) -> Any:
    """A bound as a key for comparisons.  Doubles are rounded for a reader that began when the column was a FLOAT."""
    if kind == pa.float32() and isinstance(value, float):
        with np.errstate(over="ignore"):
            return order(float(np.float32(value)))
    return order(Decimal(value) if isinstance(value, str) and pa.types.is_decimal(kind) else value)


# ------------------------------------------------------------------------------------------------------------------ rows


def _mask(tree: Bound, records: pa.RecordBatch, offsets: npt.NDArray[np.int64], partition: int) -> Mask:
    if isinstance(tree, Leaf):
        if tree.column not in COLUMNS:
            return _of_column(tree, records.column(tree.column))
        if tree.column == "timestamp":
            return _of_numbers(tree, micros_of(records.column("timestamp")))
        return _of_numbers(tree, offsets if tree.column == "offset" else np.full(len(offsets), partition))
    masks = [_mask(one, records, offsets, partition) for one in tree[0]]
    return np.logical_and.reduce(masks) if isinstance(tree, AllOf) else np.logical_or.reduce(masks)


_COMPARE: dict[str, Callable[..., Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ABOVE, _BELOW = (">", ">=", "<>"), ("<", "<=", "<>")
"""Signs of the comparisons that are true for all values above, or below, a constant."""


def _of_numbers(leaf: Leaf, numbers: npt.NDArray[np.int64]) -> Mask:
    array = pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    )
    return _of_column(leaf, array)


def _of_column(leaf: Leaf, array: pa.Array) -> Mask:
    if leaf.sign == "null":
        return _as_mask(array.is_null())
    if leaf.sign == "never":
        return np.zeros(len(array), np.bool_)
    if leaf.sign == "not null":
        return _as_mask(array.is_valid())
    if pa.types.is_temporal(leaf.type):
        array = array.view(pa.int32() if pa.types.is_date(leaf.type) else pa.int64())
    if pa.types.is_floating(leaf.type):
        return _of_floats(leaf, array.cast(pa.float64()))
    if leaf.sign in ("in", "not in"):
        values = _within(leaf.values, array.type)
        found = _as_mask(pc.is_in(array, value_set=pa.array(values, array.type)))
        return found if leaf.sign == "in" else ~found & _as_mask(array.is_valid())
    if side := _side(leaf.values[0], array.type):
        passes = leaf.sign in (_ABOVE if side < 0 else _BELOW)
        return _as_mask(array.is_valid()) if passes else np.zeros(len(array), np.bool_)
    return _as_mask(_COMPARE[leaf.sign](array, pa.scalar(leaf.values[0], array.type)))


def _of_floats(leaf: Leaf, array: pa.Array) -> Mask:
    if leaf.sign in ("in", "not in"):
        values = [*leaf.values, *([-0.0, 0.0] if 0.0 in leaf.values else ())]  # for Arrow, a set has one of them
        found = _as_mask(pc.is_in(array, value_set=pa.array(values, pa.float64())))
        return found if leaf.sign == "in" else ~found & _as_mask(array.is_valid())
    found = _as_mask(_COMPARE[leaf.sign](array, leaf.values[0]))
    return found | _as_mask(pc.is_nan(array)) if leaf.sign in (">", ">=") else found


def _as_mask(array: pa.Array) -> Mask:
    """True where the array is true; nulls are not."""
    found: Mask = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return found


def _within(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """The values that a type can have."""
    ends = _ends(kind)
    return list(values) if ends is None else [value for value in values if ends[0] < value < ends[1]]


def _side(value: Any, kind: pa.DataType) -> int:
    """-1 or 1 for a value below or above all of a type, otherwise 0."""
    ends = _ends(kind)
    return 0 if ends is None else int(value >= ends[1]) - int(value <= ends[0])


def _ends(kind: pa.DataType) -> tuple[Any, Any] | None:
    """All values of a type of numbers are between these two."""
    if pa.types.is_integer(kind):
        return -(2 ** (kind.bit_width - 1)) - 1, 2 ** (kind.bit_width - 1)
    if pa.types.is_decimal(kind):
        limit = Decimal(10) ** (kind.precision - kind.scale)
        return -limit, limit
    return None
