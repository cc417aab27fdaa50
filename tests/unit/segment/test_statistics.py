"""Statistics of data columns: never narrower than the values."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.bounds import STATS_BYTES_MAX
from spark_log.schema.column_configs import AUTO
from spark_log.schema.topic_schema import as_schema
from spark_log.segment.arrays.dictionaries import with_dictionaries
from spark_log.segment.statistics import (
    Bounds,
    columns_with_stats,
    decode_stats,
    encode_stats,
    joined,
    order,
    stats_of,
)

TEXTS = st.text(st.sampled_from("aé\u07ff\ud7ff\ue000\uffff\U0001f600\U0010ffff"), max_size=20)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=20) | st.integers(0, 20).map(lambda size: b"\xff" * size),
    pa.decimal128(38, 10): st.integers(-(10**27) + 1, 10**27 - 1).map(lambda n: Decimal(n).scaleb(-10)),
    pa.date32(): st.dates(),
    pa.timestamp("us", tz="UTC"): st.integers(-(2**62), 2**62),
    pa.timestamp("us"): st.integers(-(2**62), 2**62),
}


def typed_batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({f"value.{name}": array for name, array in columns.items()})


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from(sorted(VALUES, key=str)))
    return pa.array(draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=8)), kind)


def is_within(value: Any, bounds: Bounds) -> bool:
    low, high = (Decimal(v) if isinstance(value, Decimal) and isinstance(v, str) else v for v in bounds[1:])
    return order(low) <= order(value) and (high is None or order(value) <= order(high))


@pytest.mark.parametrize("texts", [["b", "a", None, "b"], [None, None], ["x" * 20, "y"]])
def test_a_dictionary_has_the_bounds_of_its_rows(texts: list[str | None]) -> None:
    batch = typed_batch({"a": pa.array(texts, pa.string())})
    assert stats_of(with_dictionaries(batch, ["value.a"]), [0]) == stats_of(batch, [0])


# Promise: format/segment.md#statistics, tasks/typed.md#skip-what-cannot-match
@settings(max_examples=150, deadline=None)
@given(arrays(), st.integers(1, 8))
def test_all_values_are_within_the_bounds(array: pa.Array, size: int) -> None:
    """Of one batch, and of several together; nulls are counted; NaN is above all others."""
    parts = [array.slice(start, size) for start in range(0, len(array), size)]
    found = joined([stats_of(typed_batch({"a": part}), [0]) for part in parts])
    bounds = decode_stats(encode_stats(found))["a"]
    assert bounds.nulls == array.null_count
    values = array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array
    values = values.view(pa.int32()) if pa.types.is_date(array.type) else values
    there = [value for value in values.to_pylist() if value is not None]
    assert (bounds.low is None) == (not there)
    assert all(is_within(value, bounds) for value in there)
    if any(isinstance(value, float) and math.isnan(value) for value in there):
        assert math.isnan(bounds.high)


# Promise: format/segment.md#statistics
@pytest.mark.parametrize(
    ("text", "high"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("é" * 9, "é" * 7 + "ê"),
        ("a" * 15 + "é", "a" * 14 + "b"),
        ("\ud7ff" * 6, "\ud7ff" * 4 + "\ue000"),
        ("a" + "\U0010ffff" * 5, "b"),
        ("\U0010ffff" * 5, None),
    ],
)
def test_a_long_text_is_cut_and_raised(text: str, high: str | None) -> None:
    """At the last character that can be raised; there may be none."""
    found = stats_of(typed_batch({"a": pa.array([text])}), [0])["a"]
    assert found.high == high and text.startswith(found.low)


# Promise: tasks/typed.md#skip-what-cannot-match
def test_columns_without_room_have_no_statistics() -> None:
    """The bytes are bounded, whatever the names are."""
    batch = typed_batch({f"{n}{'x' * 60}": pa.array(["a" * 30]) for n in range(8)})
    data = encode_stats(stats_of(batch, range(8)))
    assert len(data) <= STATS_BYTES_MAX and len(decode_stats(data)) == 2


def test_columns_are_those_of_the_config() -> None:
    """By default the first eight numbers and times, then texts; unknown names and structs have none."""
    ddl = "t STRING, b BOOLEAN, s STRUCT<x: INT>, " + ", ".join(f"c{n} INT" for n in range(9))
    schema = pa.schema([(f"value.{field.name}", field.type) for field in as_schema(ddl)])

    def chosen(config: str) -> list[str]:
        return [schema.names[number] for number in columns_with_stats(schema, config)]

    assert chosen(AUTO) == [f"value.c{n}" for n in range(8)]
    assert chosen("C8, b,s,nope") == ["value.c8", "value.b"]
    few = pa.schema([("value.a", pa.string()), ("value.b", pa.date32()), ("value.c", pa.list_(pa.int8()))])
    assert columns_with_stats(few, AUTO) == (1, 0)
    assert chosen("") == []


def test_other_bytes_are_no_statistics() -> None:
    """Of a newer pylog: nothing is known then."""
    assert decode_stats(b"") == decode_stats(b"\xc1") == decode_stats(b"\x91\x01") == {}
