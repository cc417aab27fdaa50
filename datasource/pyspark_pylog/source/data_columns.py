"""The data columns of a read: those of the topics' schemas that a frame has, and where they are stored.  Pure.

A frame of several topics with schemas has columns that are in all of them, with one type.  Its types are those of its
load: a topic whose schema evolves later is read by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.source.ranges import topics_asked_for
from pyspark_pylog.source.read_columns import NO_DATA, TYPES
from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.typed import check_typed
from spark_log.conditions import Condition, Rest
from spark_log.errors import InvalidRequest
from spark_log.metadata.state import State
from spark_log.metadata.topics.schemas import schemas_of
from spark_log.schema.arrow_types import all_nullable
from spark_log.schema.ddl import sql_type
from spark_log.schema.names import column_named, shown_name, stored_name
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema, shown_columns
from spark_log.segment.column_conditions import RowTests, row_tests
from spark_log.segment.value_read import ValueRead

SHOWN_MAX = 20
"""Names of columns in a message, at most."""

Versions = Mapping[str, Sequence[TopicSchema]]
"""The schemas of each topic, the newest first; none for a topic without a schema."""


class DataColumns(NamedTuple):
    """The data columns of a frame, and of its condition."""

    stored: Mapping[str, str]
    """The name in objects of each data column, by its name in the frame."""
    value: ValueRead | None
    rows: RowTests | None = None
    """The part of the option `where` that is not in ranges."""


def names_of(data: DataColumns | None) -> Mapping[str, str]:
    """The names of data columns in objects."""
    return NO_DATA if data is None else data.stored


def value_of(data: DataColumns | None) -> ValueRead | None:
    """How values are read; None: as bytes."""
    return None if data is None else data.value


def where_of(options: ReadOptions, data: DataColumns | None) -> Condition:
    """The condition of a read, with its columns looked up."""
    return replace(options.where, rest=None, rows=None if data is None else data.rows)


def versions_of(state: State, topics: Iterable[str]) -> Versions:
    """The schemas of those topics that exist."""
    return {topic: schemas_of(state, state.names[topic])[::-1] for topic in topics if topic in state.names}


# ----------------------------------------------------------------------------------------------- the columns of a load


def columns_of_load(versions: Versions, options: ReadOptions) -> pa.Schema:
    """The columns of a frame for which the user gives no schema.

    Raises InvalidRequest if the topics' schemas differ, or if the option `columns` names a column that does not exist.
    """
    key = pa.field("key", pa.string() if options.key_format == "string" else pa.binary())
    of_names, fields = {"value": _value_fields(versions, options), "key": [key]}, []
    for name, (_, type_) in TYPES.items():
        fields += of_names.get(name, [pa.field(name, type_)])
    if options.columns is not None:
        return pa.schema([_chosen(name, fields) for name in options.columns])
    return pa.schema([field for field in fields if field.name != "headers" or options.headers])


def _value_fields(versions: Versions, options: ReadOptions) -> list[pa.Field]:
    """The columns that stand for the value."""
    if options.value_format == "string":
        text = pa.field("value", pa.string())
        check_text(versions, pa.schema([text]), options)
        return [text]
    typed = {topic: schemas[0] for topic, schemas in versions.items() if schemas}
    without = sorted(topic for topic, schemas in versions.items() if not schemas)
    if without and options.value_format == "struct":
        raise InvalidRequest(
            f"option value.format: topic {without[0]!r} has no schema, so its values are bytes: leave the option out"
        )
    if not typed or options.value_format == "json":
        return [pa.field("value", pa.binary())]
    if without:
        raise InvalidRequest(
            f"topic {min(typed)!r} has a schema and topic {without[0]!r} has none: read both as bytes with "
            "value.format=json, or read each of them in a separate load"
        )
    if options.columns is None or options.value_format == "struct":
        _check_alike(typed)
    schema = next(iter(typed.values()))
    if options.value_format == "struct":
        return [pa.field("value", all_nullable(pa.struct(list(schema.columns))))]
    others = [shown_columns(other) for other in typed.values()]
    return [
        field for field in shown_columns(schema) if all(_type_in(other, field.name) == field.type for other in others)
    ]


def check_text(versions: Versions, schema: pa.Schema, options: ReadOptions) -> None:
    """Raises InvalidRequest if a frame has values as text, and a topic has a schema.

    schema:  the frame's columns.
    """
    at = schema.get_field_index("value")
    if at < 0 or not pa.types.is_string(schema.field(at).type) or options.value_format == "json":
        return
    if typed := sorted(topic for topic, schemas in versions.items() if schemas):
        raise InvalidRequest(
            f"topic {typed[0]!r} has a schema, so its values are columns, not text: leave value.format=string and a "
            "schema with value STRING out to read the columns, or set value.format=json and cast value, which is then JSON"
        )


def _check_alike(typed: Mapping[str, TopicSchema]) -> None:
    """Raises InvalidRequest for topics with different columns."""
    (first, schema), *others = typed.items()
    one = shown_columns(schema)
    for topic, other in others:
        two = shown_columns(other)
        for name in (*one.names, *two.names):
            if _type_in(one, name) != _type_in(two, name):
                raise InvalidRequest(
                    f"topics {first!r} and {topic!r} have different schemas: column {name!r} is {_said(one, name)} and "
                    f"{_said(two, name)}. Read them as bytes with value.format=json, name the columns that they have in "
                    "common with the option columns, or read each of them in a separate load"
                )


def _type_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    return schema.field(name).type if name in schema.names else None


def _said(schema: pa.Schema, name: str) -> str:
    return sql_type(schema.field(name).type) if name in schema.names else "missing"


def _chosen(name: str, fields: Sequence[pa.Field]) -> pa.Field:
    found = next((field for field in fields if field.name.casefold() == name.casefold()), None)
    if found is None:
        raise InvalidRequest(
            f"option columns: there is no column {name!r}; the columns are {_listed(field.name for field in fields)}"
        )
    return found


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN_MAX]) + (", …" if len(names) > SHOWN_MAX else "")


# ---------------------------------------------------------------------------------------------------- where they are


def data_columns(versions: Versions, schema: pa.Schema, options: ReadOptions) -> DataColumns | None:
    """The data columns that a frame and its condition use; None if they use none.

    schema:  the frame's columns, from `arrow_schema`.
    Raises InvalidRequest if a topic does not have one of the columns, or has it with another type.
    """
    struct, named = _wanted(schema)
    if not struct and not named:
        return _of_condition(_row_tests(versions, {}, options), options)
    if struct and named:
        raise InvalidRequest(
            f"schema: the column 'value' has all data columns, so {named[0].name!r} cannot be beside it: name it in the "
            "struct, or leave 'value' out"
        )
    wanted = struct or named
    _check_columns(options, schema)
    found = {field.name: _found(versions, field, in_struct=bool(struct)) for field in wanted}
    fields = {found[field.name]: field.type for field in wanted}
    rows = _row_tests(versions, fields, options)
    more = {} if rows is None else {name: kind for name, kind in rows.data_types.items() if name not in fields}
    if struct and more:
        raise InvalidRequest(
            f"option where: column {shown_name(min(more))!r} is not a field of the frame's struct 'value': name it there, too"
        )
    stored = {} if struct else {name: stored_name(column) for name, column in found.items()}
    return DataColumns(stored, ValueRead(_target(fields | more), bool(struct), options.parse_json), rows)


def _target(types: Mapping[str, pa.DataType]) -> TopicSchema:
    """A schema with only some columns, by which runs are read."""
    return TopicSchema(0, to_json(pa.schema(list(types.items()))))


def _of_condition(rows: RowTests | None, options: ReadOptions) -> DataColumns | None:
    """For a frame without data columns."""
    if rows is None:
        return None
    target = _target(rows.data_types) if rows.data_types else None
    return DataColumns({}, None if target is None else ValueRead(target, parse_json=options.parse_json), rows)


def _row_tests(versions: Versions, framed: Mapping[str, pa.DataType], options: ReadOptions) -> RowTests | None:
    """The condition's columns, which must have the same types in all topics.

    framed:  the types of the columns that the frame has: the condition is on what the query sees.
    """
    rest = options.where.rest
    if rest is None:
        return None
    found = {topic: _looked_up(rest, topic, schemas, framed) for topic, schemas in versions.items()}
    if not found:
        return row_tests(rest, None, ", ".join(options.subscribe) or options.pattern)
    (first, tests), *others = found.items()
    for topic, other in others:
        if other != tests:
            raise InvalidRequest(
                f"option where: its columns differ in the topics {first!r} and {topic!r}: read each of them in a separate load"
            )
    return tests


def _looked_up(rest: Rest, topic: str, schemas: Sequence[TopicSchema], framed: Mapping[str, pa.DataType]) -> RowTests:
    if not schemas:
        return row_tests(rest, None, topic)
    types = {field.name: all_nullable(field.type) for field in schemas[0].columns}
    return row_tests(rest, {**types, **framed}, topic)


def _wanted(schema: pa.Schema) -> tuple[list[pa.Field], list[pa.Field]]:
    """The data columns of a frame: those in its struct `value`, and those with their own columns."""
    struct = [] if schema.get_field_index("value") < 0 else _members(schema.field("value"))
    return struct, [field for field in schema if field.name not in TYPES]


def _members(value: pa.Field) -> list[pa.Field]:
    """The fields of a column `value`, if it is a struct."""
    return list(value.type) if pa.types.is_struct(value.type) else []


def _check_columns(options: ReadOptions, schema: pa.Schema) -> None:
    """Raises InvalidRequest if the user's schema contradicts the option `columns`.  A query may use fewer of them."""
    given = {name.casefold() for name in schema.names}
    if options.columns is not None and not given <= {name.casefold() for name in options.columns}:
        raise InvalidRequest(
            f"option columns: the schema has other columns ({_listed(schema.names)}): give one of the two"
        )


def _found(versions: Versions, field: pa.Field, *, in_struct: bool) -> str:
    """The data column of all topics that a column of the frame, or of its struct, stands for."""
    names = {_column(topic, schemas, field, in_struct=in_struct) for topic, schemas in versions.items()}
    if len(names) > 1:
        raise InvalidRequest(
            f"schema: column {field.name!r} is spelt {' and '.join(map(repr, sorted(names)))} in the topics: read each "
            "of them in a separate load"
        )
    return names.pop() if names else field.name


def _column(topic: str, schemas: Sequence[TopicSchema], field: pa.Field, *, in_struct: bool) -> str:
    if not schemas:
        raise InvalidRequest(
            f"schema: there is no column {field.name!r}; the columns are {', '.join(TYPES)}, because topic {topic!r} has no "
            "schema"
        )
    newest = schemas[0].columns
    name = field.name if in_struct else column_named(field.name, newest.names)
    if name is None or name not in newest.names:
        raise InvalidRequest(
            f"schema: there is no column {field.name!r} in topic {topic!r}; its data columns are {_listed(newest.names)}"
        )
    types = [all_nullable(one.columns.field(name).type) for one in schemas if name in one.columns.names]
    if field.type not in types:
        raise InvalidRequest(
            f"schema: column {field.name!r} of topic {topic!r} is {sql_type(types[0])}, not {sql_type(field.type)}: name "
            "it with its type, and cast it after load"
        )
    return name


def planned_data(state: State, schema: pa.Schema, options: ReadOptions) -> DataColumns | None:
    """The data columns of a frame, for the tasks of a plan.  Raises as `data_columns` and `check_text`."""
    check_text(versions_of(state, topics_asked_for(options, state.names)), schema, options)
    if options.where.rest is None and not any(_wanted(schema)):
        return None
    return data_columns(versions_of(state, topics_asked_for(options, state.names)), schema, options)


def check_reads(state: State, reads: Sequence[SliceRead], data: DataColumns | None) -> None:
    """Check that the topics of reads, planned after the frame, have the frame's data columns.

    Raises InvalidRequest if a topic does not have them.  Also raises it for records that are older than the topic's
    schema, unless their values are parsed.
    """
    if data is None or data.value is None:
        return
    versions = versions_of(state, sorted({read.topic for read in reads}))
    for field in data.value.schema.columns:
        shown = field if data.value.as_struct else field.with_name(shown_name(field.name))
        _found(versions, shown, in_struct=data.value.as_struct)
    check_typed(state, reads, data.value)
