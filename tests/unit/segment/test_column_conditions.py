"""Conditions on data columns over statistics that were written by another version of the schema."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_log.conditions import as_condition
from spark_log.errors import InvalidRequest
from spark_log.segment.column_conditions import Leaf, RowTests, row_tests
from spark_log.segment.convert_types import converted
from spark_log.segment.statistics import encode_stats, stats_of


def bound_tests(where: str, kind: pa.DataType) -> RowTests:
    rest = as_condition(where).rest
    assert rest is not None
    return row_tests(rest, {"f": kind}, "t")


@pytest.mark.parametrize(
    ("value", "where"),
    [(0.1, "f > 0.1"), (0.1, "f = 0.10000000149011612"), (1e-50, "f = 0"), (0.7, "f < 0.7"), (1e39, "f > 1")],
)
def test_a_reader_that_began_when_a_double_was_a_float_skips_by_rounded_bounds(value: float, where: str) -> None:
    """Its rows are rounded, too, and match.  Those that are too large fail, and are not skipped."""
    batch = pa.RecordBatch.from_pydict({"value.f": pa.array([value])})
    tests = bound_tests(where, pa.float32())
    assert tests.may_match(encode_stats(stats_of(batch, [0])))
    if value < 1e38:
        read = pa.RecordBatch.from_pydict({"value.f": converted(batch.column(0), pa.float32())})
        assert tests.mask(read, np.array([0]), 0).tolist() == [True]


def test_a_constant_out_of_range_is_refused() -> None:
    """As by Spark; it is not infinity."""
    with pytest.raises(InvalidRequest, match="column 'f' is DOUBLE: 1e400 is out of range"):
        bound_tests("f < 1e400", pa.float64())


VALUES: dict[pa.DataType, list[Any]] = {
    pa.int32(): [-(2**31), -2, 0, 1, 2, 3, 5, 8, 2**31 - 1],
    pa.float64(): [float("-inf"), -1.5, -0.0, 0.0, 0.25, 1.5, float("inf"), float("nan")],
    pa.string(): ["", "a", "aa", "b", "ba", "\ue000", "\U0001f600"],
    pa.decimal128(6, 2): [Decimal(text) for text in ("-1.25", "0.00", "1.10", "1.25", "9999.99")],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("sign", ["in", "not in"])
def test_a_list_is_looked_up_as_its_values_one_by_one(kind: pa.DataType, sign: str) -> None:
    """In any order and with duplicates: the rows are the same, and exactly what is outside of the bounds is skipped."""
    rng = random.Random(7)
    constants = [value for value in VALUES[kind] if isinstance(value, str) or abs(value) < float("inf")]
    for _ in range(60):
        listed = rng.choices(constants, k=rng.randrange(1, 6))
        batch = pa.RecordBatch.from_pydict({"value.f": pa.array([*rng.choices(VALUES[kind], k=2), None], kind)})
        tests = bound_tests(f"f {sign} ({', '.join(map(as_sql, listed))})", kind)
        values = [value for value in batch.column(0).to_pylist() if value is not None]
        expected = [(value in listed) == (sign == "in") for value in values]
        assert tests.mask(batch, np.arange(3), 0).tolist() == [*expected, False]
        assert tests.may_match(encode_stats(stats_of(batch, [0]))) >= any(expected)
        if sign == "in" and kind != pa.float64():
            between = any(min(values) <= value <= max(values) for value in listed)
            assert tests.may_match(encode_stats(stats_of(batch, [0]))) == between


def as_sql(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


class Counted(int):
    """A number that counts how often numbers are compared with it."""

    compared = 0

    def _count(self, found: bool) -> bool:
        Counted.compared += 1
        return found

    def __lt__(self, other: int) -> bool:
        return self._count(int(self) < other)

    def __le__(self, other: int) -> bool:
        return self._count(int(self) <= other)

    def __ge__(self, other: int) -> bool:
        return self._count(int(self) >= other)


@pytest.mark.parametrize("sign", ["in", "not in"])
def test_a_long_list_is_bisected_for_each_slice(sign: str) -> None:
    """10,000 constants cost about as many comparisons as there are bits in their count, whatever the bounds are."""
    tests = RowTests(Leaf("value.f", sign, tuple(map(Counted, range(0, 20_000, 2))), pa.int32()), ("value.f",))
    for low in (-5, 1, 9_999, 10_000, 19_999, 30_000):
        stats = encode_stats(stats_of(pa.RecordBatch.from_pydict({"value.f": [low]}), [0]))
        Counted.compared = 0
        is_listed = 0 <= low < 20_000 and low % 2 == 0
        assert tests.may_match(stats) == (is_listed == (sign == "in"))
        assert Counted.compared <= 16
