"""Converts users' data to the columns of a typed run.

A frame has the columns of the data under their names, and those of a record: `key`, `headers`, `partition`,
`timestamp`.  Or it has the data in one column `value`, a struct.  See docs/decisions/0077-typed-topics.md for names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.errors import InvalidRecord
from spark_log.schema.ddl import sql_type
from spark_log.schema.names import PREFIX, shown_name
from spark_log.schema.topic_schema import TopicSchema, shown_columns
from spark_log.segment.arrays.numpy_arrays import flags_of, mask_of
from spark_log.segment.arrays.python_values import array_of
from spark_log.segment.convert_types import converted, is_text, lacks_required, why_not
from spark_log.segment.frame_columns import DEFAULT_NAMES, ColumnNames, Layout, check_names_once, layout_of, unknown
from spark_log.segment.record_columns import (
    INPUT_COLUMNS,
    ROLE_TYPES,
    ROWS_MAX,
    Rows,
    arrow_batches,
    arrow_stream,
    check_index,
    pieces,
    record_columns,
    typed_array,
)
from spark_log.segment.schema import OFFSET, run_schema, typed_base
from spark_log.text import shown, type_of

SHOWN_ROWS = 5
"""Rows that a message names."""
_Mask = npt.NDArray[np.bool_]


class ValueFault(NamedTuple):
    """Values that do not fit."""

    reason: str
    rows: _Mask


def conform_typed(
    data: object, schema: TopicSchema, *, now_us: int, names: ColumnNames = DEFAULT_NAMES, topic: str = ""
) -> Iterator[Rows]:
    """`data` as batches of at most 65,536 records, with the columns of `typed_base`.

    data:    as for `conform`; dicts may have the data in a dict `value`.
    now_us:  the timestamp of records without one.
    topic:   its name, for messages.
    Raises InvalidRecord with the column, and with both types or the rows.
    """
    first = 0
    for batch in _frames(data, schema, names, topic):
        for piece in pieces(batch):
            rows, faults = sifted(piece, schema, now_us=now_us, names=names, topic=topic)
            for fault in faults:
                raise InvalidRecord(f"{_numbered(np.flatnonzero(fault.rows) + first)}: {fault.reason}")
            yield rows
            first += piece.num_rows


def _numbered(rows: npt.NDArray[np.int64]) -> str:
    shown = ", ".join(f"{row:,}" for row in rows[:SHOWN_ROWS].tolist())
    if len(rows) == 1:
        return f"row {shown}"
    return f"rows {shown}{'' if len(rows) <= SHOWN_ROWS else f' and {len(rows) - SHOWN_ROWS:,} more'}"


def sifted(
    batch: pa.RecordBatch, schema: TopicSchema, *, now_us: int, names: ColumnNames = DEFAULT_NAMES, topic: str = ""
) -> tuple[Rows, list[ValueFault]]:
    """The rows of a batch as records, and the faults of some of them, whose faulty values are null in the records.

    Raises InvalidRecord for what is wrong with all rows: a column that is missing or unknown, a wrong type.
    """
    layout = layout_of(batch.schema.names, schema, names, topic)
    given = {role: batch.column(name) for role, name in layout.roles.items()}
    records, partitions = record_columns(given, batch.num_rows, now_us)
    values = _values(batch, layout, schema, topic)
    fitting = _Fitting(schema, topic, values.tombstones)
    base = typed_base(schema)
    fields = [field for field in base if field.name.startswith(PREFIX)]
    stored = [
        converted(fitting.fit(array, field), wanted.type)
        for (array, field), wanted in zip(values.columns, fields, strict=True)
    ]
    parts = [records["key"], flags_of(values.tombstones), *stored, records["timestamp"]]
    if "headers" in records:
        parts.append(records["headers"])
    found = pa.RecordBatch.from_arrays(parts, schema=run_schema(headers="headers" in records, holes=False, base=base))
    return Rows(found, partitions), fitting.faults


def with_base(batch: pa.RecordBatch, base: pa.Schema) -> pa.RecordBatch:
    """Rows of a typed run by another version of the schema; headers and offsets stay."""
    columns = []
    for field in base:
        number = batch.schema.get_field_index(field.name)
        array = pa.nulls(batch.num_rows, field.type) if number < 0 else converted(batch.column(number), field.type)
        columns.append(array)
    more = [field.name for field in batch.schema if field.name in ("headers", OFFSET.name)]
    schema = run_schema(headers="headers" in more, holes=OFFSET.name in more, base=base)
    return pa.RecordBatch.from_arrays([*columns, *(batch.column(name) for name in more)], schema=schema)


class _Given(NamedTuple):
    """The values of a frame."""

    columns: list[tuple[pa.Array | None, pa.Field]]
    """Each data column with its field; None if the frame does not have it."""
    tombstones: _Mask
    """Which rows have no value."""


def _values(batch: pa.RecordBatch, layout: Layout, schema: TopicSchema, topic: str) -> _Given:
    none = np.zeros(batch.num_rows, np.bool_)
    if layout.whole is None:
        names = layout.data
        found = [(batch.column(names[f.name]) if f.name in names else None, f) for f in schema.columns]
        return _Given(found, none)
    array = batch.column(layout.whole)
    if pa.types.is_null(array.type):
        return _Given([(None, field) for field in schema.columns], ~none)
    there = _children(array.type, schema, topic)
    tombstones = mask_of(array.is_null()) if array.null_count else none
    children = array.flatten()
    numbers = [there.get(field.name.casefold()) for field in schema.columns]
    pairs = zip(numbers, schema.columns, strict=True)
    return _Given([(None if number is None else children[number], field) for number, field in pairs], tombstones)


def _children(given: pa.DataType, schema: TopicSchema, topic: str) -> dict[str, int]:
    """Numbers of the fields of a whole value, by name."""
    if not pa.types.is_struct(given):
        raise InvalidRecord(
            f"column 'value' has type {given}, but topic {topic!r} has a schema: give its columns, or a struct of them (in "
            "Spark, parse bytes with from_json); a data column of this name is called 'value.value'"
        )
    check_names_once([field.name for field in given])
    known = {field.name.casefold() for field in schema.columns}
    for field in given:
        if field.name.casefold() not in known:
            raise InvalidRecord(unknown(field.name, schema, topic))
    return {field.name.casefold(): number for number, field in enumerate(given)}


class _Fitting:
    """Converts the columns of one batch, and collects what does not fit."""

    def __init__(self, schema: TopicSchema, topic: str, tombstones: _Mask) -> None:
        self._schema, self._topic, self._tombstones = schema, topic, tombstones
        self.faults: list[ValueFault] = []

    def fit(self, array: pa.Array | None, field: pa.Field) -> pa.Array:
        """A column in the type of its field; faulty values are null."""
        if array is None:
            rows = len(self._tombstones)
            return self._with_required(pa.nulls(rows, field.type), field, np.zeros(rows, np.bool_))
        if reason := why_not(array.type, field.type):
            where = f" of topic {self._topic!r}" if self._topic else ""
            raise InvalidRecord(
                f"column {shown_name(field.name)!r} has type {array.type}, and in version {self._schema.version} of the "
                f"schema{where} it is {sql_type(field.type)}: {reason}"
            )
        found, wrong = self._converted(array, field)
        found, wrong = self._with_text(found, field, wrong)
        return self._with_required(found, field, wrong)

    def _converted(self, array: pa.Array, field: pa.Field) -> tuple[pa.Array, _Mask]:
        """The column without values that do not fit its type, and the rows of these."""
        try:
            return converted(array, field.type), np.zeros(len(array), np.bool_)
        except pa.ArrowException as error:
            wrong = _failing(array, partial(_converts, wanted=field.type))
            text = f"column {shown_name(field.name)!r} has a value that does not fit {sql_type(field.type)}: {error}"
            self.faults.append(ValueFault(text, wrong))
            return converted(_without(array, wrong), field.type), wrong

    def _with_text(self, array: pa.Array, field: pa.Field, known: _Mask) -> tuple[pa.Array, _Mask]:
        """The column without texts that are not UTF-8: Spark does not check them, and Python cannot read them.

        Returns also the rows with these faults, and those that are known.
        """
        if is_text(array):
            return array, known
        wrong = _failing(array, is_text)
        reason = f"column {shown_name(field.name)!r} has a text that is not UTF-8: in Spark, make_valid_utf8 replaces what is wrong"
        self.faults.append(ValueFault(reason, wrong))
        return _without(array, wrong), known | wrong

    def _with_required(self, array: pa.Array, field: pa.Field, known: _Mask) -> pa.Array:
        """The column without values that have a null where the schema excludes it.  known: rows with another fault."""
        if not lacks_required(array, field):
            return array
        wrong = _failing(array, lambda part: not lacks_required(part, field)) & ~self._tombstones & ~known
        if not wrong.any():
            return array
        inside = field.nullable or not array.filter(flags_of(wrong)).null_count
        what = "has a null in a field that is NOT NULL" if inside else "is null, and the schema has it NOT NULL"
        self.faults.append(ValueFault(f"column {shown_name(field.name)!r} ({sql_type(field.type)}) {what}", wrong))
        return _without(array, wrong)


def _converts(array: pa.Array, wanted: pa.DataType) -> bool:
    try:
        converted(array, wanted)
    except pa.ArrowException:
        return False
    return True


def _without(array: pa.Array, wrong: _Mask) -> pa.Array:
    """The array with nulls instead of some values."""
    return array.take(pa.array(np.arange(len(array)), mask=wrong))


def _failing(array: pa.Array, passes: Callable[[pa.Array], bool]) -> _Mask:
    """The rows that fail alone, by halving."""
    wrong = np.zeros(len(array), np.bool_)
    parts = [(0, len(array))]
    while parts:
        start, end = parts.pop()
        if start == end or passes(array.slice(start, end - start)):
            continue
        if end - start == 1:
            wrong[start] = True
        else:
            middle = (start + end) // 2
            parts += [(start, middle), (middle, end)]
    return wrong


# --------------------------------------------------------------------------------------------------- frames as batches


def _frames(data: object, schema: TopicSchema, names: ColumnNames, topic: str) -> Iterator[pa.RecordBatch]:
    frames = getattr(sys.modules.get("pandas"), "DataFrame", ())
    if isinstance(data, frames):
        yield from _frame(data, schema, names, topic)
    elif isinstance(data, (list, tuple)):
        yield from _dicts(data, schema, names, topic)
    else:
        yield from arrow_batches(data)


def frame_schema(data: object) -> pa.Schema | None:
    """The schema of a frame, for the first schema of a topic; None for what is not a frame, and for an empty list."""
    frames = getattr(sys.modules.get("pandas"), "DataFrame", ())
    if isinstance(data, frames):
        return pa.schema([(name, typed_array(name, data[name], None).type) for name in _text_names(data)])
    if isinstance(data, (list, tuple)):
        rows = [_dict(row) for row in data[:ROWS_MAX]]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({str(name): typed_array(name, [row.get(name) for row in rows], None) for name in names}).schema
    if isinstance(data, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        return data.schema
    return arrow_stream(data).schema if hasattr(data, "__arrow_c_stream__") else None


def _text_names(frame: Any) -> list[str]:
    """The names of a pandas frame's columns.  Raises InvalidRecord for numbers and tuples."""
    for name in frame.columns:
        if not isinstance(name, str):
            raise InvalidRecord(f"the name of a column is {shown(name)}, {type_of(name)}: rename it, names are text")
    return list(frame.columns)


def _types(given: Sequence[str], schema: TopicSchema, names: ColumnNames, topic: str) -> dict[str, pa.DataType | None]:
    """The type of each column of a frame of Python values; None: the one that its values give."""
    layout = layout_of(given, schema, names, topic)
    found: dict[str, pa.DataType | None] = {name: ROLE_TYPES.get(role) for role, name in layout.roles.items()}
    if layout.whole is not None:
        found[layout.whole] = pa.struct(list(schema.columns))
    types = {field.name: field.type for field in schema.columns}
    return found | {name: types[column] for column, name in layout.data.items()}


def _frame(frame: Any, schema: TopicSchema, names: ColumnNames, topic: str) -> Iterator[pa.RecordBatch]:
    """A pandas frame: Arrow reads its typed columns, and the others are Python values."""
    check_index(frame, (*INPUT_COLUMNS, *shown_columns(schema).names) if names.value is None else INPUT_COLUMNS)
    given = list(dict.fromkeys(_text_names(frame)))
    arrays = {}
    for name, kind in _types(given, schema, names, topic).items():
        column = frame[name]
        if column.dtype != object or kind is None or kind in ROLE_TYPES.values():
            arrays[name] = typed_array(name, column, kind if kind in ROLE_TYPES.values() else None)
        else:
            values = [None if missing else value for value, missing in zip(column, column.isna(), strict=True)]
            arrays[name] = array_of(name, values, kind, 0)
    yield from pa.table(arrays).to_batches(max_chunksize=ROWS_MAX)


def _dicts(rows: Sequence[object], schema: TopicSchema, names: ColumnNames, topic: str) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), ROWS_MAX):
        part = [_dict(row) for row in rows[start : start + ROWS_MAX]]
        found = dict.fromkeys(name for row in part for name in row)
        yield pa.record_batch(
            {
                name: typed_array(name, [row.get(name) for row in part], kind)
                if kind is None or kind in ROLE_TYPES.values()
                else array_of(name, [row.get(name) for row in part], kind, start)
                for name, kind in _types([str(name) for name in found], schema, names, topic).items()
            }
        )


def _dict(row: object) -> Mapping[Any, Any]:
    if not isinstance(row, Mapping):
        raise InvalidRecord(f"a list of records contains {type_of(row)}; expected dicts only")
    return row
