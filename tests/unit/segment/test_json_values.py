"""Values as JSON and back: each type, and values that Python lacks.  test_spark_typed.py compares with Spark."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_log.errors import InvalidRecord
from spark_log.schema.topic_schema import as_schema
from spark_log.segment.json_values import as_json, from_json

NOON_US = 1_769_860_800_000_000
FAR_US = 253_402_300_800_000_000
"""The first moment of the year 10000."""
LEAST = "-290308-12-21T19:59:05.224192Z"
"""The least number of microseconds."""


def written(ddl: str, column: pa.Array) -> list[Any]:
    """The JSON of a column `a`."""
    kind = as_schema(ddl).field("a").type
    return [
        json.loads(text).get("a")
        for text in as_json(pa.StructArray.from_arrays([column.cast(kind)], ["a"])).to_pylist()
    ]


@pytest.mark.parametrize(
    ("ddl", "values", "text"),
    [
        ("a FLOAT", pa.array([0.1, 16777216.0, -1e-10], pa.float32()), [0.1, 16777216.0, -1e-10]),
        ("a DOUBLE", pa.array([0.1, float("nan"), float("-inf")]), [0.1, "NaN", "-Infinity"]),
        ("a TIMESTAMP", pa.array([NOON_US, NOON_US + 1]), ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000001Z"]),
        ("a TIMESTAMP_NTZ", pa.array([NOON_US]), ["2026-01-31T12:00:00"]),
        ("a DATE", pa.array([0, 20_484], pa.int32()), ["1970-01-01", "2026-01-31"]),
        ("a BINARY", pa.array([b"", b"\xff"]), ["", "/w=="]),
        (
            "a MAP<BOOLEAN, INT>",
            pa.array([[(True, 1), (False, None)]], pa.map_(pa.bool_(), pa.int32())),
            [{"true": 1, "false": None}],
        ),
    ],
)
def test_a_value_is_written_in_its_form_and_read_again(ddl: str, values: pa.Array, text: list[Any]) -> None:
    assert written(ddl, values) == text
    kind = pa.struct([("a", as_schema(ddl).field("a").type)])
    read = from_json(pa.array([json.dumps({"a": one}).encode() for one in text]), kind, str)
    assert repr(read.field("a").to_pylist()) == repr(values.cast(kind[0].type).to_pylist())  # NaN is not equal to NaN


# Promise: tasks/typed.md#write
@pytest.mark.parametrize(
    ("ddl", "texts", "values"),
    [
        (
            "a DOUBLE",
            ['"NaN"', '"Infinity"', '"-Infinity"', "1e-400"],
            [float("nan"), float("inf"), -float("inf"), 0.0],
        ),
        ("a FLOAT", ["3.4028235e38", "0.1", '"Infinity"'], [3.4028234663852886e38, 0.10000000149011612, float("inf")]),
        (
            "a DECIMAL(4,2)",
            ['"1.5"', '"1e1"', "1.500", "0e-999999999"],
            [Decimal(text) for text in ("1.5", "10", "1.5", "0")],
        ),
        ("a MAP<DOUBLE, INT>", ['{"NaN": 1, "1.5": 2, "1e2": 3}'], [[(float("nan"), 1), (1.5, 2), (100.0, 3)]]),
        ("a MAP<INT, INT>", ['{"-1": 1, "-1": 2, "0": 3}'], [[(-1, 2), (0, 3)]]),
    ],
)
def test_numbers_and_texts_that_mean_numbers(ddl: str, texts: list[str], values: list[Any]) -> None:
    kind = pa.struct(list(as_schema(ddl)))
    found = from_json(pa.array([f'{{"a": {text}}}'.encode() for text in texts]), kind, str).field("a")
    assert repr(found.to_pylist()) == repr(pa.array(values, kind[0].type).to_pylist())


# Promise: tasks/typed.md#read
@pytest.mark.parametrize(
    ("ddl", "values", "text"),
    [
        (
            "a TIMESTAMP",
            pa.array([FAR_US, 0, NOON_US - 1, -(2**63)]),
            ["10000-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2026-01-31T11:59:59.999999Z", LEAST],
        ),
        ("a TIMESTAMP_NTZ", pa.array([FAR_US + 1]), ["10000-01-01T00:00:00.000001"]),
        ("a DATE", pa.array([2_932_897], pa.int32()), ["10000-01-01"]),
    ],
)
def test_a_time_that_python_lacks_is_written(ddl: str, values: pa.Array, text: list[str]) -> None:
    """A consumer of records would never get past it.  Values beside it have the form that they have without it."""
    assert written(ddl, values) == text


def test_a_text_that_is_not_utf_8_is_written_with_replacements() -> None:
    """At any depth, beside values of other types."""
    texts = pa.array([b"ok", b"a\xff"]).view(pa.string())
    rows = pa.StructArray.from_arrays(
        [
            pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), texts),
            pa.MapArray.from_arrays(
                pa.array([0, 1, 2], pa.int32()), texts, pa.array([NOON_US, None], pa.timestamp("us", "UTC"))
            ),
            pa.array([Decimal("1.10"), None], pa.decimal128(4, 2)),
        ],
        ["list", "map", "price"],
    )
    assert [json.loads(text) for text in as_json(rows).to_pylist()] == [
        {"list": ["ok"], "map": {"ok": "2026-01-31T12:00:00Z"}, "price": 1.1},
        {"list": ["a\ufffd"], "map": {"a\ufffd": None}},
    ]


# Promise: tasks/typed.md#write
@pytest.mark.parametrize(
    ("ddl", "text", "message"),
    [
        (
            "a TIMESTAMP",
            '{"a": 1769860800000}',
            "field 'a': 1769860800000 does not fit TIMESTAMP: expected text such as ",
        ),
        ("a TIMESTAMP_NTZ", '{"a": "x"}', "field 'a': 'x' does not fit TIMESTAMP_NTZ: expected text such as "),
        ("a DATE", '{"a": "2026-13-01"}', "field 'a': '2026-13-01' does not fit DATE: expected text such as"),
        ("a BINARY", '{"a": "%"}', "field 'a': '%' does not fit BINARY: expected text in base64"),
        ("a ARRAY<TINYINT>", '{"a": [1, 300]}', "field 'a': 300 does not fit TINYINT: expected -128 to 127"),
        ("a STRUCT<b: DECIMAL(4,1)>", '{"a": {"b": 1.23}}', "field 'a': field 'b': 1.23 does not fit DECIMAL(4,1): "),
        ("a DECIMAL(38,0)", '{"a": 1e999990}', "field 'a': 1E+999990 does not fit DECIMAL(38,0)"),
        ("a DECIMAL(38,0)", '{"a": "-1e999990"}', "field 'a': '-1e999990' does not fit DECIMAL(38,0)"),
        ("a DECIMAL(38,0)", '{"a": 1e-999999999}', "field 'a': 1E-999999999 does not fit DECIMAL(38,0)"),
        ("a DECIMAL(38,0)", '{"a": "1_0"}', "field 'a': '1_0' does not fit DECIMAL(38,0)"),
        ("a DECIMAL(38,0)", '{"a": "٣"}', "field 'a': '٣' does not fit DECIMAL(38,0)"),
        ("a DECIMAL(38,0)", '{"a": "NaN"}', "field 'a': 'NaN' does not fit DECIMAL(38,0)"),
        ("a DECIMAL(38,0)", '{"a": true}', "field 'a': True is a bool, expected DECIMAL(38,0)"),
        ("a DOUBLE", '{"a": true}', "field 'a': True is a bool, expected DOUBLE"),
        ("a DOUBLE", '{"a": "1"}', "field 'a': '1' is a str, expected DOUBLE"),
        ("a DOUBLE", '{"a": "nan"}', "field 'a': 'nan' is a str, expected DOUBLE"),
        ("a DOUBLE", '{"a": 1e400}', "field 'a': 1E+400 does not fit DOUBLE"),
        ("a DOUBLE", f'{{"a": {"9" * 400}}}', "does not fit DOUBLE"),
        ("a FLOAT", '{"a": -1e39}', "field 'a': -1E+39 does not fit FLOAT"),
        ("a TIMESTAMP", '{"a": "2026-01-31T10:00:00.1234567Z"}', "does not fit TIMESTAMP: expected text such as"),
        ("a TIMESTAMP_NTZ", '{"a": "2026-01-31T10:00:00.123456001"}', "with up to six digits of a second"),
        ("a MAP<DOUBLE, INT>", '{"a": {"1_0": 1}}', "field 'a': '1_0' does not fit DOUBLE"),
        ("a MAP<DOUBLE, INT>", '{"a": {"1": 1, "1.0": 2}}', "field 'a': '1' and '1.0' are the same key"),
        ("a MAP<INT, INT>", '{"a": {"1": 1, "01": 2}}', "field 'a': '01' does not fit INT"),
        ("a MAP<STRING, INT>", '{"a": {"k": 1e400}}', "field 'a': at 'k': 1E+400 does not fit INT"),
        ("a MAP<INT, INT>", '{"a": {"k": 1}}', "field 'a': 'k' does not fit INT"),
        ("a MAP<BOOLEAN, INT>", '{"a": {"k": 1}}', "field 'a': 'k' does not fit BOOLEAN"),
        ("a STRUCT<b: INT>", '{"a": 5}', "field 'a': 5 is not a JSON object"),
        ("a INT", f'{{"a": {"9" * 5000}}}', "is not JSON: Integer value out of range"),
        ("a STRING", "[" * 100_000, "recursion"),
    ],
)
def test_a_value_that_does_not_fit_is_named(ddl: str, text: str, message: str) -> None:
    with pytest.raises(InvalidRecord, match=re.escape(message)):
        from_json(pa.array([b"{}", text.encode()]), pa.struct(list(as_schema(ddl))), str)
