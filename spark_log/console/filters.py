"""Which records the console shows: those with a key, a text, or a field of a JSON value.  Pure.

A field is looked up in the JSON of a value: that of a typed topic is JSON, too.  Only values that contain the name of
the field are parsed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidRequest

Mask = np.ndarray[Any, np.dtype[np.bool_]]
SIGNS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "!=": operator.ne,
        "<=": operator.le,
        ">=": operator.ge,
        "==": operator.eq,
        "=": operator.eq,
        "<": operator.lt,
        ">": operator.gt,
        "~": lambda value, text: text in value,
    }
)
"""`~`: the value contains the text."""
FIELD_CHARS_MAX = 1000
_FIELD = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|[^=!<>~]*[^=!<>~\s])\s*(!=|<=|>=|==|=|<|>|~)(?![=!<>~])\s*(.*?)\s*', re.DOTALL
)
_DECODER = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_PLAIN = re.compile(r"[\w -]+", re.ASCII)
"""Names that every writer of JSON writes in the same way."""


class Field(NamedTuple):
    """A comparison of a field of JSON, such as `customer.id = c7`."""

    path: tuple[str, ...]
    sign: str
    text: str

    def matches(self, value: bytes) -> bool:
        """False for bytes that are not JSON, and for JSON without this field."""
        try:
            found = _DECODER.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidOperation):
            return False
        return any(self._compares(one) for one in _at(found, self.path))

    def _compares(self, value: object) -> bool:
        """Compares numbers as numbers, and everything else as text."""
        if isinstance(value, (int, Decimal)) and not isinstance(value, bool) and self.sign != "~":
            try:
                return SIGNS[self.sign](value, Decimal(self.text))
            except InvalidOperation:
                pass
        text = value if isinstance(value, str) else _ENCODER.encode(value).decode()
        return SIGNS[self.sign](text, self.text)


def _at(value: object, path: tuple[str, ...]) -> Iterator[object]:
    """The values at a path.  A name in JSON may contain dots, so one path can lead to several."""
    if not path:
        yield value
    elif isinstance(value, list) and path[0].isdecimal() and int(path[0]) < len(value):
        yield from _at(value[int(path[0])], path[1:])
    elif isinstance(value, dict):
        for count in range(1, len(path) + 1):
            name = ".".join(path[:count])
            if name in value:
                yield from _at(value[name], path[count:])


def parse_field(text: str) -> Field:
    """Raises InvalidRequest for a text that is not a comparison."""
    found = _FIELD.fullmatch(text) if len(text) <= FIELD_CHARS_MAX else None
    if found is None:
        raise InvalidRequest(
            f"field: {text[:80]!r} is not a comparison: write a field, one of = != < <= > >= ~ and a value, "
            "as in status = paid or customer.id = c7; ~ finds a part of the value"
        )
    name = _unquoted(found[1])
    return Field(tuple(found[1].split(".")) if name is None else (name,), found[2], found[3])


def _unquoted(text: str) -> str | None:
    """The one name in double quotes, which may have any character."""
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return None


class Query(NamedTuple):
    """The records to find: those with all of these, where they are given."""

    key: bytes | None = None
    """The whole key."""
    text: bytes | None = None
    """In the key, the value or a header."""
    field: Field | None = None

    @property
    def is_empty(self) -> bool:
        return self.key is None and self.text is None and self.field is None


def matching_rows(records: pa.RecordBatch, query: Query) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
    """The rows that match, ascending, and how many values were parsed."""
    found = np.ones(records.num_rows, bool)
    if query.key is not None:
        found &= _true(pc.equal(records.column("key"), pa.scalar(query.key, records.column("key").type)))
    if query.text is not None:
        has = _true(_contains(records.column("key"), query.text)) | _true(
            _contains(records.column("value"), query.text)
        )
        found &= has | _in_headers(records, query.text)
    if query.field is None:
        return np.flatnonzero(found), 0
    values, field = records.column("value"), query.field
    found &= np.asarray(values.is_valid())
    for name in filter(_PLAIN.fullmatch, field.path):
        found &= _true(_contains(values, name.encode())) | name.isdecimal()
    rows = np.flatnonzero(found)
    hits = [field.matches(value) for value in values.take(pa.array(rows)).to_pylist()]
    return rows[np.array(hits, bool)], len(rows)


def _in_headers(records: pa.RecordBatch, text: bytes) -> Mask:
    headers = records.column("headers")
    flat = pc.list_flatten(headers)
    hits = _true(_contains(flat.field(0), text)) | _true(_contains(flat.field(1), text))
    found = np.zeros(records.num_rows, bool)
    found[np.asarray(pc.list_parent_indices(headers))[hits]] = True
    return found


def _contains(column: pa.Array, text: bytes) -> pa.Array:
    return pc.match_substring(column.cast(pa.binary()), pattern=text)


def _true(column: pa.Array) -> Mask:
    """Without nulls."""
    return np.asarray(pc.fill_null(column, False))
