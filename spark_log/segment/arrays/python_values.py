"""Python values as arrays of a type, without a silent conversion: Arrow drops unknown keys and digits of floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import pyarrow as pa

from spark_log.errors import InvalidRecord
from spark_log.schema.ddl import sql_type
from spark_log.segment.arrays.few_values import array_from
from spark_log.segment.record_columns import typed_array
from spark_log.text import shown, type_of

DIGITS_MAX = 38
"""The most digits that a decimal of Arrow has."""

_t = pa.types
_Check = Callable[[Any], str]
"""Why a value, which is not None, does not have the type; empty if it does."""


def array_of(name: str, values: Sequence[Any], kind: pa.DataType | None, first: int) -> pa.Array:
    """The values as an array.

    kind:   None: the type follows from the values.
    first:  number of the first row, for messages.
    Raises InvalidRecord with the column and the row.
    """
    if kind is None:
        return typed_array(name, values, None)
    array, errors = array_or_errors(name, values, kind)
    for row, error in errors.items():
        raise InvalidRecord(f"row {row + first:,}: {error}") from error
    return array


def array_or_errors(name: str, values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, InvalidRecord]]:
    """The values as an array, with null instead of those that do not fit; and the errors of these, by row."""
    reasons = {
        row: reason for row, value in enumerate(values) if value is not None and (reason := _why_not(value, kind))
    }
    errors = {row: InvalidRecord(f"column {name!r}: {reason}") for row, reason in reasons.items()}
    found = [None if row in errors else value for row, value in enumerate(values)] if errors else values
    try:
        return array_from(found, kind), errors
    except Exception:  # noqa: BLE001  a value may be anything
        errors |= _unfit(name, found, kind)
        return pa.array([None if row in errors else value for row, value in enumerate(found)], kind), errors


def _why_not(value: Any, kind: pa.DataType) -> str:
    """Why a value does not have a type; empty if it does."""
    try:
        return checker(kind)(value)
    except Exception as error:  # noqa: BLE001
        return f"a value cannot be read: {shown(error, str)}"


def _unfit(name: str, values: Sequence[Any], kind: pa.DataType) -> dict[int, InvalidRecord]:
    reasons = {row: misfit(value, kind) for row, value in enumerate(values)}
    return {row: InvalidRecord(f"column {name!r}: {reason}") for row, reason in reasons.items() if reason}


def misfit(value: Any, kind: pa.DataType) -> str:
    """Why a value does not fit a type, although it passes the type's check: the field, its value and its type.

    Empty if it fits.
    """
    try:
        pa.array([value], kind)
    except Exception as error:  # noqa: BLE001  a value may be anything
        with suppress(Exception):
            for where, part, inner in _parts(value, kind):
                if part is not None and (reason := misfit(part, inner)):
                    return f"{where}{reason}"
        return f"{shown(value, str):.80} does not fit {sql_type(kind)}: {_limits(value, kind) or shown(error, str)}"
    return ""


def _parts(value: Any, kind: pa.DataType) -> Iterator[tuple[str, Any, pa.DataType]]:
    """The parts of a value with their types, each after the words that begin its message."""
    if _t.is_struct(kind):
        yield from ((f"field {field.name!r}: ", value.get(field.name), field.type) for field in kind)
    elif _t.is_list(kind):
        yield from (("", item, kind.value_type) for item in value)
    elif _t.is_map(kind):
        for key, item in value.items():
            yield f"at {shown(key)}: ", key, kind.key_type
            yield f"at {shown(key)}: ", item, kind.item_type


def _limits(value: Any, kind: pa.DataType) -> str:
    """The limits of a type of numbers."""
    if _t.is_integer(kind) and isinstance(value, int):
        most = 1 << (kind.bit_width - 1)
        return f"expected {-most} to {most - 1}"
    if _t.is_decimal(kind) and isinstance(value, int | Decimal):
        return f"expected at most {kind.precision - kind.scale} digits before the point and {kind.scale} after it"
    return ""


@lru_cache(maxsize=256)
def checker(kind: pa.DataType) -> _Check:
    """A check of Python values for a canonical type."""
    if _t.is_struct(kind):
        return _struct(kind)
    if _t.is_list(kind):
        return _list(kind)
    if _t.is_map(kind):
        return _map(kind)
    if _t.is_timestamp(kind):
        return _timestamp(kind)
    if _t.is_decimal(kind):
        return _decimal(kind)
    return _leaf(kind)


_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (_t.is_boolean, (bool,)),
    (_t.is_integer, (Integral,)),
    (_t.is_floating, (Real,)),
    (_t.is_decimal, (Decimal, Integral)),
    (_t.is_string, (str,)),
    (_t.is_binary, (bytes, bytearray, memoryview)),
    (_t.is_date, (date,)),
)


def _leaf(kind: pa.DataType) -> _Check:
    accepted = next(types for is_it, types in _LEAVES if is_it(kind))
    refused = (datetime,) if _t.is_date(kind) else () if _t.is_boolean(kind) else (bool,)

    def check(value: Any) -> str:
        if isinstance(value, accepted) and not isinstance(value, refused):
            return ""
        return f"{shown(value)} is {type_of(value)}, expected {sql_type(kind)}"

    return check


def _decimal(kind: pa.DataType) -> _Check:
    """Arrow may crash if a number has many more digits than the type."""
    of_type = _leaf(kind)

    def check(value: Any) -> str:
        if reason := of_type(value):
            return reason
        if not isinstance(value, Decimal):
            return ""
        first = value.adjusted()
        if -kind.scale <= first < kind.precision - kind.scale or not (value or abs(first) > DIGITS_MAX):
            return ""
        return f"{value!s:.80} does not fit {sql_type(kind)}: {_limits(value, kind)}"

    return check


def _timestamp(kind: pa.DataType) -> _Check:
    def check(value: Any) -> str:
        if not isinstance(value, datetime):
            return f"{shown(value)} is {type_of(value)}, expected a datetime"
        if (value.tzinfo is None) == (kind.tz is None):
            return ""
        if value.tzinfo is None:
            return f"{value} has no time zone: give it one, or declare the column TIMESTAMP_NTZ"
        return f"{value} has a time zone: convert it to a local time, or declare the column TIMESTAMP"

    return check


def _struct(kind: pa.DataType) -> _Check:
    checks = {field.name: checker(field.type) for field in kind}

    def check(value: Any) -> str:
        if not isinstance(value, Mapping):
            return f"{shown(value)} is {type_of(value)}, expected a dict"
        for name, item in value.items():
            if name not in checks:
                return f"the schema has no field {shown(name)} there"
            if item is not None and (reason := checks[name](item)):
                return f"field {shown(name)}: {reason}"
        return ""

    return check


def _list(kind: pa.DataType) -> _Check:
    inner = checker(kind.value_type)

    def check(value: Any) -> str:
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
            return f"{shown(value)} is {type_of(value)}, expected a list"
        return next((reason for item in value if item is not None and (reason := inner(item))), "")

    return check


def _map(kind: pa.DataType) -> _Check:
    of_key, of_item = checker(kind.key_type), checker(kind.item_type)

    def check(value: Any) -> str:
        if not isinstance(value, Mapping):
            return f"{shown(value)} is {type_of(value)}, expected a dict"
        for key, item in value.items():
            if reason := of_key(key) or ("" if item is None else of_item(item)):
                return f"at {shown(key)}: {reason}"
        return ""

    return check
