"""The statistics of a file for the log of a Delta table, from the footer of the file.  Pure.

Readers skip files by them, so what is left out costs time, and what is wrong loses rows.  Left out are the limits of

* floats, because Parquet's leave out NaN, which is the largest value for Spark,
* long texts, of which Delta has a prefix,
* bytes and booleans, which Delta has none of, and times that have no usual year,
* decimals of more than 18 digits, which not every pyarrow has,
* fields of nested columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TEXT_MAX = 32
"""Characters of a text that is a limit."""
YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999."""
DAY_US = 86_400_000_000
_encoder = msgspec.json.Encoder(decimal_format="number")


class Limits(NamedTuple):
    """The smallest and the largest value: a number, or a text."""

    low: Any
    high: Any


def statistics(footer: pq.FileMetaData) -> str:
    """The statistics of a file, in JSON."""
    low, high, nulls = {}, {}, {}
    for field, groups in _columns(footer):
        if not all(group is not None and group.has_null_count for group in groups):
            continue
        nulls[field.name] = sum(group.null_count for group in groups)
        limits = [_limits(field.type, group) for group in groups if group.num_values]
        known = [limit for limit in limits if limit is not None]
        if known and len(known) == len(limits):
            low[field.name] = _shown(field.type, min(limit.low for limit in known))
            high[field.name] = _shown(field.type, max(limit.high for limit in known))
    found = {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return _encoder.encode(found).decode()


def _columns(footer: pq.FileMetaData) -> Iterator[tuple[pa.Field, list[Any]]]:
    """The columns that are not nested, and the statistics of each of their row groups."""
    at = 0
    for field in footer.schema.to_arrow_schema():
        if not field.type.num_fields:
            yield field, [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
        at += _leaves(field.type)


def _leaves(kind: pa.DataType) -> int:
    """Columns of Parquet that a column has."""
    return sum(_leaves(kind.field(at).type) for at in range(kind.num_fields)) or 1


def _limits(kind: pa.DataType, group: Any) -> Limits | None:
    if not group.has_min_max:
        return None
    if pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and group.physical_type in ("INT32", "INT64")):
        return Limits(group.min_raw, group.max_raw)
    if pa.types.is_string(kind):
        return Limits(group.min, group.max) if max(len(group.min), len(group.max)) <= TEXT_MAX else None
    unit_us = DAY_US if pa.types.is_date(kind) else 1
    if pa.types.is_temporal(kind) and YEARS_US[0] <= group.min_raw * unit_us <= group.max_raw * unit_us <= YEARS_US[1]:
        return Limits(group.min_raw, group.max_raw)
    return None


def _shown(kind: pa.DataType, limit: Any) -> Any:
    if pa.types.is_date(kind):
        return str(np.datetime64(limit, "D"))
    if pa.types.is_timestamp(kind):
        return f"{np.datetime64(limit, 'us')}{'Z' if kind.tz else ''}"
    if pa.types.is_decimal(kind):
        return Decimal(limit).scaleb(-kind.scale)
    return limit
