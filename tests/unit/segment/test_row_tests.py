"""Conditions on data columns over statistics that were written by another version of the schema."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_log.conditions import as_condition
from spark_log.errors import InvalidRequest
from spark_log.segment.convert import converted
from spark_log.segment.row_tests import RowTests, row_tests
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
