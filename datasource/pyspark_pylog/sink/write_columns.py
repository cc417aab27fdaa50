"""The columns of a frame that are written, checked in the driver, and the records that a task makes from a batch.

Columns are looked up as in Kafka's connector: by exact, case-sensitive name.  Others are ignored, unless their name is
similar to a missing one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from spark_log.errors import InvalidRecord
from spark_log.segment.record_columns import NEAR_REQUIRED, Rows, check_names, conform, wrong_keys

TEXT = (StringType, VarcharType, CharType)
BYTES = (*TEXT, BinaryType)
TYPES: dict[str, tuple[type[DataType], ...]] = {
    "topic": TEXT,
    "key": BYTES,
    "value": BYTES,
    "headers": (ArrayType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType, LongType),
}
"""Accepted types by column, in the order of the checks of Kafka's connector; it does not write the timestamp."""
HEADERS = "array<struct<key:string,value:binary>>"
EXPECTED = {
    "topic": "string",
    "key": "string or binary: cast it, or use to_json",
    "value": "string or binary: cast it, or use to_json",
    "headers": HEADERS,
    "partition": "int",
    "timestamp": "timestamp, or bigint with milliseconds since 1970: cast it, which reads text, dates and timestamp_ntz in the "
    "session's time zone",
}


class BatchPiece(NamedTuple):
    """Consecutive rows of the frame."""

    rows: Rows
    topics: pa.Array | None
    """The topic in each row; None if all rows have one topic."""
    faults: Sequence[tuple[str, npt.NDArray[np.bool_]]]
    """Faults in header keys and in data columns, which were replaced here, and their rows."""
    given: pa.StructArray | None = None
    """If the rows are typed, their values as the frame has them."""


def written_columns(schema: StructType, topic: str | None, instead: str = "") -> tuple[str, ...]:
    """The columns to write.  Raises InvalidRecord that names column and type: the topic's first, then as `TYPES`.

    instead:  added to the error if there is no column `value`: another way to write the frame.
    """
    found = {field.name: field.dataType for field in schema.fields}
    if twice := sorted(name for name, count in Counter(schema.names).items() if count > 1):
        raise InvalidRecord(
            f"column {twice[0]!r} is there more than once, and Spark hands no such frame to Python: drop one"
        )
    if topic is not None:
        found.pop("topic", None)
    elif "topic" not in found:
        check_names(found, ["topic"], NEAR_REQUIRED)
        raise InvalidRecord("which topic? set the option 'topic', or give the frame a column 'topic'")
    for name in TYPES:
        if name in found:
            check_type(name, StructField(name, found[name]))
        if name == "value" and name not in found:
            check_names(found, [name], NEAR_REQUIRED)
            raise InvalidRecord(
                f"there is no column 'value' to write; the frame has {', '.join(schema.names) or 'no columns'}{instead}"
            )
    check_names(found, [name for name in TYPES if name != "topic" or topic is None])
    return tuple(name for name in found if name in TYPES)


def check_type(name: str, field: StructField) -> None:
    """Raises InvalidRecord if a column cannot be a record's column of that name."""
    if not _fits(name, field.dataType):
        raise InvalidRecord(f"column {field.name!r} is {field.dataType.simpleString()}, expected {EXPECTED[name]}")


def _fits(name: str, type_: DataType) -> bool:
    """Compares types; in headers, it ignores whether nulls are possible."""
    return isinstance(type_, TYPES[name]) and (name != "headers" or type_.simpleString() == HEADERS)


def pieces(columns: Sequence[str], batch: pa.RecordBatch, now_ms: int) -> Iterator[BatchPiece]:
    """A batch of the frame as records."""
    arrays = {name: batch.column(name) for name in columns}
    topics = arrays.pop("topic", None)
    wrong = wrong_keys(arrays["headers"]) if "headers" in arrays else []
    if wrong:
        arrays["headers"] = with_keys(arrays["headers"])
    at = 0
    for good in conform(pa.record_batch(arrays), now_us=now_ms * 1000):
        end = at + good.records.num_rows
        yield BatchPiece(
            good,
            None if topics is None else topics.slice(at, end - at),
            [(sentence, rows[at:end]) for sentence, rows in wrong if rows[at:end].any()],
        )
        at = end


def with_keys(headers: pa.Array) -> pa.Array:
    """Headers with keys that can be stored, so that the row can be kept: an empty key, or one with U+FFFD."""
    entries = headers.flatten()
    encoded = pc.fill_null(pc.struct_field(entries, "key"), "").dictionary_encode()
    texts = [key.decode("utf-8", "replace") for key in encoded.dictionary.cast(pa.binary()).to_pylist()]
    keys = pa.array(texts, pa.string()).take(encoded.indices)
    named = pa.StructArray.from_arrays([keys, pc.struct_field(entries, "value")], ["key", "value"])
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(headers), 0)).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, named, mask=headers.is_null())
