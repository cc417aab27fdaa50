"""A few values of Python as an array, without pandas: see `numpy_arrays.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation, Overflow, Rounded
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from spark_log.segment.arrays.numpy_arrays import array_of, bits_of, flags_of

FEW = 1_000
"""Arrow's own conversion takes half as long for each value, so it is used for more than these."""

_t = pa.types
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH = _EPOCH_UTC.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)
_DAY_0 = date(1970, 1, 1).toordinal()
_EXACT = Context(prec=100, traps=[Rounded, InvalidOperation, Overflow])


def array_from(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """The array that `pa.array(values, kind)` makes, or its error."""
    if len(values) <= FEW:
        try:
            if (made := _made(values, kind)) is not None:
                return made
        except (ValueError, TypeError, ArithmeticError):
            pass  # Arrow says what is wrong
    return pa.array(values, kind)


def _made(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array | None:
    """None if a value or the type is not one of the common ones.  Raises some error for values that do not fit."""
    types = set(map(type, values))
    given = types - {type(None)}
    if kind is None and given <= {int}:
        kind = pa.int64() if given else pa.null()
    if kind is None:
        return None
    if not given:
        return pa.nulls(len(values), kind)
    make = next((make for is_it, accepted, make in _MAKERS if is_it(kind) and given <= accepted), None)
    if make is None:
        return None
    if given == types:
        return make(values, kind, None)
    return make(values, kind, bits_of(np.fromiter((one is not None for one in values), np.bool_, len(values))))


def _or(other: Any, values: Sequence[Any]) -> list[Any]:
    return [other if one is None else one for one in values]


def _bytes(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    data = [one.encode() if type(one) is str else one or b"" for one in values]
    buffers = [known, _ends(data), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(kind, len(data), buffers)


def _ends(parts: Sequence[Any]) -> pa.Buffer:
    """Offsets of parts of these lengths.  Raises OverflowError if they are too large for one array."""
    ends = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=ends[1:])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError
    return pa.py_buffer(ends.astype(np.int32))


def _numbers(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    """Raises OverflowError for an integer outside of the type: numpy before version 2 does not."""
    wide = np.array(_or(0, values), np.float64 if _t.is_floating(kind) else np.int64)
    with np.errstate(over="ignore"):
        numbers = wide.astype(f"{'u' if _t.is_unsigned_integer(kind) else wide.dtype.kind}{kind.bit_width // 8}")
    if wide.dtype.kind == "i" and (numbers != wide).any():
        raise OverflowError
    return pa.Array.from_buffers(kind, len(values), [known, array_of(numbers, kind).buffers()[1]])


def _flags(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [known, flags_of(np.array(_or(False, values))).buffers()[1]])


def _times(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    """Raises TypeError for a time with a zone in a type without one, and the reverse."""
    epoch = _EPOCH if kind.tz is None else _EPOCH_UTC
    return _numbers([(one - epoch) // _MICROSECOND for one in _or(epoch, values)], pa.int64(), known).view(kind)


def _dates(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    days = [None if one is None else one.toordinal() - _DAY_0 for one in values]
    return _numbers(days, pa.int32(), known).view(kind)


def _decimals(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    scaled = [one.scaleb(kind.scale, _EXACT) for one in _or(Decimal(0), values)]
    if max(one.adjusted() for one in scaled) > kind.precision:  # before a number of a million digits is made
        raise OverflowError
    whole = [int(one) for one in scaled]
    if whole != scaled or max(map(abs, whole)) >= 10**kind.precision:
        raise OverflowError
    data = b"".join(one.to_bytes(16, "little", signed=True) for one in whole)
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(data)])


def _lists(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    parts = _or((), values)
    inner = array_from(list(chain.from_iterable(parts)), kind.value_type)
    return pa.Array.from_buffers(kind, len(values), [known, _ends(parts)], children=[inner])


def _structs(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    parts = _or({}, values)
    children = [array_from([one.get(field.name) for one in parts], field.type) for field in kind]
    return pa.Array.from_buffers(kind, len(values), [known], children=children)


def _maps(values: Sequence[Any], kind: pa.DataType, known: pa.Buffer | None) -> pa.Array:
    parts = _or({}, values)
    keys = array_from(list(chain.from_iterable(parts)), kind.key_type)
    items = array_from([one for part in parts for one in part.values()], kind.item_type)
    if keys.null_count:
        raise ValueError
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(values), [known, _ends(parts)], children=[entries])


_Make = Callable[[Sequence[Any], pa.DataType, pa.Buffer | None], pa.Array]
_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], set[type], _Make], ...] = (
    (_t.is_binary, {bytes, str}, _bytes),
    (_t.is_string, {str}, _bytes),
    (_t.is_integer, {int}, _numbers),
    (lambda kind: bool(_t.is_float32(kind) or _t.is_float64(kind)), {float}, _numbers),
    (_t.is_boolean, {bool}, _flags),
    (lambda kind: bool(_t.is_timestamp(kind)) and kind.unit == "us", {datetime}, _times),
    (_t.is_date32, {date}, _dates),
    (_t.is_decimal128, {Decimal}, _decimals),
    (_t.is_list, {list, tuple}, _lists),
    (_t.is_struct, {dict}, _structs),
    (_t.is_map, {dict}, _maps),
)
