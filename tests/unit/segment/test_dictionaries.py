"""Columns of a typed run that are stored as dictionaries, and read without them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_log.errors import UnsupportedVersion
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema
from spark_log.segment.arrays.dictionaries import MARK, dictionary_schema, is_dictionary
from spark_log.segment.arrays.ipc import is_too_small
from spark_log.segment.batch_index import parse_index
from spark_log.segment.compression import Compression
from spark_log.segment.reader import decode_batch, find_batches
from spark_log.segment.schema import typed_base
from spark_log.segment.typed_rows import conform_typed
from spark_log.segment.value_read import ValueRead, check_typed_schema
from tests.unit.segment.builders import OBJECT, place, read, write

ORDERS = TopicSchema(1, to_json(as_schema("country STRING, tag BINARY, note STRING, empty STRING, id BIGINT")))
WIDER = TopicSchema(
    2, to_json(as_schema("country STRING, tag BINARY, note STRING, empty STRING, id BIGINT, city STRING"))
)
COUNTRIES = ["DE", "FR", None, "IT"]


def rows(first: int, last: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"country": COUNTRIES[n % 4], "tag": b"%d" % (n % 50), "note": f"note {n}", "id": n, **more}
        for n in range(first, last)
    ]


def batch(data: object, schema: TopicSchema = ORDERS) -> pa.RecordBatch:
    (found,) = conform_typed(data, schema, now_us=7)
    return found.records


def dictionaries(data: bytes) -> set[str]:
    """The columns of the first run of an object that are stored as dictionaries."""
    return {field.name.removeprefix("value.") for field in pa.ipc.open_stream(data).schema if is_dictionary(field)}


# Promise: tasks/typed.md#size
def test_text_that_repeats_is_a_dictionary_and_is_read_without_it() -> None:
    """Also when it is in other batches than the first one, with other values, and one batch is read alone."""
    parts = [batch(rows(0, 1000)), batch(rows(1000, 1010) + rows(5, 900, country="PL"))]
    data, written = write([("t", 0, part) for part in parts], batch_rows=1000)
    assert dictionaries(data) == {"country", "tag"}
    whole = read(data, written)["t", 0]
    assert whole.equals(pa.Table.from_batches(parts)) and whole.schema == parts[0].schema
    index = parse_index(data, name=OBJECT)
    second = find_batches(index, written.runs[0], place=place())[1]
    message = data[second.position : second.position + second.length]
    found = decode_batch(message, second, index, ["value.country", "value.id"], ValueRead(ORDERS), place=place())
    assert found.records.equals(whole.slice(1000).select(["value.country", "value.id"]).to_batches()[0])


@pytest.mark.parametrize("count", [1, 99])
def test_few_rows_are_stored_as_they_are(count: int) -> None:
    data, _ = write([("t", 0, batch(rows(0, count)))])
    assert dictionaries(data) == set()


def test_a_run_has_batches_with_and_without_compression() -> None:
    """A small batch would be longer, and take longer to read."""
    parts = [batch(rows(0, 1000)), batch(rows(1000, 1001))]
    assert [is_too_small(part) for part in parts] == [False, True]
    data, written = write([("t", 0, part) for part in parts], batch_rows=1000)
    assert b"note 1000" in data and b"note 500" not in data
    assert read(data, written)["t", 0].equals(pa.Table.from_batches(parts))


def test_a_run_that_is_encoded_again_keeps_its_rows() -> None:
    """Headers that come late, and then a newer version of the schema."""
    headers = [{"key": "a", "value": b"b"}]
    parts = [batch(rows(0, 1000)), batch(rows(1000, 1001, headers=headers)), batch(rows(0, 600, city="Ulm"), WIDER)]
    data, written = write([("t", 0, part) for part in parts], batch_rows=600)
    assert dictionaries(data) == {"country", "tag"}
    found = read(data, written)["t", 0]
    assert found["value.id"].to_pylist() == [*range(1001), *range(600)]
    assert found["value.country"].to_pylist() == [COUNTRIES[n % 4] for n in found["value.id"].to_pylist()]
    assert found["value.city"].to_pylist() == [None] * 1001 + ["Ulm"] * 600
    assert found["headers"].to_pylist()[999:1002] == [None, headers, None]


def test_runs_of_one_object_may_have_different_dictionaries() -> None:
    data, written = write([("t", 0, batch(rows(0, 600))), ("t", 1, batch(rows(0, 10))), ("u", 0, batch(rows(0, 600)))])
    assert [table.num_rows for table in read(data, written).values()] == [600, 10, 600]
    assert len(parse_index(data, name=OBJECT).schemas) == 2


def test_a_dictionary_has_no_values_of_other_rows() -> None:
    """An erasure that drops rows leaves nothing of them."""
    whole = batch(rows(0, 600) + rows(600, 700, country="SECRET") + rows(700, 1300))
    data, written = write(
        [("t", 0, whole.slice(0, 600)), ("t", 0, whole.slice(700))], compression=Compression("none"), batch_rows=600
    )
    assert dictionaries(data) == {"country", "tag"} and b"SECRET" not in data
    assert read(data, written)["t", 0].num_rows == 1200


def test_a_spooled_run_with_dictionaries_fits() -> None:
    """The room for an encoded batch includes its dictionaries."""
    long = [{"country": f"{n % 200:01000}", "id": n} for n in range(600)]
    for codec in ("none", "lz4", "zstd"):
        data, written = write([("t", 0, batch(long))], compression=Compression(codec), buffer_bytes=1 << 10)
        assert read(data, written)["t", 0]["value.country"].to_pylist() == [row["country"] for row in long]


def test_a_short_batch_of_many_columns_has_room() -> None:
    """Compression makes each short buffer longer."""
    wide = TopicSchema(1, to_json(as_schema(", ".join(f"c{n} BIGINT" for n in range(1000)))))
    data, written = write([("t", 0, batch([{f"c{n}": 7919**4 * n for n in range(1000)}], wide))])
    assert read(data, written)["t", 0]["value.c999"].to_pylist() == [7919**4 * 999]


def test_a_column_with_an_unknown_mark_is_refused() -> None:
    """A later pylog may store columns in other ways."""
    schema = dictionary_schema(typed_base(ORDERS), {"value.country"})
    check_typed_schema(schema, "a.seg")
    number = schema.get_field_index("value.country")
    for field in (
        pa.field("value.id", pa.int64(), metadata={b"pylog.split": b"1"}),
        pa.field("value.id", pa.int64(), metadata=MARK),
    ):
        with pytest.raises(UnsupportedVersion, match="unsupported columns"):
            check_typed_schema(schema.set(number, field), "a.seg")
