"""Statistics of data columns: the number of nulls, and the least and greatest value.  Pure.

They are of one batch, or of one run.  Texts and bytes are cut: a greatest value that was cut is raised, so that no
value is above it.  Floats are ordered as in Spark: NaN is equal to itself and greater than all others.

Encoded, they are msgpack: a list [name, nulls, least, greatest] for each column, or [name, nulls] if all values are
null.  Values are booleans, whole numbers (days of dates, microseconds of times), floats, texts (also decimals), or
bytes; a greatest value of nil is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.bounds import STATS_BYTES_MAX
from spark_log.schema.column_configs import AUTO
from spark_log.schema.names import PREFIX, column_named
from spark_log.segment.arrays.dictionaries import is_dictionary
from spark_log.segment.arrays.numpy_arrays import numbers_of
from spark_log.segment.schema import data_names

COLUMNS_MAX = 8
"""Columns with statistics."""
TEXT_BYTES_MAX = 16
"""A longer text is cut."""

Value: TypeAlias = bool | int | float | Decimal | str | bytes
_LIST = 0x90
"""The first byte of a short list in msgpack, together with its length."""
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode


class Bounds(NamedTuple):
    """Statistics of one column."""

    nulls: int
    low: Any = None
    """No value is below it; None: all values are null."""
    high: Any = None
    """No value is above it; None with a low: unknown."""


Stats: TypeAlias = dict[str, Bounds]
"""By the name of a data column."""


# ------------------------------------------------------------------------------------------------------------- columns


@lru_cache(maxsize=256)
def _chosen(names: tuple[str, ...], types: tuple[pa.DataType, ...], wanted: str) -> tuple[int, ...]:
    """Numbers of the columns, among the stored ones, that have statistics.

    By default, the first ones of numbers and times, then those of text, whose bounds say less.
    """
    kinds = {name: kind for name, kind in zip(names, types, strict=True) if name.startswith(PREFIX)}
    if wanted == AUTO:
        found = sorted(
            filter(lambda name: _is_default(kinds[name]), kinds), key=lambda name: pa.types.is_string(kinds[name])
        )
    else:
        columns = [name[len(PREFIX) :] for name in kinds]
        named = [column_named(name.strip(), columns) for name in wanted.split(",") if name.strip()]
        found = [f"{PREFIX}{name}" for name in named if name is not None and has_order(kinds[f"{PREFIX}{name}"])]
    return tuple(names.index(name) for name in found[:COLUMNS_MAX])


def columns_with_stats(schema: pa.Schema, wanted: str) -> tuple[int, ...]:
    """Numbers of the columns of a run that have statistics.  wanted: the topic's `stats.columns`."""
    return _chosen(tuple(schema.names), tuple(schema.types), wanted) if data_names(schema.names) else ()


def has_order(kind: pa.DataType) -> bool:
    """Whether values of a type can have statistics."""
    return _is_default(kind) or pa.types.is_boolean(kind) or pa.types.is_binary(kind)


def _is_default(kind: pa.DataType) -> bool:
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return bool(number or types.is_date(kind) or types.is_timestamp(kind) or types.is_string(kind))


# -------------------------------------------------------------------------------------------------------------- values


def stats_of(batch: pa.RecordBatch, columns: Sequence[int]) -> Stats:
    """The statistics of some columns of a batch, which may be stored as dictionaries."""
    found = {}
    for number in columns:
        is_short = is_dictionary(batch.schema.field(number))
        bounds = _bounds_of_dictionary(batch.column(number)) if is_short else _bounds(batch.column(number))
        if bounds is not None:
            found[batch.schema.names[number][len(PREFIX) :]] = bounds
    return found


def _bounds_of_dictionary(array: pa.StructArray) -> Bounds | None:
    """By the values that differ, which are fewer than the rows."""
    found = _bounds(array.field(1).flatten())
    return None if found is None else found._replace(nulls=array.field(0).null_count)


def _bounds(array: pa.Array) -> Bounds | None:
    """None: a text is not UTF-8."""
    if array.null_count == len(array):
        return Bounds(len(array))
    if pa.types.is_floating(array.type):
        return Bounds(array.null_count, *_float_ends(array))
    ends = pc.min_max(array)
    low, high = ends["min"], ends["max"]
    if pa.types.is_temporal(array.type):
        return Bounds(array.null_count, low.value, high.value)
    try:
        return Bounds(array.null_count, _cut(low.as_py()), _raised(high.as_py()))
    except UnicodeDecodeError:
        return None


def _float_ends(array: pa.Array) -> tuple[float, float]:
    values = numbers_of(array.drop_null())
    low, high = float(values.min()), float(values.max())
    if not math.isnan(high):  # for numpy, the greatest of values with a NaN is NaN
        return low, high
    numbers = values[~np.isnan(values)]
    return float(numbers.min()) if len(numbers) else high, high


def _cut(value: Any) -> Any:
    """A value that is not above this one, and short."""
    if isinstance(value, str):
        return _prefix(value)
    return value[:TEXT_BYTES_MAX] if isinstance(value, bytes) else value


def _raised(value: Any) -> Any:
    """A value that is not below this one, and short; None if there is none."""
    if isinstance(value, str) and (text := _prefix(value)) != value:
        return _next_text(text)
    if isinstance(value, bytes) and len(value) > TEXT_BYTES_MAX:
        return _next_bytes(value[:TEXT_BYTES_MAX])
    return value


def _prefix(text: str) -> str:
    return text[:TEXT_BYTES_MAX].encode()[:TEXT_BYTES_MAX].decode(errors="ignore")


def _next_text(text: str) -> str | None:
    """The least text of this length, or a shorter one, that is greater than all texts that begin with this one."""
    kept = text.rstrip("\U0010ffff")
    if not kept:
        return None
    last = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if last == 0xD800 else last)  # surrogates are no characters


def _next_bytes(data: bytes) -> bytes | None:
    kept = data.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


# ----------------------------------------------------------------------------------------------------- batches to a run


def joined(several: Sequence[Stats]) -> Stats:
    """The statistics of batches together."""
    if len(several) < 2:
        return several[0] if several else {}
    names = [name for name in several[0] if all(name in one for one in several)]
    return {name: _together([one[name] for one in several]) for name in names}


def _together(several: Sequence[Bounds]) -> Bounds:
    nulls = sum(one.nulls for one in several)
    there = [one for one in several if one.low is not None]
    if not there:
        return Bounds(nulls)
    low = min((one.low for one in there), key=order)
    highs = [one.high for one in there]
    return Bounds(nulls, low, None if None in highs else max(highs, key=order))


def order(value: Any) -> Any:
    """A key by which values of one column are compared: NaN is greater than all numbers."""
    if not isinstance(value, float):
        return value
    return (1, 0.0) if math.isnan(value) else (0, value)


# ------------------------------------------------------------------------------------------------------------- as bytes


def encode_stats(stats: Stats) -> bytes:
    """Statistics as bytes, without the columns for which `STATS_BYTES_MAX` has no room; empty if there are none."""
    rows: list[bytes] = []
    left = STATS_BYTES_MAX - 1
    for name, bounds in stats.items():
        row = _encode((name, *bounds) if bounds.low is not None else (name, bounds.nulls))
        if len(row) <= left:
            rows.append(row)
            left -= len(row)
    return bytes([_LIST | len(rows)]) + b"".join(rows) if rows else b""


def decode_stats(data: bytes) -> Stats:
    """The inverse of `encode_stats`, apart from decimals, which are texts; nothing for bytes of another format."""
    if not data:
        return {}
    try:
        return {name: Bounds(*bounds) for name, *bounds in _decode(data)}
    except (msgspec.DecodeError, TypeError, ValueError):
        return {}
