"""Values of typed topics as JSON, and JSON as values.

Written as Spark's `to_json` does: fields that are null are left out, times are ISO 8601 (those with a zone in UTC),
bytes are base64, and numbers that JSON lacks are the texts "NaN", "Infinity" and "-Infinity".  Each value of a type can
be written, also those that Python lacks: a time after the year 9999 is a text, and what is not UTF-8 in a text becomes
the replacement character.  The form of a value depends on itself and on its type, not on the values beside it.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import lru_cache, partial
from math import isfinite, isnan
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from spark_log.errors import InvalidRecord
from spark_log.schema.ddl import sql_type
from spark_log.segment.arrays.few_values import array_from
from spark_log.segment.arrays.python_values import checker, misfit
from spark_log.segment.json_columns import columns_of_json
from spark_log.text import shown

UNFIT = "does not fit the schema"
EXPONENT_MAX = 1_000
"""A decimal with a larger one fits no type.  With a million digits, Python takes minutes to find that out."""
DECIMAL = re.compile(r"[-+.eE0-9]+")
"""Python reads `_`, spaces and the digits of other scripts, too."""
TOO_FINE = re.compile(r"[.,]\d{6}0*[1-9]")
"""Parts of a microsecond, which Python cuts."""
FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""The numbers that JSON lacks."""

_t = pa.types
_Form = Callable[[Any], Any]
_ZERO = Decimal(0)
_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder(float_hook=Decimal)


def as_json(values: pa.StructArray) -> pa.Array:
    """Each struct as a JSON object, in bytes; null for null."""
    form = _written(values.type)
    rows = [None if row is None else _encoder.encode(form(row)) for row in _python(values)]
    return pa.array(rows, pa.binary())


def _python(values: pa.StructArray) -> list[Any]:
    """The values in Python; if it lacks one of them, times are numbers and texts are bytes."""
    try:
        found: list[Any] = values.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        found = values.cast(_raw(values.type)).to_pylist()
    return found


def _raw(kind: pa.DataType) -> pa.DataType:
    if _t.is_struct(kind):
        return pa.struct([pa.field(field.name, _raw(field.type)) for field in kind])
    if _t.is_list(kind):
        return pa.list_(kind.value_field.with_type(_raw(kind.value_type)))
    if _t.is_map(kind):
        return pa.map_(kind.key_field.with_type(_raw(kind.key_type)), kind.item_field.with_type(_raw(kind.item_type)))
    if _t.is_timestamp(kind):
        return pa.int64()
    if _t.is_date(kind):
        return pa.int32()
    return pa.binary() if _t.is_string(kind) else pa.large_binary() if _t.is_large_string(kind) else kind


@lru_cache(maxsize=256)
def _written(kind: pa.DataType) -> _Form:
    if _t.is_struct(kind):
        return _written_struct(kind)
    if _t.is_list(kind):
        inner = _written(kind.value_type)
        return lambda items: [None if item is None else inner(item) for item in items]
    if _t.is_map(kind):
        of_key, of_item = _written_key(kind.key_type), _written(kind.item_type)
        return lambda items: {of_key(key): None if item is None else of_item(item) for key, item in items}
    if _t.is_floating(kind):
        return _written_float if kind == pa.float64() else _written_short_float
    if _t.is_timestamp(kind):
        return partial(_written_time, "Z" if kind.tz is not None else "")
    if _t.is_date(kind):
        return _written_date
    if _t.is_binary(kind):
        return lambda data: base64.b64encode(data).decode()
    if _t.is_string(kind) or _t.is_large_string(kind):
        return lambda text: text if isinstance(text, str) else text.decode(errors="replace")
    return lambda value: value


def _written_struct(kind: pa.DataType) -> _Form:
    forms = [(field.name, _written(field.type)) for field in kind]
    return lambda row: {name: form(row[name]) for name, form in forms if row[name] is not None}


def _written_key(kind: pa.DataType) -> _Form:
    form = _written(kind)
    if _t.is_boolean(kind):
        return lambda key: "true" if key else "false"
    return lambda key: found if isinstance(found := form(key), str) else str(found)


def _written_float(value: float) -> float | str:
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _written_short_float(value: float) -> float | str:
    """With the digits that a float needs, not those of the double in its place."""
    return _written_float(float(str(np.float32(value))))


def _written_time(ending: str, value: datetime | int) -> str:
    if isinstance(value, int):
        return f"{_iso_time(value)}{ending}"
    utc = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo is not None else value
    return f"{utc.isoformat()}{ending}"


def _iso_time(us: int) -> str:
    """The text that `datetime.isoformat` gives, for any time."""
    days, rest = divmod(us, 86_400_000_000)
    seconds, us = divmod(rest, 1_000_000)
    hours, seconds = divmod(seconds, 3600)
    whole = f"{np.datetime64(days, 'D')}T{hours:02}:{seconds // 60:02}:{seconds % 60:02}"
    return f"{whole}.{us:06}" if us else whole


def _written_date(value: date | int) -> str:
    return str(np.datetime64(value, "D")) if isinstance(value, int) else value.isoformat()


def from_json(
    texts: pa.Array, kind: pa.StructType, where: Callable[[int], str], *, strict: bool = False
) -> pa.StructArray:
    """JSON objects as structs of a canonical type; null for null.

    where:   names a row, for messages.
    strict:  as for `json_or_errors`.
    Raises InvalidRecord for a text that is not JSON, and for a value that is not of its type.
    """
    found, errors = json_or_errors(texts, kind, strict=strict)
    for row in sorted(errors):
        raise InvalidRecord(f"{where(row)} {errors[row]}")
    return found


def json_or_errors(texts: pa.Array, kind: pa.StructType, *, strict: bool) -> tuple[pa.StructArray, dict[int, str]]:
    """JSON objects as structs, with null instead of those that do not fit; and what is wrong with these, by row.

    texts:   bytes, or null.
    strict:  refuse fields that the type lacks; otherwise they are left out, as by Spark's `from_json`.
    """
    if strict and (found := columns_of_json(texts, kind)) is not None:
        return found, {}
    return _one_by_one(texts.to_pylist(), kind, strict=strict)


def _one_by_one(
    texts: Sequence[bytes | None], kind: pa.StructType, *, strict: bool
) -> tuple[pa.StructArray, dict[int, str]]:
    form, check = _read(kind, strict), checker(kind)
    rows: list[Any] = []
    errors: dict[int, str] = {}
    for row, text in enumerate(texts):
        value = None
        try:
            value = None if text is None else form(_decoder.decode(text))
        except (msgspec.DecodeError, UnicodeError) as error:
            errors[row] = f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}"
        except (ValueError, RecursionError) as error:
            errors[row] = f"{UNFIT}: {error}"
        if value is not None and (reason := check(value)):
            value, errors[row] = None, f"{UNFIT}: {reason}"
        rows.append(value)
    try:
        return array_from(rows, kind), errors
    except (pa.ArrowException, OverflowError):
        errors |= {row: f"{UNFIT}: {reason}" for row, value in enumerate(rows) if (reason := misfit(value, kind))}
        return pa.array([None if row in errors else value for row, value in enumerate(rows)], kind), errors


@lru_cache(maxsize=256)
def _read(kind: pa.DataType, strict: bool) -> _Form:
    """Raises ValueError, with the field, for a value that is not of the type."""
    if _t.is_struct(kind):
        return _read_struct(kind, strict)
    if _t.is_list(kind):
        inner = _read(kind.value_type, strict)
        return lambda items: (
            [None if item is None else inner(item) for item in items] if isinstance(items, list) else items
        )
    if _t.is_map(kind):
        return partial(_read_map, _read_key(kind.key_type), _read(kind.item_type, strict))
    convert = _convert(kind)
    return partial(_not_decimal, kind) if convert is None else partial(_leaf, convert, kind)


def _read_struct(kind: pa.DataType, strict: bool) -> _Form:
    forms = {field.name: (f"field {field.name!r}", _read(field.type, strict)) for field in kind}
    known = partial(_known, forms) if strict else _dict
    return lambda row: {name: _at(*forms[name], value) for name, value in known(row).items() if name in forms}


def _read_map(of_key: _Form, of_item: _Form, value: Any) -> dict[Any, Any]:
    items, texts = _dict(value), dict[Any, str]()
    for text in items:
        if (other := texts.setdefault(of_key(text), text)) != text:
            raise ValueError(f"{other!r} and {text!r} are the same key")
    return {key: _at(f"at {text!r}", of_item, items[text]) for key, text in texts.items()}


def _convert(kind: pa.DataType) -> _Form | None:
    """The conversion to a type that has no parts, which fails for other values; None: there is nothing to convert."""
    if _t.is_floating(kind):
        return partial(_read_float, "<d" if kind == pa.float64() else "<f")
    if _t.is_decimal(kind):
        return _read_decimal
    if _t.is_timestamp(kind):
        return _read_time if kind.tz is not None else _read_local_time
    if _t.is_date(kind):
        return date.fromisoformat
    if _t.is_binary(kind):
        return partial(base64.b64decode, validate=True)
    return None


def _leaf(convert: _Form, kind: pa.DataType, value: Any) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError) as error:
        given = str(value) if isinstance(value, Decimal) else shown(value)
        raise ValueError(f"{given:.80} does not fit {sql_type(kind)}{_example(kind)}") from error


def _example(kind: pa.DataType) -> str:
    """The form of a type's text, if its name does not tell."""
    if _t.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        return f': expected text such as "2026-01-31T10:00:00{zone}", with up to six digits of a second'
    if _t.is_date(kind):
        return ': expected text such as "2026-01-31"'
    return ": expected text in base64" if _t.is_binary(kind) else ""


def _at(where: str, form: _Form, value: Any) -> Any:
    """The value of a field.  where: names it in errors."""
    try:
        return None if value is None else form(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _dict(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value):.80} is not a JSON object")
    return value


def _known(forms: Mapping[str, object], value: object) -> Mapping[str, Any]:
    found = _dict(value)
    for name in found:
        if name not in forms:
            raise ValueError(f"the schema has no field {name!r} there")
    return found


def _read_key(kind: pa.DataType) -> _Form:
    if _t.is_integer(kind):
        return partial(_leaf, _whole, kind)
    if _t.is_boolean(kind):
        return partial(_leaf, {"true": True, "false": False}.__getitem__, kind)
    if _t.is_floating(kind):
        of_number = _convert(kind)
        assert of_number is not None, "numbers are converted"
        return partial(_leaf, lambda key: of_number(key if key in FLOATS else _number(key)), kind)
    return _read(kind, False)


def _whole(text: str) -> int:
    if str(found := int(text)) != text:
        raise ValueError("it has another form than that of JSON")
    return found


def _number(text: str) -> Decimal:
    if DECIMAL.fullmatch(text) is None:
        raise ValueError("it is not a number")
    return Decimal(text)


def _read_float(form: str, value: Any) -> Any:
    """The nearest number.  form: of `struct`.  Raises OverflowError for a number that is too large."""
    if isinstance(value, str):
        return FLOATS.get(value, value)
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        return value
    found = float(value)
    if not isfinite(found):
        raise OverflowError
    struct.pack(form, found)
    return found


def _not_decimal(kind: pa.DataType, value: Any) -> Any:
    """The value, unless it is a number with a fraction or an exponent."""
    if isinstance(value, Decimal):
        raise ValueError(f"{value!s:.80} does not fit {sql_type(kind)}")
    return value


def _read_decimal(value: Any) -> Any:
    found = _number(value) if isinstance(value, str) else value
    if not isinstance(found, Decimal):
        return found
    if found.adjusted() > EXPONENT_MAX:
        raise ValueError("no type has as many digits")
    return found or _ZERO


def _read_local_time(text: str) -> datetime:
    if TOO_FINE.search(text):
        raise ValueError("it has parts of a microsecond")
    return datetime.fromisoformat(text)


def _read_time(text: str) -> datetime:
    # Python 3.10 does not read the Z.
    found = _read_local_time(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return found
