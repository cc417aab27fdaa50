"""Which column of a user's frame is what: the key, the timestamp, or a column of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from spark_log.errors import InvalidRecord
from spark_log.schema.arrow_types import check_field_names
from spark_log.schema.ddl import sql_type
from spark_log.schema.names import PREFIX, RECORD_NAMES, column_named, is_reserved, shown_name
from spark_log.schema.topic_schema import TopicSchema

ROLES = ("key", "timestamp", "headers", "partition")
"""Columns of a record that are read from a frame."""


class ColumnNames(NamedTuple):
    """Which columns of a frame are what, where names alone do not say it."""

    value: tuple[str, ...] | None = None
    """The columns of the data; None: all but those of a record."""
    key: str = ""
    """The key; empty: `key`."""
    timestamp: str = ""
    """The timestamp; empty: `timestamp`."""


DEFAULT_NAMES = ColumnNames()


class Layout(NamedTuple):
    """The columns of a frame."""

    roles: Mapping[str, str]
    """Name in the frame, by column of a record."""
    data: Mapping[str, str]
    """Name in the frame, by data column."""
    whole: str | None
    """Name of the column that has the whole value as a struct; None: each data column is a column of the frame."""


def layout_of(given: Sequence[str], schema: TopicSchema, names: ColumnNames = DEFAULT_NAMES, topic: str = "") -> Layout:
    """Which column of a frame is what.  Raises InvalidRecord."""
    # Found again and again for the same names: for single rows, it takes as long as their conversion.
    return _layout(tuple(given), schema, names, topic)


@lru_cache(maxsize=256)
def _layout(given: tuple[str, ...], schema: TopicSchema, names: ColumnNames, topic: str) -> Layout:
    roles, candidates = _roles(given, names)
    if "value" in candidates and names.value is None:
        _check_alone(candidates, names)
        return Layout(roles, {}, "value")
    data: dict[str, str] = {}
    for name in candidates:
        column = _named(name, schema.columns.names, exact=names.value is not None)
        if column is None:
            raise InvalidRecord(unknown(name, schema, topic))
        if column in data:
            raise InvalidRecord(f"the columns {data[column]!r} and {name!r} are both column {column!r} of the schema")
        data[column] = name
    _check_roles(roles, data, schema.columns.names)
    for field in schema.columns:
        if field.name not in data and not field.nullable:
            raise InvalidRecord(
                f"the required column {shown_name(field.name)!r} ({sql_type(field.type)} NOT NULL) is missing; the frame "
                f"has {', '.join(given) or 'no columns'}"
            )
    return Layout(roles, data, None)


def _check_alone(candidates: Sequence[str], names: ColumnNames) -> None:
    """Raises InvalidRecord for columns that would be lost, because `value` is the whole value."""
    others = [shown_name(name) for name in candidates if name not in ("value", names.key, names.timestamp)]
    if others:
        raise InvalidRecord(
            f"beside 'value', which is the whole value, there are the columns {', '.join(others)}: leave 'value' out, or "
            "the others, or name the data's columns in value.columns; write tombstones (a null 'value') in a separate call"
        )


def _named(name: str, columns: Sequence[str], *, exact: bool) -> str | None:
    """The data column of a name.  exact: the name is one of value.columns, so no column of the record is meant."""
    found = next((one for one in columns if one.casefold() == name.casefold()), None) if exact else None
    return found or column_named(name, columns)


def _check_roles(roles: Mapping[str, str], data: Mapping[str, str], columns: Sequence[str]) -> None:
    """Raises InvalidRecord where a data column is missing, and a column of the record has its name."""
    for role, name in roles.items():
        twin = next((one for one in columns if one.casefold() == name.casefold()), None)
        if twin is not None and twin not in data:
            raise InvalidRecord(
                f"column {name!r} is the {role} of the record, and the schema has a column of that name, which would be "
                f"null: call that one {shown_name(twin)!r}, or name the data's columns in value.columns"
            )


def data_columns(given: pa.Schema, names: ColumnNames = DEFAULT_NAMES) -> pa.Schema:
    """The schema of a topic that a frame's columns give, all of them nullable.

    Raises InvalidRecord for a frame whose column `value` is the whole value.
    """
    _, candidates = _roles(given.names, names)
    if "value" in candidates and names.value is None:
        raise InvalidRecord(
            "a schema cannot be taken from a frame with a column 'value', which is the whole value: leave it out, call it "
            "'value.value', or name the data's columns in value.columns"
        )
    return pa.schema([pa.field(_plain(name), given.field(name).type) for name in candidates])


def _plain(name: str) -> str:
    """The data column of a name with the prefix of columns that a record has, too."""
    rest = name[len(PREFIX) :]
    return rest if name.casefold().startswith(PREFIX) and is_reserved(rest) else name


def _roles(given: Sequence[str], names: ColumnNames) -> tuple[dict[str, str], list[str]]:
    """Columns of the record, in upper or lower case, and the names that may be data."""
    check_names_once(given)
    spelled = {name.casefold(): name for name in given}
    of_data = names.value or ()
    options = [("key.column", names.key), ("timestamp.column", names.timestamp)]
    for option, name in [*options, *(("value.columns", name) for name in of_data)]:
        if name and name not in given:
            raise InvalidRecord(f"{option} has {name!r}, but the frame has {', '.join(given) or 'no columns'}")
    named = {"key": names.key, "timestamp": names.timestamp}
    roles = {role: spell for role in ROLES if (spell := named.get(role) or spelled.get(role))}
    roles = {role: name for role, name in roles.items() if named.get(role) or name not in of_data}
    if names.value is not None:
        return roles, list(names.value)
    free = {"value", *(role for role, name in named.items() if name)}
    taken = {name.casefold() for name in RECORD_NAMES if name not in free}
    return roles, [name for name in given if name.casefold() not in taken]


def check_names_once(given: Sequence[str]) -> None:
    """Raises InvalidRecord for names that differ only in case, or not at all."""
    try:
        check_field_names(given)
    except ValueError as error:
        raise InvalidRecord(str(error)) from None


def unknown(name: str, schema: TopicSchema, topic: str) -> str:
    """The message for a column that the schema does not have."""
    where = f"topic {topic!r}" if topic else "the topic"
    return (
        f"column {name!r} is not in the schema of {where} (version {schema.version}: {', '.join(schema.columns.names)}): "
        f"drop it, or add it with `pylog topic alter {topic or 'NAME'} --schema …`"
    )
