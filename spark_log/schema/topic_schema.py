"""One version of a topic's schema, and the forms in which users give a schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
import pyarrow as pa

from spark_log.errors import InvalidSchema
from spark_log.schema.arrow_types import nullable, storable
from spark_log.schema.ddl import from_ddl
from spark_log.schema.names import check_shown_names, shown_name
from spark_log.schema.struct_json import from_json, to_json
from spark_log.text import type_of

TEXT_MAX = 1 << 20
"""Bytes of the JSON of a schema: each state of the log holds it."""
DEPTH_MAX = 60
"""Types inside of one another.  Arrow's format has 64, some of which are those of a whole value."""


class TopicSchema(NamedTuple):
    """One version of a topic's schema."""

    version: int
    """From 1 on; the id that runs name."""
    text: str
    """The JSON of its `StructType`."""

    @property
    def columns(self) -> pa.Schema:
        """The data columns, in Arrow."""
        return _parsed(self.text)


@lru_cache(maxsize=256)
def _parsed(text: str) -> pa.Schema:
    return from_json(text)


def shown_columns(schema: TopicSchema) -> pa.Schema:
    """The data columns as readers get them: by their names in frames, nullable."""
    columns = nullable(schema.columns)
    return pa.schema([field.with_name(shown_name(field.name)) for field in columns])


def as_schema(given: object) -> pa.Schema:
    """The canonical form of a schema: an Arrow schema, DDL, the JSON of a `StructType`, or a `StructType` itself.

    Raises InvalidSchema.
    """
    try:
        found = _read(given)
    except RecursionError:
        raise _too_deep() from None
    if max(map(_depth, found.types)) > DEPTH_MAX:
        raise _too_deep()
    for field in found:
        _check_printable(field)
    check_shown_names(found)
    if (size := len(to_json(found).encode())) > TEXT_MAX:
        raise InvalidSchema(f"a schema of {size:,} bytes of JSON is too large: expected {TEXT_MAX:,} at most")
    return found


def _check_printable(field: pa.Field) -> None:
    if not field.name.isprintable():
        raise InvalidSchema(f"column {field.name!r} has characters that cannot be printed: rename it")
    for number in range(field.type.num_fields):
        _check_printable(field.type.field(number))


def _depth(given: pa.DataType) -> int:
    return 1 + max((_depth(given.field(number).type) for number in range(given.num_fields)), default=0)


def _too_deep() -> InvalidSchema:
    return InvalidSchema(
        f"a schema has types inside of one another {DEPTH_MAX} deep at most: use a text of JSON inside"
    )


def _read(given: object) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return storable(given)
    if isinstance(given, TopicSchema):
        return given.columns
    if isinstance(given, str):
        return from_json(given) if given.lstrip().startswith("{") else from_ddl(given)
    if isinstance(given, Mapping):
        return from_json(msgspec.json.encode(given).decode())
    if callable(found := getattr(given, "json", None)) and isinstance(text := found(), str):  # a StructType
        return from_json(text)
    raise InvalidSchema(
        f"a schema cannot be taken from {type_of(given)}: give a pyarrow Schema, a text of DDL such as "
        "'id BIGINT NOT NULL, name STRING', or a Spark StructType"
    )
