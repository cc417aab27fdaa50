"""Which schema may follow another one: each value of the old one must be a value of the new one.

Allowed are new nullable columns, wider numbers, and nullable instead of required; the same inside of structs, arrays
and maps.  The order of columns may change.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_log.errors import IncompatibleSchema
from spark_log.schema.arrow_types import ELEMENT, dotted
from spark_log.schema.ddl import sql_type

INTEGERS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""Integer types, and the digits of their largest values."""
_DOUBLE = (pa.int8(), pa.int16(), pa.int32(), pa.float32())
"""Types whose values all are values of a double."""


def check_evolution(topic: str, old: pa.Schema, new: pa.Schema) -> None:
    """Raises IncompatibleSchema, with the column, both types and what to do instead, unless `new` may follow `old`."""
    _check_fields(topic, list(old), list(new), ())


def _check_fields(topic: str, old: Iterable[pa.Field], new: Iterable[pa.Field], path: tuple[str, ...]) -> None:
    there = {field.name: field for field in new}
    old = list(old)
    for field in old:
        found = there.pop(field.name, None)
        if found is None:
            raise _refused(topic, (*path, field.name), _removed(field, there.values()))
        _check_field(topic, field, found, (*path, field.name))
    for field in there.values():
        if not field.nullable:
            raise _refused(
                topic,
                (*path, field.name),
                f"is new and {sql_type(field.type)} NOT NULL, but earlier rows have no value for it: leave NOT NULL out",
            )


def _removed(field: pa.Field, others: Iterable[pa.Field]) -> str:
    twin = next((other.name for other in others if other.name.casefold() == field.name.casefold()), None)
    if twin is not None:
        return f"({_typed(field)}) is spelt {twin!r} in the new schema: keep the spelling"
    return f"({_typed(field)}) is missing in the new schema, and earlier rows have it: keep the column, rows may leave it out"


def _check_field(topic: str, old: pa.Field, new: pa.Field, path: tuple[str, ...]) -> None:
    if old.nullable and not new.nullable:
        raise _refused(
            topic,
            path,
            f"is {_typed(old)} and cannot become {_typed(new)}, because earlier rows may have a null: leave NOT NULL out",
        )
    _check_type(topic, old.type, new.type, path)


def _check_type(topic: str, old: pa.DataType, new: pa.DataType, path: tuple[str, ...]) -> None:
    t = pa.types
    if t.is_struct(old) and t.is_struct(new):
        _check_fields(topic, list(old), list(new), path)
    elif t.is_list(old) and t.is_list(new):
        _check_field(topic, old.value_field, new.value_field, (*path, ELEMENT))
    elif t.is_map(old) and t.is_map(new):
        _check_type(topic, old.key_type, new.key_type, (*path, "key"))
        _check_field(topic, old.item_field, new.item_field, (*path, "value"))
    elif not is_wider(old, new):
        raise _refused(
            topic,
            path,
            f"is {sql_type(old)} and cannot become {sql_type(new)}: only numbers change their type, to a wider one. "
            "Add a column of another name, or write to a new topic with the new schema",
        )


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether all values of a type that is not nested are values of the other one."""
    if old == new:
        return True
    if old in INTEGERS:
        if pa.types.is_decimal(new):
            return bool(new.precision - new.scale >= INTEGERS[old])
        return bool(INTEGERS.get(new, 0) > INTEGERS[old] or (new == pa.float64() and old in _DOUBLE))
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    return bool(new == pa.float64() and old in _DOUBLE)


def _typed(field: pa.Field) -> str:
    return f"{sql_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


def _refused(topic: str, path: tuple[str, ...], why: str) -> IncompatibleSchema:
    return IncompatibleSchema(f"topic {topic!r}: column {dotted(path)} {why}")
