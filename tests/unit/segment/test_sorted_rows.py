"""The order of rows by data columns."""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_log.segment.row_sorter import sorted_rows

TYPES = {
    "text": (pa.string(), ["a", "b", None, "ä"]),
    "bytes": (pa.binary(), [b"", b"\xff", None]),
    "flag": (pa.bool_(), [True, False, None]),
    "price": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-2.00"), None]),
    "at": (pa.timestamp("us", "UTC"), [0, -1, None]),
    "day": (pa.date32(), [0, 9, None]),
    "ratio": (pa.float64(), [0.5, -1.0, None]),
}


# Promise: tasks/typed.md#order
@pytest.mark.parametrize("name", TYPES)
def test_rows_are_sorted_nulls_last_and_equal_rows_keep_their_order(name: str) -> None:
    kind, values = TYPES[name]
    rng = random.Random(1)
    given = pa.array([rng.choice(values) for _ in range(200)], kind)
    rows = pa.record_batch({"value.x": given, "value.y": pa.array([n % 2 for n in range(200)]), "n": range(200)})
    found = sorted_rows(rows, ["value.x", "value.y", "value.missing"]).to_pylist()
    there = [row for row in rows.to_pylist() if row["value.x"] is not None]
    null = [row for row in rows.to_pylist() if row["value.x"] is None]
    assert found == [
        *sorted(there, key=lambda row: (row["value.x"], row["value.y"])),
        *sorted(null, key=lambda row: row["value.y"]),
    ]


def test_without_columns_rows_stay_as_they_are() -> None:
    rows = pa.record_batch({"value.x": [2, 1]})
    assert sorted_rows(rows, []) is rows and sorted_rows(rows, ["value.y"]) is rows
