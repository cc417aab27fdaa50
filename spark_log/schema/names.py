"""Names of data columns: in objects, and in the frames of users.

In objects, each data column is `value.NAME`.  In frames it has its own name, unless a column of the record has that
name, in any case: then it is `value.NAME` there, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_log.errors import InvalidSchema

PREFIX = "value."
RECORD_NAMES = ("topic", "key", "value", "headers", "partition", "offset", "timestamp", "timestampType")
"""Columns of a record in frames."""
_RESERVED = frozenset(name.casefold() for name in RECORD_NAMES)


def stored_name(column: str) -> str:
    """The name of a data column in objects."""
    return f"{PREFIX}{column}"


def is_reserved(name: str) -> bool:
    """Whether a column of the record has the name, in any case."""
    return name.casefold() in _RESERVED


def shown_name(column: str) -> str:
    """The name of a data column in frames."""
    return stored_name(column) if is_reserved(column) else column


def check_shown_names(schema: pa.Schema) -> None:
    """Raises InvalidSchema for a data column that begins with the prefix."""
    for name in schema.names:
        if name.casefold().startswith(PREFIX):
            raise InvalidSchema(
                f"column {name!r} begins with {PREFIX!r}, which marks columns whose name a record has, too: rename it"
            )


def is_prefixed(name: str) -> bool:
    """Whether a name that `shown_name` has made has the prefix.

    Its prefix is in lower case.  Names that users write may not be: `column_named` looks these up first.
    """
    return name.startswith(PREFIX)


def column_named(name: str, columns: Iterable[str]) -> str | None:
    """The data column that a name in a frame stands for; None if there is no such column."""
    wanted = name.casefold()
    for column in columns:
        if shown_name(column).casefold() == wanted:
            return column
    if wanted.startswith(PREFIX):
        return next((column for column in columns if stored_name(column).casefold() == wanted), None)
    return None
