"""The order of rows by data columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def sorted_rows(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The rows by these columns, as far as they have them, ascending, nulls last; equal rows keep their order."""
    keys = [(name, "ascending") for name in columns if name in rows.schema.names]
    if rows.num_rows < 2 or not keys:
        return rows
    order = pc.sort_indices(rows, sort_keys=keys)
    return pc.take(rows, order, boundscheck=False)
