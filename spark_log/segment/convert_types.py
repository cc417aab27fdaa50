"""Conversion of Arrow arrays to the types of a schema, at any depth: of rows that are written, and of older runs.

`why_not` decides by types alone whether an array may be converted at all; `converted` then fails only at values: a
number that does not fit, or one whose digits would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.schema.arrow_types import is_list, storable
from spark_log.schema.ddl import sql_type
from spark_log.segment.arrays.numpy_arrays import array_of, numbers_of, numbers_or

_t = pa.types


def why_not(given: pa.DataType, wanted: pa.DataType) -> str:
    """Why an array of a type cannot be converted; empty if it can.

    wanted:  a canonical type.
    """
    if _t.is_dictionary(given):
        return why_not(given.value_type, wanted)
    if given == wanted or _t.is_null(given):
        return ""
    if _t.is_struct(given) and _t.is_struct(wanted):
        return _why_not_fields(given, wanted)
    if is_list(given) and _t.is_list(wanted):
        return why_not(given.value_type, wanted.value_type)
    if _t.is_map(given) and _t.is_map(wanted):
        return why_not(given.key_type, wanted.key_type) or why_not(given.item_type, wanted.item_type)
    if _fits_by_value(given, wanted) or _is_same_kind(given, wanted):
        return ""
    if _t.is_timestamp(given) and _t.is_timestamp(wanted):
        return (
            "it has no time zone: give it one, or declare the column TIMESTAMP_NTZ"
            if given.tz is None
            else "it has a time zone: convert it to a local time, or declare the column TIMESTAMP"
        )
    return f"expected {sql_type(wanted)}, so cast it"


def _why_not_fields(given: pa.DataType, wanted: pa.DataType) -> str:
    there = {field.name.casefold(): field for field in wanted}
    for field in given:
        match = there.get(field.name.casefold())
        if match is None:
            return f"the schema has no field {field.name!r} there"
        if reason := why_not(field.type, match.type):
            return f"field {field.name!r} has type {field.type}, {reason}"
    return ""


def _fits_by_value(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Numbers: which ones fit is seen value by value."""
    if _t.is_integer(given):
        return bool(_t.is_integer(wanted) or _t.is_floating(wanted) or _t.is_decimal(wanted))
    if _t.is_floating(given):
        return bool(_t.is_floating(wanted) or _t.is_integer(wanted))
    return bool(_t.is_decimal(given) and _t.is_decimal(wanted))


def _is_same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Other types that differ only in their width or unit."""
    if _t.is_null(given) or _t.is_nested(given) or _t.is_nested(wanted):
        return False
    if _t.is_timestamp(given) and _t.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if _t.is_decimal(given) or _t.is_integer(given) or _t.is_floating(given):
        return False
    try:
        return bool(storable(pa.schema([("x", given)])).field("x").type == wanted)
    except ValueError:
        return False


def decoded(array: pa.Array) -> pa.Array:
    """The values of a dictionary-encoded array; another array as it is."""
    if not _t.is_dictionary(array.type):
        return array
    values = array.dictionary
    if _t.is_string_view(values.type):  # of Polars; Arrow cannot take values of views
        values = values.cast(pa.large_string())
    return values.take(array.indices)


def converted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The array in a canonical type.  Struct fields that it lacks are null, and those that `wanted` lacks are left out.

    Raises pa.ArrowInvalid for a value that does not fit.
    """
    if _t.is_dictionary(array.type):
        return converted(decoded(array), wanted)
    if array.type == wanted and not _t.is_nested(wanted):
        return array
    if _t.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if _t.is_struct(wanted):
        return _struct(array, wanted)
    if _t.is_list(wanted):
        return _list(array, wanted)
    if _t.is_map(wanted):
        return _map(array, wanted)
    if _t.is_floating(array.type) and wanted == pa.float32():
        return _as_float(array)
    if _t.is_integer(array.type) and _t.is_decimal(wanted):
        # Arrow refuses by type if not all integers fit: with room for all digits first, it refuses by value.
        array = array.cast(pa.decimal256(76, wanted.scale))
    return array.cast(wanted)


def _as_float(array: pa.Array) -> pa.Array:
    """Rounded to the nearest float, as numbers are anyway.  A finite number must stay finite."""
    found = array.cast(pa.float32(), safe=False)
    if pc.any(pc.and_(pc.is_inf(found), pc.is_finite(array))).as_py():
        raise pa.ArrowInvalid("a number is too large for FLOAT")
    return found


def _struct(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted, check_metadata=True):
        return array
    there = {field.name.casefold(): number for number, field in enumerate(array.type)}
    children = []
    for field in wanted:
        number = there.get(field.name.casefold())
        child = pa.nulls(len(array), field.type) if number is None else converted(array.field(number), field.type)
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=_mask(array))


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _list(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted, check_metadata=True):
        return array
    if not _t.is_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    offsets, first, last = _offsets(array)
    child = converted(array.values.slice(first, last - first), wanted.value_type)
    return pa.ListArray.from_arrays(offsets, child, type=wanted, mask=_mask(array))


def _map(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted, check_metadata=True):
        return array
    offsets, first, last = _offsets(array)
    keys = converted(array.keys.slice(first, last - first), wanted.key_type)
    items = converted(array.items.slice(first, last - first), wanted.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=_mask(array))


def _offsets(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Offsets of a list or map from 0 on, and the range of its values."""
    if not len(array):
        return array_of(np.zeros(1, np.int32), pa.int32()), 0, 0
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return array_of(offsets - offsets[0], pa.int32()), int(offsets[0]), int(offsets[-1])


def lacks_required(array: pa.Array, field: pa.Field) -> bool:
    """Whether a value is null where a field excludes it, at any depth.  array: in the field's type."""
    if not field.nullable and array.null_count:
        return True
    if not has_required(field.type):
        return False
    there = array.drop_null() if array.null_count else array
    if _t.is_struct(field.type):
        return any(lacks_required(there.field(number), child) for number, child in enumerate(field.type))
    if _t.is_list(field.type):
        return lacks_required(there.flatten(), field.type.value_field)
    _, first, last = _offsets(there)
    return lacks_required(there.items.slice(first, last - first), field.type.item_field)


def has_required(given: pa.DataType) -> bool:
    """Whether a type has inner fields that exclude null, besides the keys of maps."""
    if _t.is_struct(given):
        return any(not field.nullable or has_required(field.type) for field in given)
    if _t.is_list(given):
        return not given.value_field.nullable or has_required(given.value_type)
    if _t.is_map(given):
        return not given.item_field.nullable or has_required(given.item_type)
    return False


def is_text(array: pa.Array) -> bool:
    """Whether all texts in an array of a canonical type are UTF-8, at any depth.

    It looks at each array of texts alone: Arrow's check of a slice with others inside looks at all of these.
    """
    if _t.is_string(array.type):
        return _is_ascii(array) or is_utf8(array)
    if not _has_text(array.type):
        return True
    if _t.is_struct(array.type):
        return all(map(is_text, array.flatten()))
    if _t.is_list(array.type):
        return is_text(array.flatten())
    there = array.drop_null() if array.null_count else array
    _, first, last = _offsets(there)
    return all(is_text(part.slice(first, last - first)) for part in (there.keys, there.items))


def is_utf8(texts: pa.Array) -> bool:
    """Whether all strings of an array are UTF-8: Arrow does not look when it takes them."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_ascii(array: pa.Array) -> bool:
    """Whether all bytes of a text column are ASCII: ten times as fast as to look at each text."""
    if not len(array) or (data := array.buffers()[2]) is None:
        return True
    first, last = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)[[0, -1]]
    texts = np.frombuffer(data, np.uint8)[first:last]
    return not len(texts) or bool(texts.max() < 128)


def _has_text(given: pa.DataType) -> bool:
    return bool(_t.is_string(given)) or any(_has_text(given.field(n).type) for n in range(given.num_fields))


def value_bytes(array: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each value, without those of its place in the array; 0 for a null."""
    given = array.type
    if _t.is_struct(given):
        found = np.zeros(len(array), np.int64)
        for number in range(given.num_fields):
            found += value_bytes(array.field(number))
        return found
    if _t.is_list(given) or _t.is_map(given):
        offsets, first, last = _offsets(array)
        ends = np.concatenate(([0], np.cumsum(_entry_bytes(array, first, last))))
        return np.diff(ends[numbers_of(offsets)])
    if _t.is_string(given) or _t.is_binary(given):
        return numbers_or(0, pc.binary_length(array)).astype(np.int64)
    return np.full(len(array), max(1, given.bit_width // 8), np.int64)


def _entry_bytes(array: pa.Array, first: int, last: int) -> npt.NDArray[np.int64]:
    """Bytes of the elements of a list, or of the keys and values of a map, with those of their places."""
    if _t.is_list(array.type):
        return value_bytes(array.values.slice(first, last - first)) + 4
    children: Iterable[pa.Array] = (array.keys, array.items)
    return (
        sum((value_bytes(child.slice(first, last - first)) for child in children), np.zeros(last - first, np.int64)) + 8
    )
