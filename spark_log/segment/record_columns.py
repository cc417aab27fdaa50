"""Converts users' data to the columns of a record.

Users provide more types than a run stores: strings for bytes, other time units, extra columns, frames, lists of dicts.
The result has exactly the types of `RECORD_SCHEMA` or `RECORD_SCHEMA_HEADERS`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidRecord
from spark_log.segment.arrays.few_values import array_from
from spark_log.segment.arrays.mixed_times import check_mixed
from spark_log.segment.arrays.numpy_arrays import array_of, mask_of, micros_of, numbers_or, scalar_of
from spark_log.segment.convert_types import decoded, is_utf8
from spark_log.segment.schema import HEADERS, RECORD_SCHEMA, RECORD_SCHEMA_HEADERS, TIMESTAMP
from spark_log.text import shown, type_of

INPUT_COLUMNS = ("key", "value", "timestamp", "headers", "partition")
"""Columns that are read from users' data; others are ignored, unless their name is similar to a missing one's."""
NEAR = 0.85
"""Similarity from which a name counts as misspelt: `Timestamp`, `timestamp_ms`, `header`; not `timestampType`."""
NEAR_REQUIRED = 0.7
"""Similarity from which a name counts as that of a missing required column, which is an error in any case: `val`,
`vslue`."""
FORMS = {
    "key": "; give text or bytes, as json.dumps makes them",
    "value": "; give text or bytes, as json.dumps makes them",
    "headers": "; give a list of pairs of text and bytes",
}
"""Hints for values that cannot be converted, by column."""

ROLE_TYPES = {"key": pa.binary(), "headers": HEADERS}
"""Types of the columns of a record that are made from Python values; those of the others follow from the values."""

FRAMES = "give a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or Polars frame, or a list of dicts"

ROWS_MAX = 1 << 16
_BYTES_MAX = 1 << 28
"""Users' batches are split below both, so that copies stay small and 32-bit offsets always suffice."""


class Rows(NamedTuple):
    """Consecutive records of a user, in the user's order."""

    records: pa.RecordBatch
    """`RECORD_SCHEMA`, or `RECORD_SCHEMA_HEADERS` if any of these records has a header.  Timestamps are never null."""
    partitions: pa.Array | None
    """int64, the partition set in each record; null leaves the choice to the partitioner."""


def conform(data: object, *, now_us: int) -> Iterator[Rows]:
    """`data` as batches of at most 65,536 records.

    data:    a pyarrow Table, RecordBatch or RecordBatchReader, a pandas frame, a list of dicts, or anything with
             `__arrow_c_stream__` (Polars, DuckDB), with the columns `INPUT_COLUMNS`, of which only `value` is required.
             key, value: string or binary of any kind (strings as UTF-8).  timestamp: a timestamp (without a zone: UTC)
             or int64 milliseconds.  partition: integer.
    now_us:  the timestamp of records without one.
    Raises InvalidRecord with the column's name and type, when iteration reaches the invalid batch.
    """
    for batch in _batches(data):
        for piece in pieces(batch):
            yield _conform_batch(piece, now_us)


def check_names(names: Iterable[object], columns: Sequence[str] = INPUT_COLUMNS, near: float = NEAR) -> None:
    """Raises InvalidRecord for a name similar to a missing column's: its data would be lost without notice."""
    misspelt = _misspelt(tuple(name for name in names if isinstance(name, str)), tuple(columns), near)
    if misspelt is not None:
        given, meant = misspelt
        raise InvalidRecord(
            f"column {given!r} would be ignored: did you mean {meant!r}? Names are case-sensitive; rename or drop it"
        )


def check_index(frame: Any, columns: Iterable[str]) -> None:
    """Raises InvalidRecord for a pandas frame whose index has the name of a column that is missing."""
    lost = [name for name in frame.index.names if name in columns and name not in frame.columns]
    if lost:
        raise InvalidRecord(
            f"the index {lost[0]!r} of the frame would be ignored: make it a column with `reset_index()`"
        )


@lru_cache(maxsize=64)
def _misspelt(names: tuple[str, ...], columns: tuple[str, ...], near: float) -> tuple[str, str] | None:
    """A name and the missing column that it resembles.  Cached, because each batch of a table has the same names."""
    missing = [name for name in columns if name not in names]
    for name in names:
        if name not in columns and (like := _alike(name.lower(), missing, near)):
            return name, like[0]
    return None


def _alike(name: str, columns: Sequence[str], near: float) -> list[str]:
    """Columns with a similar name, or with the same letters in another order: `vlaue`, `kye`."""
    swapped = [column for column in columns if sorted(column) == sorted(name)]
    return swapped or get_close_matches(name, columns, n=1, cutoff=near)


def _batches(data: object) -> Iterator[pa.RecordBatch]:
    # Another thread may be importing pandas (Arrow does, for dicts): then `data` is not a pandas frame.
    frames = getattr(sys.modules.get("pandas"), "DataFrame", ())
    if isinstance(data, frames):
        return _batches_of_frame(data)
    if isinstance(data, (list, tuple)):
        return _batches_of_dicts(data)
    return arrow_batches(data)


def arrow_batches(data: object) -> Iterator[pa.RecordBatch]:
    """The batches of Arrow data, or of anything with an Arrow stream.  Raises InvalidRecord for other data."""
    if isinstance(data, pa.RecordBatch):
        return iter((data,))
    if isinstance(data, pa.Table):
        return iter(data.to_batches(max_chunksize=ROWS_MAX))
    if isinstance(data, pa.RecordBatchReader):
        return iter(data)
    if hasattr(data, "__arrow_c_stream__"):
        return iter(arrow_stream(data))
    raise InvalidRecord(f"records cannot be taken from {type_of(data)}: {FRAMES}")


def arrow_stream(data: object) -> pa.RecordBatchReader:
    """The Arrow stream of a frame.  Raises InvalidRecord for a type that Arrow does not have, and for other data."""
    _check_no_objects(data)
    try:
        return pa.RecordBatchReader.from_stream(data)
    except Exception as error:
        raise InvalidRecord(
            f"records cannot be taken from {type_of(data)}: {shown(error, str)}; {FRAMES}, and cast columns of types that "
            "Arrow does not have, such as Int128 of Polars"
        ) from error


def _check_no_objects(data: object) -> None:
    """Raises InvalidRecord for a Polars frame with a column of Python objects: Arrow would get their addresses."""
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(data, polars.DataFrame):
        for name, dtype in data.schema.items():
            if dtype == polars.Object:
                raise InvalidRecord(f"column {name!r} has Python objects (Polars Object): convert it to text or bytes")


def _batches_of_frame(frame: Any) -> Iterator[pa.RecordBatch]:
    """Converts only the required columns: Arrow may not support others."""
    check_names(frame.columns)
    check_index(frame, INPUT_COLUMNS)
    if "value" not in frame.columns and len(frame):
        raise _without_value(list(frame.columns))
    columns = {name: frame[name] for name in INPUT_COLUMNS if name in frame.columns}
    for name, column in columns.items():
        if getattr(column, "ndim", 1) != 1:
            raise InvalidRecord(f"column {name!r} appears more than once")
    types = {"headers": HEADERS}
    arrays = {name: typed_array(name, column, types.get(name)) for name, column in columns.items()}
    return iter(pa.table(arrays).to_batches(max_chunksize=ROWS_MAX))


def _batches_of_dicts(rows: Sequence[object]) -> Iterator[pa.RecordBatch]:
    types = {"value": pa.binary(), **ROLE_TYPES}
    for start in range(0, len(rows), ROWS_MAX):
        part = rows[start : start + ROWS_MAX]
        for row in part:
            _check_dict(row)
        found = set[object]().union(*part)  # type: ignore[arg-type]
        lookalikes = [name for name in found if isinstance(name, str) and _misspelt((name,), INPUT_COLUMNS, NEAR)]
        # Row by row: one row may have the correct name, and another one the misspelt name.
        spellings: set[tuple[object, ...]] = {tuple(row) for row in part if any(name in row for name in lookalikes)}  # type: ignore[arg-type, operator]
        for given in spellings:
            check_names(given)
        names = [name for name in INPUT_COLUMNS if name in found]
        arrays = {n: typed_array(n, [row.get(n) for row in part], types.get(n)) for n in names}  # type: ignore[attr-defined]
        yield from pa.table(arrays).to_batches()


def _check_dict(row: object) -> None:
    """Rejects a dict without `value`: the name may be misspelt, and the record would become a tombstone."""
    if not isinstance(row, Mapping):
        raise InvalidRecord(f"a list of records contains {type_of(row)}; expected dicts only")
    if "value" not in row:
        check_names(row, ["value"], NEAR_REQUIRED)
        names = ", ".join(map(repr, row)) or "nothing"
        raise InvalidRecord(f"a record has no 'value', it has {names}; for a record without a value give None")


def typed_array(name: str, values: Any, type_: pa.DataType | None) -> pa.Array:
    try:
        if type_ is None:
            check_mixed(values)
        return array_from(values, type_) if isinstance(values, list) else pa.array(values, type=type_)
    except Exception as error:
        raise InvalidRecord(f"column {name!r} cannot be written: {shown(error, str)}{FORMS.get(name, '')}") from error


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 1 or (batch.num_rows <= ROWS_MAX and _bytes_at_most(batch) <= _BYTES_MAX):
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))


def _bytes_at_most(batch: pa.RecordBatch) -> int:
    try:
        return batch.nbytes
    except pa.ArrowException:  # view types, before pyarrow 24
        return batch.get_total_buffer_size()


def _without_value(names: Sequence[object]) -> InvalidRecord:
    check_names(names, ["value"], NEAR_REQUIRED)
    return InvalidRecord(f"the column 'value' is missing; the columns are {', '.join(map(str, names)) or 'none'}")


def _conform_batch(batch: pa.RecordBatch, now_us: int) -> Rows:
    check_names(batch.schema.names)
    given = {name: _column(batch, name) for name in INPUT_COLUMNS if name in batch.schema.names}
    if "value" not in given:
        raise _without_value(batch.schema.names)
    value = _binary("value", given["value"])
    records, partitions = record_columns(given, batch.num_rows, now_us)
    arrays = [records["key"], value, records["timestamp"]]
    schema = RECORD_SCHEMA
    if "headers" in records:
        arrays.append(records["headers"])
        schema = RECORD_SCHEMA_HEADERS
    return Rows(pa.RecordBatch.from_arrays(arrays, schema=schema), partitions)


def record_columns(
    given: Mapping[str, pa.Array], rows: int, now_us: int
) -> tuple[dict[str, pa.Array], pa.Array | None]:
    """The columns of records beside the value: key, timestamp, and headers if there are any; and explicit partitions.

    given:  those of them that the data has.
    """
    given = {name: decoded(array) for name, array in given.items()}
    found = {
        "key": _binary("key", given["key"]) if "key" in given else pa.nulls(rows, pa.binary()),
        "timestamp": _timestamps(given["timestamp"], now_us) if "timestamp" in given else _all_at(now_us, rows),
    }
    headers = _maybe_headers(given["headers"]) if "headers" in given else None
    if headers is not None:
        found["headers"] = headers
    return found, _partitions(given["partition"]) if "partition" in given else None


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column without dictionary encoding."""
    if len(batch.schema.get_all_field_indices(name)) > 1:
        raise InvalidRecord(f"column {name!r} appears more than once")
    return decoded(batch.column(name))


def _is_text(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    t = pa.types
    known = t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_) or t.is_fixed_size_binary(type_)
    return bool(known)


def _binary(name: str, array: pa.Array) -> pa.Array:
    if not (pa.types.is_null(array.type) or _is_text(array.type) or _is_bytes(array.type)):
        raise InvalidRecord(
            f"column {name!r} has type {array.type}: expected string or binary: cast it, or use to_json in Spark"
        )
    return _cast(name, array, pa.binary())


def _timestamps(array: pa.Array, now_us: int) -> pa.Array:
    type_ = array.type
    if pa.types.is_null(type_):
        return _all_at(now_us, len(array))
    if pa.types.is_timestamp(type_):
        # Nanoseconds are cut off on purpose; for coarser units the cast catches overflow.
        if type_.unit == "ns":
            array = _whole_microseconds(array)
        else:
            array = _cast("timestamp", array, pa.timestamp("us", tz=type_.tz)).view(TIMESTAMP)
    elif pa.types.is_int64(type_):
        array = _microseconds(array).view(TIMESTAMP)
    else:
        why = ": a date is not a moment, cast it to a timestamp" if pa.types.is_date(type_) else ""
        raise InvalidRecord(
            f"column 'timestamp' has type {type_}{why}; expected a timestamp, or int64 with milliseconds since 1970"
        )
    return pc.fill_null(array, scalar_of(now_us, TIMESTAMP)) if array.null_count else array


def _whole_microseconds(array: pa.Array) -> pa.Array:
    """Times with nanoseconds, rounded down also before 1970, as Spark does."""
    micros = np.floor_divide(array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), 1000)
    return pa.array(micros, mask=array.is_null().to_numpy(zero_copy_only=False)).view(TIMESTAMP)


def _all_at(us: int, rows: int) -> pa.Array:
    return array_of(np.full(rows, us, np.int64), TIMESTAMP)


def _microseconds(milliseconds: pa.Array) -> pa.Array:
    try:
        return pc.multiply_checked(milliseconds, scalar_of(1000, pa.int64()))
    except pa.ArrowInvalid as error:
        raise InvalidRecord("column 'timestamp' has type int64 and values too large for milliseconds") from error


def _maybe_headers(array: pa.Array) -> pa.Array | None:
    """None if none of the records has a header."""
    type_ = array.type
    if pa.types.is_null(type_):
        return None
    if not _is_headers(type_):
        raise InvalidRecord(
            f"column 'headers' has type {type_}: expected a list of structs with key (string) and value (binary)"
        )
    headers = _cast("headers", _key_first(array), HEADERS)
    for sentence, _ in wrong_keys(headers):
        raise InvalidRecord(sentence)
    return headers if len(headers.flatten()) else None


def wrong_keys(headers: pa.Array) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """Invalid header keys: (what is wrong, in which rows), usually empty.  headers: a list of structs with a key.

    Spark does not check that a string is UTF-8, and no Python client can read a key that is not.
    """
    entries = headers.flatten()
    keys = pc.struct_field(entries, "key")
    found = []
    if keys.null_count:
        found.append(("column 'headers' has a header without a key", mask_of(pc.is_null(keys))))
    if not is_utf8(keys):
        found.append(("column 'headers' has a header with a key that is not UTF-8", _not_utf8(keys)))
    if not found:
        return []
    rows = np.repeat(np.arange(len(headers)), header_counts(headers))
    return [(sentence, np.bincount(rows[wrong], minlength=len(headers)).astype(bool)) for sentence, wrong in found]


def _not_utf8(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Which texts are not UTF-8."""
    encoded = texts.dictionary_encode()
    wrong = [not is_utf8(encoded.dictionary.slice(code, 1)) for code in range(len(encoded.dictionary))]
    return np.array([*wrong, False])[numbers_or(len(wrong), encoded.indices)]


def header_counts(headers: pa.Array) -> npt.NDArray[np.int64]:
    """How many headers each row has."""
    return numbers_or(0, pc.list_value_length(headers)).astype(np.int64)


def _key_first(array: pa.Array) -> pa.Array:
    """Put a struct's fields in order; before pyarrow 21 a cast does not."""
    type_ = array.type
    if pa.types.is_map(type_) or type_.value_type.field(0).name == "key":
        return array
    entries = array.flatten()
    fields = [entries.field("key"), entries.field("value")]
    ordered = pa.StructArray.from_arrays(fields, ["key", "value"], mask=entries.is_null())
    ends = np.cumsum(np.concatenate(([0], header_counts(array))), dtype=np.int32)
    return pa.ListArray.from_arrays(array_of(ends, pa.int32()), ordered, mask=array.is_null())


def _is_headers(type_: pa.DataType) -> bool:
    t = pa.types
    if t.is_map(type_):
        return _is_text(type_.key_type) and (_is_text(type_.item_type) or _is_bytes(type_.item_type))
    if not (t.is_list(type_) or t.is_large_list(type_) or t.is_list_view(type_) or t.is_large_list_view(type_)):
        return False
    entry = type_.value_type
    if not t.is_struct(entry) or sorted(field.name for field in entry) != ["key", "value"]:
        return False
    value = entry.field("value").type
    return _is_text(entry.field("key").type) and (_is_text(value) or _is_bytes(value) or t.is_null(value))


def micros(records: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Timestamps of records, none of them null, in microseconds."""
    return micros_of(records.column("timestamp"))


def _partitions(array: pa.Array) -> pa.Array:
    if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise InvalidRecord(f"column 'partition' has type {array.type}: expected an integer")
    return _cast("partition", array, pa.int64())


def _cast(name: str, array: pa.Array, to: pa.DataType) -> pa.Array:
    if array.type == to:
        return array
    if to == pa.binary() and pa.types.is_string(array.type):  # the same bytes
        return array.view(to)
    try:
        return array.cast(to)
    except pa.ArrowException as error:
        raise InvalidRecord(
            f"column {name!r} has type {array.type} and a value that cannot be written: {error}"
        ) from error
