"""The types of data columns: those of Spark, in Arrow.

`storable` gives the canonical form of a user's Arrow schema: with the types and the names of inner fields that Spark's
own conversion has, so that equal schemas are equal values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from spark_log.errors import InvalidSchema

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
ELEMENT = "element"
"""Name of the field of an array's elements, as in Spark."""
COLUMNS_MAX = 10_000
"""Columns of a schema, with those of structs."""

_t = pa.types
_SAME: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (_t.is_boolean, pa.bool_()),
    (_t.is_int8, pa.int8()),
    (_t.is_int16, pa.int16()),
    (_t.is_int32, pa.int32()),
    (_t.is_int64, pa.int64()),
    (_t.is_uint8, pa.int16()),
    (_t.is_uint16, pa.int32()),
    (_t.is_uint32, pa.int64()),
    (_t.is_float16, pa.float32()),
    (_t.is_float32, pa.float32()),
    (_t.is_float64, pa.float64()),
    (_t.is_string, pa.string()),
    (_t.is_large_string, pa.string()),
    (_t.is_string_view, pa.string()),
    (_t.is_binary, pa.binary()),
    (_t.is_large_binary, pa.binary()),
    (_t.is_binary_view, pa.binary()),
    (_t.is_fixed_size_binary, pa.binary()),
    (_t.is_date, pa.date32()),
)
"""Each type, and the one that holds all of its values."""
INSTEAD: Mapping[str, str] = {
    "uint64": "int64, or decimal(20, 0)",
    "null": "the type that the values will have",
    "time": "a string, or an integer with the microseconds of the day",
    "duration": "an integer with the microseconds",
    "interval": "an integer with the microseconds, or two timestamps",
    "variant": "a string of JSON, or a struct",
    "union": "a struct with one nullable field for each type",
}
"""A type to use instead, by the beginning of an unsupported type's name."""


def storable(schema: pa.Schema) -> pa.Schema:
    """The canonical form of a schema.

    Raises InvalidSchema for an unsupported type, for names that are empty or differ only in case, and for no columns.
    """
    if not len(schema):
        raise InvalidSchema("a schema needs one column at least")
    fields = _fields(schema, ())
    if (count := sum(map(_count, fields))) > COLUMNS_MAX:
        raise InvalidSchema(
            f"a schema has {COLUMNS_MAX:,} columns at most, with those of structs; this one has {count:,}"
        )
    return pa.schema(fields)


def _count(field: pa.Field) -> int:
    return 1 + sum(_count(field.type.field(number)) for number in range(field.type.num_fields))


def _fields(given: Iterable[pa.Field], path: tuple[str, ...]) -> list[pa.Field]:
    fields = list(given)
    check_field_names([field.name for field in fields], path)
    return [pa.field(field.name, _type(field.type, (*path, field.name)), field.nullable) for field in fields]


def check_field_names(names: Iterable[str], path: tuple[str, ...] = ()) -> None:
    """Raises InvalidSchema for empty names, and for names that differ only in case.

    path:  of the struct that has the fields.
    """
    names = list(names)
    where = f" in {dotted(path)}" if path else ""
    if "" in names:
        raise InvalidSchema(f"a column{where} has an empty name: give it a name")
    for twin, count in Counter(name.casefold() for name in names).items():
        if count > 1:
            twins = " and ".join(repr(name) for name in names if name.casefold() == twin)
            raise InvalidSchema(
                f"the columns {twins}{where} have the same name, as Spark does not tell upper and lower case apart: "
                "rename one"
            )


def dotted(path: Iterable[str]) -> str:
    """The path of a field, for messages."""
    return repr(".".join(path))


def _type(given: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    for is_it, stored in _SAME:
        if is_it(given):
            return stored
    if _t.is_dictionary(given):
        return _type(given.value_type, path)
    if _t.is_timestamp(given):
        return TIMESTAMP_NTZ if given.tz is None else TIMESTAMP
    if _t.is_decimal(given):
        return _decimal(given, path)
    if _t.is_struct(given):
        return pa.struct(_fields(given, path))
    if is_list(given):
        element = given.value_field
        return pa.list_(pa.field(ELEMENT, _type(element.type, (*path, ELEMENT)), element.nullable))
    if _t.is_map(given):
        value = given.item_field
        return map_of(_type(given.key_type, (*path, "key")), _type(value.type, (*path, "value")), value.nullable)
    raise unsupported(str(given), dotted(path))


def _decimal(given: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    if not 1 <= given.precision <= 38 or not 0 <= given.scale <= given.precision:
        raise InvalidSchema(
            f"column {dotted(path)} has type {given}: expected a decimal of 1 to 38 digits, 0 to all of them after the point"
        )
    return pa.decimal128(given.precision, given.scale)


def map_of(key: pa.DataType, value: pa.DataType, nullable: bool) -> pa.DataType:
    """A map whose inner fields have the names of Spark."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable))


def is_list(given: pa.DataType) -> bool:
    """Whether it is any kind of list."""
    return bool(
        _t.is_list(given)
        or _t.is_large_list(given)
        or _t.is_fixed_size_list(given)
        or _t.is_list_view(given)
        or _t.is_large_list_view(given)
    )


def unsupported(type_name: str, column: str) -> InvalidSchema:
    """The error for a column of an unsupported type."""
    word = type_name.lower().lstrip("'\" ")
    instead = next(
        (use for name, use in INSTEAD.items() if name in word), "a supported one: docs/tasks/typed.md lists them"
    )
    return InvalidSchema(f"column {column} has type {type_name}, which a topic cannot have: use {instead}")


def all_nullable(given: pa.DataType) -> pa.DataType:
    """A type of which inner fields may all be null, but for the keys of maps."""
    if _t.is_struct(given):
        return pa.struct([pa.field(field.name, all_nullable(field.type)) for field in given])
    if _t.is_list(given):
        return pa.list_(pa.field(ELEMENT, all_nullable(given.value_type)))
    if _t.is_map(given):
        return map_of(all_nullable(given.key_type), all_nullable(given.item_type), True)
    return given


def nullable(schema: pa.Schema) -> pa.Schema:
    """A schema whose columns may all be null, at any depth."""
    return pa.schema([pa.field(field.name, all_nullable(field.type)) for field in schema])
