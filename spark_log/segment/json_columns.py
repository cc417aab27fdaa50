"""JSON objects as columns, whole batches at a time: Arrow's JSON reader, where its values are those of json_values.py.

The texts are lines for Arrow, so they must not end or begin within each other.  Each begins with `{`, which Arrow
accepts behind a `}` only outside of all objects, and Arrow refuses line ends and control characters in strings.  So if
there are as many objects as texts, each text is one object.

Arrow's reader gives texts in place of times and bytes; they are converted if all of them have the common form.
"""

from __future__ import annotations

import binascii
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.segment.arrays.numpy_arrays import array_of, mask_of, numbers_of
from spark_log.segment.arrays.python_values import DIGITS_MAX
from spark_log.segment.convert_types import is_text

TEXTS_MIN = 100
"""For fewer, the fixed cost of Arrow's reader is more than that of reading one by one."""
LINE = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\n")])[0]
OPEN, CLOSE, NUL, LINE_END = b"{}\0\n"
DAY = r"[1-9]\d{3}-\d\d-\d\d"
TIME = rf"^{DAY}[T ]\d\d:\d\d:\d\d(\.\d{{3}}(\d{{3}})?)?"
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
EXPONENT = r'[:\[,]\s*[-.0-9]+[eE]|"[-+.0-9]+[eE][-+0-9]+"|"[-+.0-9eE]*\\u00[2-46]'
"""Numbers with an exponent: for a decimal, Arrow takes some of them for 0, and crashes with others.  They may be texts,
also with escapes."""
_t = pa.types


class _NotCommon(Exception):
    """The texts have to be read one by one."""


def columns_of_json(texts: pa.Array, kind: pa.StructType) -> pa.StructArray | None:
    """JSON objects as structs of a canonical type; null for null.  None: they have to be read one by one.

    Fields that the type lacks are not accepted.
    """
    there = texts.drop_null() if texts.null_count else texts
    if len(there) < TEXTS_MIN or texts.type != pa.binary() or (read := _readable(kind)) is None:
        return None
    try:
        found = _typed(_objects(there, read), kind)
    except (_NotCommon, pa.ArrowException):
        return None
    if len(there) == len(texts):
        return found
    given = mask_of(texts.is_valid())
    return found.take(pa.array(np.cumsum(given) - given, mask=~given))


@lru_cache(maxsize=256)
def _readable(kind: pa.DataType) -> pa.DataType | None:
    """The type that Arrow reads in place of a canonical one; None: there is none."""
    if _t.is_struct(kind):
        inner = [(field.name, _readable(field.type)) for field in kind]
        return None if any(one is None for _, one in inner) else pa.struct(inner)
    if _t.is_list(kind):
        item = _readable(kind.value_type)
        return None if item is None else pa.list_(item)
    if _t.is_boolean(kind) or _t.is_integer(kind) or _t.is_decimal(kind):
        return kind
    if _t.is_floating(kind):
        return pa.float64()
    is_string = _t.is_string(kind) or _t.is_binary(kind) or _t.is_timestamp(kind) or _t.is_date(kind)
    return pa.string() if is_string else None


def _objects(texts: pa.Array, read: pa.StructType) -> pa.StructArray:
    """Arrow's objects of texts, none of which is null."""
    from pyarrow import json  # not with the package: most processes read no JSON

    texts.cast(pa.string())  # checks that they are UTF-8
    bounds, data = _bytes(texts)
    sizes = np.diff(bounds)
    if sizes.min() < 2 or (data[bounds[:-1]] != OPEN).any() or (data[bounds[1:] - 1] != CLOSE).any():
        raise _NotCommon
    inside = data[bounds[0] : bounds[-1]]
    if (inside == NUL).any():  # Arrow takes it for the end
        raise _NotCommon
    if (inside == LINE_END).any():
        texts = pc.replace_substring(texts, "\n", "\r")
    lines = pa.ListArray.from_arrays(array_of(np.array([0, len(texts)], np.int32), pa.int32()), texts)
    together = pc.binary_join(lines, LINE)
    scales = _scales(read)
    if scales and pc.match_substring_regex(together, f"{EXPONENT}|{_too_long(max(scales))}")[0].as_py():
        raise _NotCommon
    joined = together.buffers()[2]
    table = json.read_json(
        pa.BufferReader(joined),
        json.ReadOptions(use_threads=False, block_size=joined.size + 1),
        json.ParseOptions(explicit_schema=pa.schema(list(read)), unexpected_field_behavior="error"),
    )
    if table.num_rows != len(texts):
        raise _NotCommon
    return pa.StructArray.from_arrays(
        [column.combine_chunks() for column in table.select(read.names).columns], fields=list(read)
    )


@lru_cache(maxsize=256)
def _scales(kind: pa.DataType) -> set[int]:
    """The digits behind the point of each decimal in a type."""
    if _t.is_decimal(kind):
        return {kind.scale}
    return set().union(*(_scales(kind.field(number).type) for number in range(kind.num_fields)))


def _too_long(scale: int) -> str:
    """Numbers with so many digits before the point that Arrow has no room for those behind it: the sum overflows."""
    return rf'[:\[,]\s*"?[-+]?0*[1-9][0-9]{{{DIGITS_MAX - scale}}}'


def _bytes(texts: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Where each text begins and the last one ends, and the bytes of all."""
    bounds = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
    return bounds, np.frombuffer(texts.buffers()[2] or b"", np.uint8)


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array that Arrow has read, in the canonical type."""
    if _t.is_struct(kind):
        children = [_typed(array.field(number), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls(array))
    if _t.is_list(kind):
        items = _typed(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=_nulls(array))
    if _t.is_floating(kind):
        return _checked_floats(array, kind)
    if _t.is_decimal(kind):
        return _checked_decimals(array, kind)
    if _t.is_timestamp(kind):
        return _checked(array, TIME + (r"Z$" if kind.tz is not None else "$")).cast(kind)
    if _t.is_date(kind):
        return _checked(array, f"^{DAY}$").cast(kind)
    if _t.is_binary(kind):
        return _from_base64(_checked(array, BASE64))
    if _t.is_string(kind) and not is_text(array):
        raise _NotCommon
    return array


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _checked(texts: pa.Array, pattern: str) -> pa.Array:
    if pc.all(pc.match_substring_regex(texts, pattern)).as_py() is False:
        raise _NotCommon
    return texts


def _checked_floats(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Without numbers that are too large, and without -0, whose sign counts only in some of its forms."""
    numbers = numbers_of(pc.fill_null(array, _one(array.type)) if array.null_count else array)
    if not np.isfinite(numbers).all() or (np.signbit(numbers) & (numbers == 0)).any():
        raise _NotCommon
    found = array.cast(kind, safe=False)
    if kind != array.type and not pc.all(pc.is_finite(found)).as_py() and len(found) > found.null_count:
        raise _NotCommon
    return found


def _one(kind: pa.DataType) -> pa.Scalar:
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.ones(1))])[0]


def _checked_decimals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow compares the digits with the type before it adds those behind the point."""
    ends: dict[str, Any] = pc.min_max(array).as_py()
    if ends["min"] is not None and max(abs(ends["min"]), abs(ends["max"])) >= 10 ** (kind.precision - kind.scale):
        raise _NotCommon
    return array


def _from_base64(texts: pa.Array) -> pa.Array:
    """All texts are decoded together, with `A` in place of `=`."""
    filled = pc.fill_null(texts, "") if texts.null_count else texts
    bounds, data = _bytes(filled)
    together = data[bounds[0] : bounds[-1]].tobytes()
    decoded = binascii.a2b_base64(together.translate(bytes.maketrans(b"=", b"A")))
    starts = (bounds - bounds[0]).astype(np.int32) // 4 * 3
    ends = starts[1:] - numbers_of(pc.count_substring(filled, "="))
    places = np.column_stack((starts[:-1], ends)).ravel()
    all_bounds = pa.py_buffer(np.append(places, starts[-1:]).astype(np.int32))
    pieces = pa.Array.from_buffers(pa.binary(), len(places), [None, all_bounds, pa.py_buffer(decoded)])
    missing = None if not texts.null_count else mask_of(texts.is_null())
    return pieces.take(pa.array(np.arange(0, len(places), 2), mask=missing))
