"""Between Arrow and numpy without a copy, and without pandas.

Arrow imports pandas, if it is installed, with the first `to_numpy`, `pa.scalar`, or `pa.array` of values.  That takes
0.35 s of CPU in each new process.  The functions here do not, so a process that only reads never imports it; nor does
one that writes, with `few_values.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KEPT_ROWS = 10_000
"""Rows of the columns of one value that are kept."""


def numbers_of(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values of an array of numbers without nulls."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return np.from_dlpack(array)


def micros_of(stamps: pa.Array) -> npt.NDArray[np.int64]:
    """Timestamps without nulls, in microseconds."""
    return numbers_of(stamps.view(pa.int64()))


def mask_of(flags: pa.Array) -> npt.NDArray[np.bool_]:
    """Booleans without nulls."""
    return numbers_of(flags.cast(pa.uint8())).view(np.bool_)


def numbers_or(other: int, array: pa.Array) -> npt.NDArray[Any]:
    """The values of an array of integers, and another value for each null."""
    return numbers_of(pc.fill_null(array, scalar_of(other, array.type)) if array.null_count else array)


def array_of(numbers: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Numbers as an array of this type, which has as many bytes for each."""
    if numbers.itemsize * 8 != kind.bit_width:
        raise AssertionError(f"{numbers.dtype} cannot become {kind}, which has {kind.bit_width} bits")
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def scalar_of(number: int, kind: pa.DataType) -> pa.Scalar:
    """A number of an integer or temporal type."""
    return array_of(np.array([number], f"i{kind.bit_width // 8}"), kind)[0]


def flags_of(mask: npt.NDArray[np.bool_]) -> pa.Array:
    """A mask as booleans."""
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits_of(mask)])


def bits_of(mask: npt.NDArray[np.bool_]) -> pa.Buffer:
    """A mask in Arrow's form."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def repeated(value: str | int, count: int) -> pa.Array:
    """A column of one value: strings, or 32-bit integers.

    Large ones are sliced from one that is kept: a fifth of the cost of making each.
    """
    return _repeated(value, max(count, KEPT_ROWS)).slice(0, count)


@lru_cache(maxsize=8)
def _repeated(value: str | int, count: int) -> pa.Array:
    if isinstance(value, int):
        return array_of(np.full(count, value, np.int32), pa.int32())
    data = value.encode()
    ends = np.arange(count + 1, dtype=np.int64) * len(data)
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{count} strings of {len(data)} bytes are too large for one array")
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data * count))
