"""Offsets of the records of a batch: a range if there are no holes, otherwise an array.

Most batches have no holes, and a range costs nothing.  Both are ascending, and `bisect` searches both.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets: TypeAlias = "range | npt.NDArray[np.int64]"
"""Ascending; a range where there are no holes."""


def shifted(offsets: Offsets, by: int) -> Offsets:
    """The offsets plus a number."""
    if isinstance(offsets, range):
        return range(offsets.start + by, offsets.stop + by)
    return offsets + by


def as_array(offsets: Offsets) -> npt.NDArray[np.int64]:
    """int64, one a record."""
    if isinstance(offsets, range):
        return np.arange(offsets.start, offsets.stop, dtype=np.int64)
    return offsets


def from_column(column: pa.Array) -> npt.NDArray[np.int64]:
    """The offsets in an int64 column without nulls, without a copy."""
    values = np.frombuffer(column.buffers()[1] or b"", np.int64)
    return values[column.offset : column.offset + len(column)]
