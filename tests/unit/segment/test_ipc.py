"""A batch as bytes: the records of the batch, and nothing of the records around it in memory."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

from spark_log.segment.arrays.ipc import decode_batch, encode_batch, schema_message, write_options
from spark_log.segment.schema import run_schema

SCHEMA = run_schema(headers=True, holes=True)
MARK = b"ZZ"
"""In each value of the records around the batch."""
FOREIGN = int.from_bytes(MARK * 3, "little")


def records(letter: bytes, number: st.SearchStrategy[int]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Records with values that repeat a letter, or are null or missing."""
    value = st.none() | st.integers(0, 30).map(lambda count: 2 * count * letter)
    header = st.fixed_dictionaries({"key": value.map(lambda text: text and text.decode()), "value": value})
    headers = st.none() | st.lists(st.none() | header, max_size=3)
    columns = {"key": value, "value": value, "timestamp": st.none() | number, "headers": headers, "offset": number}
    return st.lists(st.fixed_dictionaries(columns), max_size=20)


@settings(max_examples=100, deadline=None)
@given(
    outside=records(MARK[:1], st.just(FOREIGN)),
    before=records(MARK[:1], st.just(FOREIGN)),
    inside=records(b"a", st.integers(0, 2**40 - 1)),
    after=records(MARK[:1], st.just(FOREIGN)),
)
def test_a_slice_has_no_bytes_of_the_records_around_it(
    outside: list[Any], before: list[Any], inside: list[Any], after: list[Any]
) -> None:
    """It has all bytes of the batch, with nulls and in nested columns, also as a slice of a slice."""
    whole = pa.RecordBatch.from_pylist(outside + before + inside + after + outside, schema=SCHEMA)
    outer = whole.slice(len(outside), len(before + inside + after))
    batch = outer.slice(len(before), len(inside))
    message = encode_batch(batch, write_options(None))
    found = decode_batch(schema_message(SCHEMA), message, ())
    found.validate(full=True)
    assert found.equals(batch) and found.to_pylist() == batch.to_pylist()
    assert MARK not in message
