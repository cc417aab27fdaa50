"""Users' data as the columns of a typed run."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_log.errors import InvalidRecord
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema
from spark_log.segment.convert_types import is_text
from spark_log.segment.frame_columns import DEFAULT_NAMES, ColumnNames, data_columns
from spark_log.segment.row_batches import row_bytes
from spark_log.segment.schema import SCHEMA_ID
from spark_log.segment.typed_rows import conform_typed, sifted
from spark_log.segment.value_read import ValueRead, with_values

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def schema_of(ddl: str, version: int = 1) -> TopicSchema:
    return TopicSchema(version, to_json(as_schema(ddl)))


ORDERS = schema_of("id BIGINT NOT NULL, amount DECIMAL(10,2), note STRING")


def stored(data: object, schema: TopicSchema = ORDERS, names: ColumnNames = DEFAULT_NAMES) -> pa.Table:
    found = list(conform_typed(data, schema, now_us=7, names=names, topic="orders"))
    return pa.Table.from_batches([rows.records for rows in found])


ROWS = [{"key": "a", "id": 1, "amount": Decimal("2.50"), "note": "x"}, {"key": None, "id": 2}]


# Promise: format/segment.md#runs
@pytest.mark.parametrize("form", [list, pa.Table.from_pylist, pd.DataFrame, pl.DataFrame])
def test_each_kind_of_frame_gives_the_same_columns(form: object) -> None:
    table = stored(form(ROWS))  # type: ignore[operator]
    assert table.schema.names == ["key", "tombstone", "value.id", "value.amount", "value.note", "timestamp"]
    assert table.schema.metadata == {SCHEMA_ID: b"1"}
    assert table.to_pydict() == {
        "key": [b"a", None],
        "tombstone": [False, False],
        "value.id": [1, 2],
        "value.amount": [Decimal("2.50"), None],
        "value.note": ["x", None],
        "timestamp": [datetime(1970, 1, 1, 0, 0, 0, 7, timezone.utc)] * 2,
    }


def test_the_index_of_a_pandas_frame_is_no_column() -> None:
    frame = pd.DataFrame({"id": [1, 2], "note": ["x", "y"]})
    assert stored(frame.rename_axis("row"))["value.id"].to_pylist() == [1, 2]
    with pytest.raises(InvalidRecord, match="the index 'note' of the frame would be ignored"):
        stored(frame.set_index("note"))


def test_a_column_value_is_the_whole_value_and_null_is_a_tombstone() -> None:
    table = stored([{"key": "a", "value": {"id": 1, "note": "x"}}, {"key": "b", "value": None}])
    assert table["tombstone"].to_pylist() == [False, True]
    assert table["value.id"].to_pylist() == [1, None]
    assert stored([{"key": "a", "value": None}])["tombstone"].to_pylist() == [True]


def test_columns_of_a_record_and_of_the_data_with_the_same_name() -> None:
    schema = schema_of("timestamp TIMESTAMP, Key STRING")
    frame = pa.table({"key": ["k"], "value.timestamp": [NOON], "value.Key": ["d"], "timestamp": [5], "offset": [9]})
    assert stored(frame, schema).to_pylist()[0] == {
        "key": b"k",
        "tombstone": False,
        "value.timestamp": NOON,
        "value.Key": "d",
        "timestamp": datetime(1970, 1, 1, 0, 0, 0, 5000, timezone.utc),
    }
    frame = pa.table({"timestamp": [NOON], "id": ["k"], "KEY": ["d"]})
    names = ColumnNames(value=("timestamp", "KEY"), key="id", timestamp="timestamp")
    row = stored(frame, schema, names).to_pylist()[0]
    assert (row["key"], row["value.timestamp"], row["timestamp"], row["value.Key"]) == (b"k", NOON, NOON, "d")


def test_names_match_in_any_case() -> None:
    """Names of the data and of the record; none is left out without a word."""
    assert stored([{"ID": 1}])["value.id"].to_pylist() == [1]
    assert stored([{"Key": "k", "id": 1}])["key"].to_pylist() == [b"k"]
    with pytest.raises(
        InvalidRecord, match="column 'Key' is the key of the record, and the schema has a column of that"
    ):
        stored([{"Key": "k", "id": 1}], schema_of("Key STRING, id BIGINT"))


# Promise: tasks/typed.md#write
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"note": "x"}], "the required column 'id' (BIGINT NOT NULL) is missing; the frame has note"),
        ([{"id": 1, "nte": "x"}], "column 'nte' is not in the schema of topic 'orders' (version 1: id, amount, note)"),
        (
            pa.table({"id": ["1"]}),
            "column 'id' has type string, and in version 1 of the schema of topic 'orders' it is BIGINT",
        ),
        ([{"id": "1"}], "row 0: column 'id': '1' is a str, expected BIGINT"),
        ([{"id": 1}, {"id": 1.5}], "row 1: column 'id': 1.5 is a float, expected BIGINT"),
        ([{"id": 1}, {"id": None}], "row 1: column 'id' (BIGINT) is null, and the schema has it NOT NULL"),
        (pa.table({"id": [1, None, 3, None]}), "rows 1, 3: column 'id'"),
        (pa.table({"id": pa.nulls(9)}), "rows 0, 1, 2, 3, 4 and 4 more: column 'id'"),
        ([{"id": 2**70}], f"row 0: column 'id': {2**70} does not fit BIGINT: expected -{2**63} to {2**63 - 1}"),
        ([{"id": 1, "amount": Decimal("1.234")}], "row 0: column 'amount': 1.234 does not fit DECIMAL(10,2): expected"),
        ([{"id": 1, "amount": Decimal("1e-999999999")}], "1E-999999999 does not fit DECIMAL(10,2): expected at most 8"),
        ([{"id": 1, "amount": Decimal("0e-999999999")}], "0E-999999999 does not fit DECIMAL(10,2): expected at most 8"),
        (pa.table({"id": [1.0, 1.5]}), "row 1: column 'id' has a value that does not fit BIGINT"),
        (pa.table({"id": [1], "ID": [2]}), "the columns 'id' and 'ID' have the same name"),
        (pa.table({"id": [1], "value.id": [2]}), "are both column 'id'"),
        (pa.table({"value": [b"{}"]}), "column 'value' has type binary, but topic 'orders' has a schema"),
        ([{"value": {"id": 1, "x": 2}}], "row 0: column 'value': the schema has no field 'x' there"),
        ([{"value": {"note": "x"}}], "row 0: column 'id' (BIGINT) is null"),
        ([{"value": None}, {"id": 5}], "beside 'value', which is the whole value, there are the columns id: leave"),
        ([7], "a list of records contains an int"),
        (7, "records cannot be taken from an int"),
    ],
)
def test_bad_rows_are_refused_with_column_and_row(data: object, message: str) -> None:
    with pytest.raises(InvalidRecord, match=re.escape(message)):
        stored(data)


# Promise: tasks/typed.md#write
@pytest.mark.parametrize(
    ("ddl", "column", "message"),
    [
        ("a TINYINT", pa.array([1, 300]), "row 1: column 'a' has a value that does not fit TINYINT"),
        ("a FLOAT", pa.array([1.0, 1e300]), "row 1: column 'a' has a value that does not fit FLOAT"),
        ("a DECIMAL(4,2)", pa.array([1, 100]), "row 1: column 'a' has a value that does not fit DECIMAL(4,2)"),
        ("a TIMESTAMP", pa.array([datetime(2026, 1, 1)]), "it has no time zone"),
        ("a TIMESTAMP_NTZ", pa.array([NOON]), "it has a time zone"),
        ("a TIMESTAMP", pa.array([1_000_000_001], pa.timestamp("ns", "UTC")), "row 0: column 'a' has a value"),
        ("a STRUCT<b: INT>", pa.array([{"b": 1, "c": 2}]), "the schema has no field 'c' there"),
        (
            "a STRUCT<b: INT NOT NULL>",
            pa.array([{"b": 1}, None, {"b": None}]),
            "row 2: column 'a' (STRUCT<b: INT NOT NULL>)",
        ),
        ("a ARRAY<STRUCT<b: INT NOT NULL>>", pa.array([[{"b": 1}], [], [{"b": 2}, {"b": None}]]), "row 2: column 'a'"),
        ("a DATE", pa.array([NOON]), "expected DATE"),
        ("a INT", pa.array([True]), "expected INT, so cast it"),
        ("timestamp DATE, a INT", pa.array([1]), "call that one 'value.timestamp'"),
        ("a STRING", pa.array([b"a", b"\xff"]).view(pa.string()), "row 1: column 'a' has a text that is not UTF-8"),
        ("a STRUCT<b: STRING>", pa.StructArray.from_arrays([pa.array([b"\xc3"]).view(pa.string())], ["b"]), "row 0"),
    ],
)
def test_bad_arrow_columns_are_refused(ddl: str, column: pa.Array, message: str) -> None:
    frame = {"a": column} | ({"timestamp": pa.array([1] * len(column))} if "timestamp" in ddl.split() else {})
    with pytest.raises(InvalidRecord, match=re.escape(message)):
        stored(pa.table(frame), schema_of(ddl))


def test_faulty_values_can_be_set_apart() -> None:
    batch = pa.record_batch({"id": pa.array([1, None, 3]), "amount": pa.array([1.0, 2.0, 3.0])})
    schema = schema_of("id BIGINT NOT NULL, amount BIGINT")
    rows, faults = sifted(batch, schema, now_us=0)
    assert [(fault.rows.tolist(), "'id'" in fault.reason) for fault in faults] == [([False, True, False], True)]
    assert rows.records["value.amount"].to_pylist() == [1, 2, 3]


def test_nested_values_keep_their_content() -> None:
    schema = schema_of("m MAP<STRING, INT>, a ARRAY<STRUCT<x: INT, y: STRING>>, s STRUCT<t: TIMESTAMP_NTZ, b: BINARY>")
    rows = [
        {"m": {"a": 1, "b": None}, "a": [{"x": 1}, None], "s": {"t": datetime(2026, 1, 1), "b": b"z"}},
        {"m": None, "a": [], "s": None},
    ]
    expected = [
        {"m": [("a", 1), ("b", None)], "a": [{"x": 1, "y": None}, None], "s": rows[0]["s"]},
        {"m": None, "a": [], "s": None},
    ]
    for data in (rows, pd.DataFrame(rows), stored_frame(rows, schema).slice(0), stored_frame(rows, schema)):
        found = stored(data, schema).select(["value.m", "value.a", "value.s"])
        assert found.rename_columns(["m", "a", "s"]).to_pylist() == expected


def stored_frame(rows: list[dict[str, object]], schema: TopicSchema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema.columns)


def test_a_slice_of_a_large_table_is_converted_alone() -> None:
    table = pa.table({"a": pa.array([[n, n + 1] for n in range(70_000)], pa.list_(pa.int32()))})
    found = list(conform_typed(table.slice(3), schema_of("a ARRAY<BIGINT>"), now_us=0))
    assert [rows.records.num_rows for rows in found] == [65_536, 70_000 - 3 - 65_536]
    assert found[1].records["value.a"][0].as_py() == [65_539, 65_540]


def test_the_size_of_a_row_has_all_of_its_values() -> None:
    table = stored([{"id": 1, "note": "abc"}, {"key": "k", "id": 2}])
    small, large = row_bytes(table.to_batches()[0]).tolist()
    assert (small - large) == 3 - 1
    nested = stored([{"a": [1] * 100}, {"a": []}], schema_of("a ARRAY<INT>"))
    assert np.diff(row_bytes(nested.to_batches()[0])).tolist() == [-800]


def test_a_schema_can_be_taken_from_a_frame() -> None:
    frame = pa.table({"key": ["a"], "id": [1], "value.offset": [2], "timestamp": [3]})
    assert data_columns(frame.schema) == pa.schema([("id", pa.int64()), ("offset", pa.int64())])
    with pytest.raises(InvalidRecord, match="which is the whole value"):
        data_columns(pa.schema([("value", pa.float64())]))


def test_a_run_of_a_newer_version_is_read_by_the_older_one_or_is_an_error() -> None:
    """New columns are left out; a number that does not fit the older type is never another number."""
    newer = schema_of("id BIGINT, more STRING", 2)
    old = ValueRead(schema_of("id INT"))
    (fits, wide) = (stored([{"id": n, "more": "x"}], newer).to_batches()[0] for n in (7, 2**40))
    found = with_values(fits, ["value.id"], 2, old, "t-0")
    assert found.schema.field("value.id").type == pa.int32() and found.to_pydict() == {"value.id": [7]}
    with pytest.raises(InvalidRecord, match="column 'id' in t-0 was written by a newer version .* restart it"):
        with_values(wide, ["value.id"], 2, old, "t-0")


def test_texts_of_a_slice_are_checked_alone() -> None:
    """Those around it may be anything; empty texts and nulls are fine."""
    texts = pa.array([b"\xff", b"a", b"", None, "é".encode(), b"\xc3"]).view(pa.string())
    found = [is_text(texts.slice(start, length)) for start, length in ((1, 3), (1, 4), (0, 2), (4, 2), (2, 0), (3, 1))]
    assert found == [True, True, False, False, True, True]


def test_a_text_inside_is_a_fault_of_its_row_alone() -> None:
    """Also beside a value that does not fit, and in a part of a larger batch."""
    texts = pa.array([b"x", b"ok", b"\xff", b"ok"]).view(pa.string())
    structs = pa.StructArray.from_arrays([texts, pa.array([0, 2**40, 1, 2])], ["text", "n"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), texts)
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), pa.array(["k"] * 4), lists)
    batch = pa.RecordBatch.from_arrays([structs, maps], ["a", "b"])
    schema = schema_of("a STRUCT<text: STRING, n: INT>, b MAP<STRING, ARRAY<STRING>>")
    found = [(one.reason.partition(" that ")[0], one.rows.tolist()) for one in sifted(batch, schema, now_us=0)[1]]
    assert found == [
        ("column 'a' has a value", [False, True, False, False]),
        ("column 'a' has a text", [False, False, True, False]),
        ("column 'b' has a text", [False, False, True, False]),
    ]
    assert not sifted(batch.slice(0, 1), schema, now_us=0)[1] and not sifted(batch.slice(3), schema, now_us=0)[1]


def test_a_text_that_is_not_utf8_has_one_fault_in_a_column_that_is_not_null() -> None:
    texts = pa.array([b"\xff", None]).view(pa.string())
    faults = sifted(pa.record_batch({"a": texts}), schema_of("a STRING NOT NULL"), now_us=0)[1]
    assert [one.rows.tolist() for one in faults] == [[True, False], [False, True]]
