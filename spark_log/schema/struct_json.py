"""The JSON of a Spark `StructType`, as `StructType.json()` writes and `StructType.fromJson` reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from spark_log.bounds import UNREADABLE
from spark_log.errors import InvalidSchema
from spark_log.schema.arrow_types import ELEMENT, TIMESTAMP, TIMESTAMP_NTZ, dotted, map_of, storable, unsupported

PRIMITIVES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_NAMES = {type_: name for name, type_ in PRIMITIVES.items()}
_DECIMAL = re.compile(r"decimal\((\d+), ?(-?\d+)\)")
_TEXT = re.compile(r"(char|varchar)\(\d+\)")


def to_json(schema: pa.Schema) -> str:
    """The JSON of a canonical schema (`storable`)."""
    return json.dumps(_struct(list(schema)), separators=(",", ":"), ensure_ascii=False)


def _struct(fields: list[pa.Field]) -> dict[str, object]:
    rows = [{"name": f.name, "type": _json(f.type), "nullable": f.nullable, "metadata": {}} for f in fields]
    return {"type": "struct", "fields": rows}


def _json(given: pa.DataType) -> object:
    if (name := _NAMES.get(given)) is not None:
        return name
    if pa.types.is_decimal(given):
        return f"decimal({given.precision},{given.scale})"
    if pa.types.is_struct(given):
        return _struct(list(given))
    if pa.types.is_list(given):
        element = given.value_field
        return {"type": "array", "elementType": _json(element.type), "containsNull": element.nullable}
    return {
        "type": "map",
        "keyType": _json(given.key_type),
        "valueType": _json(given.item_type),
        "valueContainsNull": given.item_field.nullable,
    }


def from_json(text: str) -> pa.Schema:
    """The canonical schema.  Raises InvalidSchema."""
    try:
        found = msgspec.json.decode(text)
    except UNREADABLE as error:
        raise InvalidSchema(f"the JSON of a schema does not parse: {error}") from error
    if not isinstance(found, dict) or found.get("type") != "struct":
        raise InvalidSchema('the JSON of a schema is not that of a StructType: expected {"type":"struct","fields":[…]}')
    return storable(pa.schema(_fields(found, ())))


def _fields(given: dict[str, object], path: tuple[str, ...]) -> list[pa.Field]:
    return [_field(each, path) for each in _get(given, "fields", list, path)]


def _field(given: object, path: tuple[str, ...]) -> pa.Field:
    if not isinstance(given, dict):
        raise InvalidSchema(f"the JSON of a schema has {given!r} for a field: expected name, type and nullable")
    name = str(_get(given, "name", str, path))
    return pa.field(name, _type(given.get("type"), (*path, name)), bool(given.get("nullable", True)))


def _get(given: dict[str, object], key: str, kind: Callable[..., object], path: tuple[str, ...]) -> Any:
    found = given.get(key)
    if type(found) is not kind:
        raise InvalidSchema(f"the JSON of a schema has no {key!r} of the right type{_where(path)}")
    return found


def _where(path: tuple[str, ...]) -> str:
    return f" in column {dotted(path)}" if path else ""


def _type(given: object, path: tuple[str, ...]) -> pa.DataType:
    if isinstance(given, str):
        return _named(given, path)
    if not isinstance(given, dict):
        raise InvalidSchema(f"the JSON of a schema has no type{_where(path)}")
    match given.get("type"):
        case "struct":
            return pa.struct(_fields(given, path))
        case "array":
            element = _type(given.get("elementType"), (*path, ELEMENT))
            return pa.list_(pa.field(ELEMENT, element, bool(given.get("containsNull", True))))
        case "map":
            key, value = (_type(given.get(f"{one}Type"), (*path, one)) for one in ("key", "value"))
            return map_of(key, value, bool(given.get("valueContainsNull", True)))
        case other:
            raise unsupported(str(other), dotted(path))


def _named(name: str, path: tuple[str, ...]) -> pa.DataType:
    if (found := PRIMITIVES.get(name)) is not None:
        return found
    if (digits := _DECIMAL.fullmatch(name)) is not None:
        return decimal(int(digits[1]), int(digits[2]), dotted(path))
    if _TEXT.fullmatch(name):
        return pa.string()
    raise unsupported(name, dotted(path))


def decimal(precision: int, scale: int, column: str) -> pa.DataType:
    """A decimal type.  Raises InvalidSchema for a precision or scale that Spark does not have."""
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise InvalidSchema(
            f"column {column} has type decimal({precision},{scale}): expected 1 to 38 digits, 0 to all of them after the point"
        )
    return pa.decimal128(precision, scale)
