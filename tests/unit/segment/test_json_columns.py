"""JSON read as whole columns gives what reading one by one gives, or nothing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_log.schema.topic_schema import as_schema
from spark_log.segment.json_columns import columns_of_json
from spark_log.segment.json_values import _one_by_one, json_or_errors

LEAVES = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128", "127", "0"],
    "SMALLINT": ["-32768", "5"],
    "INT": ["2147483647", "-7"],
    "BIGINT": ["9223372036854775807", "-9223372036854775808", "9007199254740993"],
    "FLOAT": ["0.1", "16777217", "1.17549429e-38", "5"],
    "DOUBLE": ["0.1", "1e-320", "9007199254740993", "-1.5E+3", "123456789012345678901234567890"],
    "DECIMAL(4,2)": ["12.34", "-99.99", "5", "1.5", '"0.25"'],
    "DECIMAL(38,10)": ["1234567890123456789012345678.0123456789", "0.1"],
    "STRING": ['"x"', '""', '"é\\u0000\\n"', '"\\ud83d\\ude00"', '"\\\\\\""'],
    "BINARY": ['""', '"YQ=="', '"YWI="', '"YWJj"', '"+/+/"'],
    "DATE": ['"2026-01-31"', '"1000-01-01"'],
    "TIMESTAMP": ['"2026-01-31T10:00:00Z"', '"2026-01-31T10:00:00.123Z"', '"1969-12-31T23:59:59.999999Z"'],
    "TIMESTAMP_NTZ": ['"2026-01-31T10:00:00"', '"2026-01-31 10:00:00.123456"'],
}
"""Values that are common in JSON."""
ODD = [
    *["-0", "-0.0", "01", "1.0", "1e2", "1E400", "-1e-400", "128", "-32769", "2147483648", "18446744073709551616"],
    *[
        "1" * 50,
        "3.4028236e38",
        "100.00",
        "1.234",
        "1e999999999",
        "1e999990",
        "0e999990",
        "1e-999990",
        "1e-999999999",
        "0e-999999999",
        "1e-41",
        "1e-00041",
        "1e1",
        "123456789012345678901234567890.5",
        '"-123456789012345678901234567890.5"',
        "579.3781594533341",
        "1e-320",
        "1.17549429e-38",
        "0." + "0" * 37 + "1e-3",
        '"1e-41"',
        '"1\\u0065-41"',
        '"1e-4\\u0031"',
        "1e39",
        "0." + "9" * 101,
        "1." + "0" * 101,
        "0.000000001",
        "+1",
        ".5",
        "1.",
        "0x1",
        "- 1",
    ],
    *[
        "null",
        "NaN",
        "Infinity",
        "tru",
        '"NaN"',
        '"nan"',
        '"٣"',
        '"-Infinity"',
        '"1"',
        '" 1"',
        '"1_0"',
        "[]",
        "[1]",
        "{}",
        '{"x": 1}',
    ],
    *['"\\ud800"', '"\\udc00"', '"\\ud83d"', '"\0"', '"\n"', '"\t"', '"\\x"', '"\x7f"', "''", '"a', "\0", ""],
    *['"YQ="', '"Y Q=="', '"YR=="', '"Y==="', '"_-=="', '"YQ==YQ=="', '"2026-02-30"', '"0001-01-01"', '"20260131"'],
    *[
        '"10000-01-01"',
        '"2026-01-31T24:00:00Z"',
        '"2026-01-31T10:00:60Z"',
        '"2026-01-31t10:00:00z"',
        '"2026-01-31T10Z"',
    ],
    *['"2026-01-31T10:00:00+01:00"', '"2026-01-31T10:00:00.1Z"', '"2026-01-31T10:00:00.1234567Z"', "1769860800"],
    *["/*x*/1", "1 ", "\r1\n", "[1,]", "[1 2]", "1}{", '{"a": [[[]]]}', "[" * 2000, '"' + "x" * 5000 + '"'],
]
NAMES = {f"c{number}": ddl for number, ddl in enumerate(LEAVES)}
SCHEMA = ", ".join(f"{name} {ddl}" for name, ddl in NAMES.items())
KIND = pa.struct(
    list(
        as_schema(
            f"{SCHEMA}, s STRUCT<a: INT NOT NULL, t: TIMESTAMP>, l ARRAY<DECIMAL(4,2)>, "
            "deep ARRAY<STRUCT<b: BINARY, d: ARRAY<DATE>>>"
        )
    )
)
FIELDS: dict[str, list[str]] = {
    **{name: LEAVES[ddl] for name, ddl in NAMES.items()},
    "s": ['{"a": 1, "t": "2026-01-31T10:00:00Z"}', '{"a": 2}', "{}"],
    "l": ["[]", "[1.25, null]", '["0.5"]'],
    "deep": ['[{"b": "YQ==", "d": ["2026-01-31"]}, null]', '[{"d": []}]', "[]"],
}


def pairs(value: Any) -> Any:
    """Members of an object: mostly common ones."""
    common = st.sampled_from(sorted(FIELDS)).flatmap(
        lambda name: st.sampled_from([*FIELDS[name], "null"]).map(lambda text: f'"{name}": {text}')
    )
    names = st.sampled_from([*FIELDS, "C0", "x", "\\u0063\\u0030", "c0\\ud800"])
    return st.one_of(common, common, common, st.builds('"{}":{}'.format, names, value))


ITEM = st.one_of(
    st.sampled_from(ODD),
    st.sampled_from(ODD).map(lambda text: f"[{text}]"),
    st.sampled_from(ODD).map(lambda text: f'{{"a": {text}}}'),
    st.sampled_from(ODD).map(lambda text: f'[{{"b": {text}}}]'),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.decimals(places=3).map(str),
)
OBJECT = st.builds(
    "{}{{{}}}{}".format,
    st.sampled_from(["", "", "", "", "", " ", "\n", "\ufeff", "{}"]),
    st.lists(pairs(ITEM), max_size=3).map(", ".join),
    st.sampled_from(["", "", "", "", "", " ", "\n", "{}", "{}\0{}", "\0}", "}", ",", "[]}"]),
)
TEXT = st.one_of(
    st.none(),
    OBJECT.map(lambda text: text.encode("utf-8", "surrogatepass")),
    OBJECT.map(lambda text: text.encode().replace(b"x", b"\xff")),
    OBJECT.map(lambda text: text.encode().replace(b"x", b"\xed\xa0\x80")),
    st.binary(max_size=5),
)


@given(st.lists(TEXT, min_size=1, max_size=2))
@example([b'{"c0": true}{"c0": false}\0}', b'{"c0": null}'])
@example([b"{}{}", b" "])
@example([b'{"c0": true, "c0": false}'])
@example([b'{"c9": "a', b'b"}'])
@example([b'{"s": {"a": 1}', b"}"])
def test_what_is_read_together_is_what_is_read_one_by_one(odd: list[bytes | None]) -> None:
    """Whatever the texts are: values, or a refusal of the whole."""
    agrees(odd)


@given(
    st.integers(1, 38).flatmap(lambda digits: st.tuples(st.just(digits), st.integers(0, digits))),
    st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(-(10**38), 10**38) | st.decimals(-9999, 9999),
    st.sampled_from(["{}", '"{}"', "{:f}", '"{:f}"']),
)
@example((38, 18), Decimal("123456789012345678901234567890.5"), "{}")
@example((38, 37), Decimal("-579.3781594533341"), '"{}"')
@example((38, 37), Decimal("9.3781594533341"), "{}")
def test_decimals_are_read_together_as_one_by_one(digits: tuple[int, int], number: Decimal, form: str) -> None:
    """Arrow scales a number to the digits of its type, even if the result does not fit."""
    text = form.format(number if abs(number.adjusted()) < 500 else Decimal(0))
    agrees([f'{{"a": {text}}}'.encode()], pa.struct([("a", pa.decimal128(*digits))]))


def agrees(odd: list[bytes | None], kind: pa.StructType = KIND) -> bool:
    """Whether texts are read together, among others."""
    texts = pa.array([*[b"{}"] * 50, *odd, *[b"{}"] * 50], pa.binary())
    found = columns_of_json(texts, kind)
    expected, errors = _one_by_one(texts.to_pylist(), kind, strict=True)
    if found is not None:
        found.validate(full=True)
        assert not errors and found.equals(expected), odd
    return found is not None


def test_each_odd_value_of_each_type() -> None:
    """Some of them are common ones of another type."""
    inner = ['"s": {"a": %s}', '"s": {"t": %s}', '"l": [%s]', '"deep": [{"b": %s}]', '"deep": [{"d": [%s, null]}]']
    texts = [f"{{{form % text}}}" for form in [*(f'"{name}": %s' for name in FIELDS), *inner] for text in ODD]
    together = [text for text in texts if agrees([text.encode()])]
    assert 20 < len(together) < len(texts) / 5


@pytest.mark.parametrize("name", list(FIELDS))
def test_common_values_are_read_together(name: str) -> None:
    """Values of each type, with nulls and missing fields, and records without a value."""
    kind = pa.struct([KIND.field(name)])
    texts = [f'{{"{name}": {text}}}'.encode() for text in [*FIELDS[name], "null"]]
    rows = pa.array([*texts, None, b"{}", b"{ \n}", *[texts[0]] * 100], pa.binary())
    found = columns_of_json(rows, kind)
    assert found is not None
    assert found.equals(_one_by_one(rows.to_pylist(), kind, strict=True)[0])
    assert found.slice(2).equals(columns_of_json(rows.slice(2), kind))


def test_tiny_numbers_are_read_together_without_decimals() -> None:
    """Arrow may crash if it has to make decimals of them."""
    rows = pa.array([b'{"a": 1e-320, "b": 1.17549429e-38}', b'{"a": 1e-400, "b": -1e-50}'] * 50, pa.binary())
    kind = pa.struct(list(as_schema("a DOUBLE, b FLOAT")))
    found = columns_of_json(rows, kind)
    assert found is not None
    assert found.equals(_one_by_one(rows.to_pylist(), kind, strict=True)[0])
    assert columns_of_json(rows, pa.struct(list(as_schema("a DOUBLE, b FLOAT, c DECIMAL(4,2)")))) is None


def test_an_odd_value_among_common_ones_is_named() -> None:
    texts = pa.array([*[b'{"c3": 1}'] * 99, b'{"c3": 2147483648}', b'{"c3": 2}'], pa.binary())
    found, errors = json_or_errors(texts, KIND, strict=True)
    assert list(errors) == [99] and "field 'c3': 2147483648 does not fit INT: expected" in errors[99]
    assert [row and row["c3"] for row in found.to_pylist()] == [*[1] * 99, None, 2]


def test_maps_are_read_one_by_one() -> None:
    """Arrow's reader has no objects with any keys."""
    kind = pa.struct(list(as_schema("a MAP<STRING, INT>")))
    texts = pa.array([b'{"a": {"x": 1}}'] * 100, pa.binary())
    assert columns_of_json(texts, kind) is None
    assert json_or_errors(texts, kind, strict=True)[0].to_pylist()[99] == {"a": [("x", 1)]}
