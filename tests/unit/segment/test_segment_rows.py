"""The records that users may pass in, and the errors for others."""

from __future__ import annotations

import sys
from datetime import date, datetime, timedelta, timezone
from types import ModuleType
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_log.errors import InvalidRecord
from spark_log.segment.record_columns import conform
from spark_log.segment.schema import HEADERS, RECORD_SCHEMA, RECORD_SCHEMA_HEADERS, TIMESTAMP

NOW_US = 1_700_000_000_000_000


def conformed(data: object) -> pa.Table:
    """All of `data`, with a partition column if there was one."""
    tables = []
    for rows in conform(data, now_us=NOW_US):
        table = pa.Table.from_batches([rows.records])
        tables.append(table if rows.partitions is None else table.append_column("partition", rows.partitions))
    return pa.concat_tables(tables)


def column(type_: pa.DataType, values: list[Any], name: str = "value") -> pa.Table:
    return pa.table({"value": [b"v"] * len(values), name: pa.array(values, type_)})


_BINARY_LIKE = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.binary(2),
    pa.dictionary(pa.int32(), pa.string()),
]


@pytest.mark.parametrize("type_", _BINARY_LIKE, ids=str)
def test_every_kind_of_string_and_binary_is_taken(type_: pa.DataType) -> None:
    """Strings as UTF-8, nulls as nulls, sliced or not, in key and value."""
    values = pa.array([b"xx", b"ab", None, "é".encode()], pa.binary())
    array = values.cast(type_.value_type).dictionary_encode() if pa.types.is_dictionary(type_) else values.cast(type_)
    table = pa.table({"key": array, "value": array}).slice(1)

    found = conformed(table)

    assert found.schema == RECORD_SCHEMA
    assert found["key"].to_pylist() == found["value"].to_pylist() == [b"ab", None, "é".encode()]


def test_pandas_may_be_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread imports it, which Arrow does with the first list of dicts, the module has no frames yet."""
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    assert conformed([{"value": "v"}])["value"].to_pylist() == [b"v"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_every_unit_and_zone_of_timestamps_is_taken(unit: str, zone: str | None) -> None:
    """The moment is kept; without a zone it is UTC; nanoseconds are cut off; a null becomes now."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    array = pa.array([1_600_000_000 * per_second, None], pa.int64()).cast(pa.timestamp(unit, zone))

    found = conformed(pa.table({"value": ["a", "b"], "timestamp": array}))["timestamp"]

    assert found.type == TIMESTAMP
    assert found.cast(pa.int64()).to_pylist() == [1_600_000_000_000_000, NOW_US]


def test_integers_are_milliseconds() -> None:
    """As in Kafka; microseconds are stored."""
    assert micros(column(pa.int64(), [1, None, -5], "timestamp")) == [1000, NOW_US, -5000]


def micros(data: object) -> list[int]:
    times: list[int] = conformed(data)["timestamp"].cast(pa.int64()).to_pylist()
    return times


def test_records_without_a_timestamp_get_now() -> None:
    """A missing column and a column of nulls are the same."""
    assert micros(pa.table({"value": ["a"]})) == micros(column(pa.null(), [None], "timestamp")) == [NOW_US]


def test_other_columns_are_ignored_and_order_does_not_matter() -> None:
    """Columns go by name."""
    table = pa.table({"extra": [[1]], "timestamp": [7], "value": ["v"], "key": ["k"]})

    assert conformed(table).to_pydict()["key"] == [b"k"]
    assert conformed(table).schema == RECORD_SCHEMA


@pytest.mark.parametrize(
    "type_",
    [
        HEADERS,
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.string())])),
        pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_lists_and_maps_of_headers_are_taken(type_: pa.DataType) -> None:
    """Struct fields go by name."""
    entries: list[Any] = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    given = [("a", b"1"), ("a", None)] if pa.types.is_map(type_) else entries

    found = conformed(column(type_, [given, None, []], "headers"))

    assert found.schema == RECORD_SCHEMA_HEADERS
    assert found["headers"].to_pylist() == [entries, None, []]


def test_headers_of_which_there_are_none_take_no_column() -> None:
    """Null and empty lists only: the run gets no headers column."""
    assert conformed(column(HEADERS, [None, []], "headers")).schema == RECORD_SCHEMA


@pytest.mark.parametrize("type_", [pa.int8(), pa.int32(), pa.uint16(), pa.int64()], ids=str)
def test_the_partition_column_is_handed_back_separately(type_: pa.DataType) -> None:
    """As int64, with nulls where the record does not say."""
    assert conformed(column(type_, [1, None, 3], "partition"))["partition"].to_pylist() == [1, None, 3]


def test_dicts_frames_and_streams_are_taken() -> None:
    """The same records as dicts, pandas, Polars, a reader, a batch."""
    dicts = [{"key": "a", "value": b"1", "timestamp": 5, "x": object()}, {"value": "2", "headers": [("h", b"3")]}]
    arrow = pa.table({"key": ["a", None], "value": [b"1", b"2"], "timestamp": [5, None]})
    expected = {"key": [b"a", None], "value": [b"1", b"2"], "timestamp": [5000, NOW_US]}

    for data in (dicts, arrow, arrow.to_reader(), arrow.to_batches()[0], pl.from_arrow(arrow), frame()):
        found = conformed(data)
        found = found.set_column(2, "timestamp", found["timestamp"].cast(pa.int64()))
        assert found.select(["key", "value", "timestamp"]).to_pydict() == expected
    assert conformed(dicts)["headers"].to_pylist() == [None, [{"key": "h", "value": b"3"}]]


@pytest.mark.parametrize(
    ("rows", "found"), [([{}], "nothing"), ([{"value": "1"}, {"body": "2", "key": "k"}], "'body', 'key'")]
)
def test_a_dict_without_a_value_is_refused(rows: list[dict[str, str]], found: str) -> None:
    """It would be a tombstone, or nothing at all, where a name was misspelt; a value of None is a tombstone."""
    with pytest.raises(InvalidRecord, match=f"a record has no 'value', it has {found}; .* give None"):
        conformed(rows)
    assert conformed([{"value": None}])["value"].to_pylist() == [None]


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "key": pd.Categorical(["a", None]),
            "value": [b"1", b"2"],
            "timestamp": [pd.Timestamp(5, unit="ms"), None],
            "other": [object(), {1}],
        }
    )


def test_datetimes_in_dicts_keep_their_moment() -> None:
    """Aware ones by their zone, naive ones as UTC."""
    aware = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert micros([{"value": "v", "timestamp": aware}]) == micros(
        [{"value": "v", "timestamp": datetime(2024, 1, 1, 10)}]
    )


def test_tuples_and_dicts_are_headers_in_a_pandas_frame() -> None:
    """pandas has no type for them; the column is read as headers."""
    for entry in (("h", b"1"), {"key": "h", "value": b"1"}):
        data = pd.DataFrame({"value": ["a", "b"], "headers": [[entry], None]})
        assert conformed(data)["headers"].to_pylist() == [[{"key": "h", "value": b"1"}], None]


def test_a_pandas_frame_without_values_or_with_a_key_as_its_index_is_refused() -> None:
    """Not a word would be said of the records, or of their keys."""
    for names in (["id", "amount"], ["offset"], ["topic"], ["key"]):
        with pytest.raises(InvalidRecord, match="the column 'value' is missing"):
            conformed(pd.DataFrame([[1] * len(names)], columns=names))
    frame = pd.DataFrame({"key": ["a", "a"], "value": ["1", "2"]}).groupby("key")[["value"]].max()
    with pytest.raises(InvalidRecord, match=r"the index 'key' .* `reset_index\(\)`"):
        conformed(frame)
    assert conformed(frame.reset_index())["key"].to_pylist() == [b"a"]
    assert list(conform(pd.DataFrame(), now_us=0)) == []


def test_large_input_comes_in_pieces_and_in_order() -> None:
    """At most 65,536 records a batch, whatever the input's own batches; nothing for no records."""
    batch = pa.record_batch({"value": [str(i) for i in range(200_000)]})
    for data in (batch, pa.table(batch), pd.DataFrame({"value": batch.column(0).to_pylist()})):
        pieces = [rows.records.num_rows for rows in conform(data, now_us=0)]
        assert sum(pieces) == 200_000
        assert max(pieces) <= 65_536
    assert conformed(batch)["value"].cast(pa.string()).equals(pa.chunked_array([batch.column(0)]))
    assert list(conform([], now_us=0)) == list(conform(batch.slice(0, 0), now_us=0)) == []


def no_text() -> pa.Table:
    """With a header key that is not UTF-8: Arrow does not look."""
    key = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    pair = pa.StructArray.from_arrays([key, pa.array([b"1"])], fields=list(HEADERS.value_type))
    return pa.table({"value": ["a"], "headers": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pair)})


_REFUSED: list[tuple[object, str]] = [
    (pa.table({"key": ["a"]}), "'value' is missing; the columns are key"),
    (column(pa.int32(), [1]), "column 'value' has type int32"),
    (column(pa.list_(pa.string()), [["a"]], "key"), r"column 'key' has type list<item: string>"),
    (column(pa.date32(), [date(2024, 1, 1)], "timestamp"), "has type date32.*not a moment"),
    (column(pa.string(), ["2024-01-01"], "timestamp"), "column 'timestamp' has type string"),
    (column(pa.float64(), [1.5], "timestamp"), "column 'timestamp' has type double"),
    (column(pa.int64(), [2**62], "timestamp"), "too large for milliseconds"),
    (column(pa.timestamp("s"), [2**61], "timestamp"), "cannot be written"),
    (column(pa.string(), ["h"], "headers"), "column 'headers' has type string"),
    (column(pa.map_(pa.int32(), pa.binary()), [[(1, b"")]], "headers"), "column 'headers' has type map"),
    (column(HEADERS, [[(None, b"1")]], "headers"), "header without a key"),
    (no_text(), "header with a key that is not UTF-8"),
    (column(pa.float64(), [1.0], "partition"), "column 'partition' has type double"),
    (column(pa.bool_(), [True], "partition"), "column 'partition' has type bool"),
    (column(pa.uint64(), [2**63], "partition"), "column 'partition' has type uint64"),
    (pa.Table.from_arrays([pa.array(["a"])] * 2, names=["value", "value"]), "more than once"),
    (pd.DataFrame([["a", "b"]], columns=["value", "value"]), "more than once"),
    (pd.DataFrame({"value": ["a", 1]}), "column 'value' cannot be written"),
    ([{"value": 1}], "column 'value' cannot be written: .*; give text or bytes, as json.dumps makes them"),
    ([{"value": "a", "headers": [("k",)]}], "column 'headers' cannot be written: .*; give a list of pairs"),
    ([b"raw"], "contains a bytes; expected dicts"),
    (pa.table({"value": ["a"], "Timestamp": [1]}), "column 'Timestamp' would be ignored: did you mean 'timestamp'"),
    (pd.DataFrame({"value": ["a"], "timestamp_ms": [1]}), "column 'timestamp_ms' .* did you mean 'timestamp'"),
    ([{"value": "a"}, {"value": "b", "keys": "k"}], "column 'keys' .* did you mean 'key'"),
    (
        [{"value": "a", "timestamp": 1}, {"value": "b", "Timestamp": 1}],
        "column 'Timestamp' .* did you mean 'timestamp'",
    ),
    ([{"Value": "a"}], "column 'Value' .* did you mean 'value'"),
    (pa.table({"vlaue": ["a"]}), "column 'vlaue' .* did you mean 'value'"),
    ([{"value": "1"}, {"valeu": "2"}], "column 'valeu' .* did you mean 'value'"),
    ([{"vslue": "a"}], "column 'vslue' .* did you mean 'value'"),
    (pa.table({"value": ["a"], "kye": ["k"]}), "column 'kye' .* did you mean 'key'"),
    ("text", "cannot be taken from a str"),
    (None, "cannot be taken from a NoneType"),
]


@pytest.mark.parametrize(("data", "message"), _REFUSED, ids=[message for _, message in _REFUSED])
def test_what_cannot_be_written_is_refused_by_column_and_type(data: object, message: str) -> None:
    """The sentence names the column and what was found in it."""
    with pytest.raises(InvalidRecord, match=message):
        conformed(data)
