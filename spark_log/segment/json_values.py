"""Values of typed topics as JSON, and JSON as values.

Written as Spark's `to_json` does: fields that are null are left out, times are ISO 8601 (those with a zone in UTC),
bytes are base64, and numbers that JSON lacks are the texts "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import lru_cache
from math import isfinite, isnan
from typing import Any

import msgspec
import pyarrow as pa

from spark_log.errors import InvalidRecord
from spark_log.schema.ddl import sql_type
from spark_log.segment.python_values import checker

_t = pa.types
_Form = Callable[[Any], Any]
_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder(float_hook=Decimal)


def as_json(values: pa.StructArray) -> pa.Array:
    """Each struct as a JSON object, in bytes; null for null."""
    form = _written(values.type)
    rows = [None if row is None else _encoder.encode(form(row)) for row in values.to_pylist()]
    return pa.array(rows, pa.binary())


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
        return _written_float
    if _t.is_timestamp(kind):
        return _written_time if kind.tz is not None else datetime.isoformat
    if _t.is_binary(kind):
        return lambda data: base64.b64encode(data).decode()
    return lambda value: value


def _written_struct(kind: pa.DataType) -> _Form:
    forms = [(field.name, _written(field.type)) for field in kind]
    return lambda row: {name: form(row[name]) for name, form in forms if row[name] is not None}


def _written_key(kind: pa.DataType) -> _Form:
    form = _written(kind)
    return form if _t.is_string(kind) else lambda key: found if isinstance(found := form(key), str) else str(found)


def _written_float(value: float) -> float | str:
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _written_time(value: datetime) -> str:
    return f"{value.astimezone(timezone.utc).replace(tzinfo=None).isoformat()}Z"


def from_json(texts: Sequence[bytes | None], kind: pa.DataType, where: Callable[[int], str]) -> pa.Array:
    """JSON objects as structs of a canonical type; null for null.

    Fields that the type lacks are left out, as by Spark's `from_json`.  where: names a row, for messages.
    Raises InvalidRecord for a text that is not JSON, and for a value that is not of its type.
    """
    form, check = _read(kind), checker(kind)
    rows: list[Any] = []
    for row, text in enumerate(texts):
        try:
            value = None if text is None else form(_decoder.decode(text))
        except (msgspec.DecodeError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
            raise InvalidRecord(f"{where(row)} is not JSON that fits {sql_type(kind)}: {error}") from error
        if value is not None and (reason := check(value)):
            raise InvalidRecord(f"{where(row)} does not fit {sql_type(kind)}: {reason}")
        rows.append(value)
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidRecord(f"{where(0)} or a record after it does not fit {sql_type(kind)}: {error}") from error


@lru_cache(maxsize=256)
def _read(kind: pa.DataType) -> _Form:
    if _t.is_struct(kind):
        forms = {field.name: _read(field.type) for field in kind}
        return lambda row: {name: _maybe(forms[name], value) for name, value in _dict(row).items() if name in forms}
    if _t.is_list(kind):
        inner = _read(kind.value_type)
        return lambda items: [_maybe(inner, item) for item in items] if isinstance(items, list) else items
    if _t.is_map(kind):
        of_key, of_item = _read_key(kind.key_type), _read(kind.item_type)
        return lambda items: {of_key(key): _maybe(of_item, item) for key, item in _dict(items).items()}
    if _t.is_floating(kind):
        return lambda value: float(value) if isinstance(value, Decimal | int | str) else value
    if _t.is_decimal(kind):
        return lambda value: Decimal(value) if isinstance(value, str) else value
    if _t.is_timestamp(kind):
        return _read_time if kind.tz is not None else lambda text: datetime.fromisoformat(text)
    if _t.is_date(kind):
        return lambda text: date.fromisoformat(text)
    if _t.is_binary(kind):
        return lambda text: base64.b64decode(text, validate=True)
    return lambda value: value


def _maybe(form: _Form, value: Any) -> Any:
    return None if value is None else form(value)


def _dict(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {value!r:.80}")
    return value


def _read_key(kind: pa.DataType) -> _Form:
    if _t.is_integer(kind):
        return int
    return _read(kind)


def _read_time(text: str) -> datetime:
    # Python 3.10 does not read the Z.
    found = datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return found
