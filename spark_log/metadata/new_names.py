"""Names that the log does not know yet: they have no control characters, which act on the terminals that show them.

A text in a record, or in the request of a member that joins, is such a name, unless its type says otherwise (`Known`
and `Free` of bounds.py).  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

from msgspec import Struct, inspect

from spark_log.bounds import TEXT
from spark_log.errors import InvalidRequest
from spark_log.metadata.state import State

Found: TypeAlias = Iterator[tuple[str, str]]
"""(field, text)."""
Finder: TypeAlias = Callable[[Any, str], Found]
"""Finds the texts in the value of a field."""


def check_new_names(state: State, values: Iterable[Struct]) -> None:
    """Raises InvalidRequest for a name with control characters.

    values:  records that are to be written, or requests.
    """
    for field, text in chain.from_iterable(map(_texts, values)):
        if not text.isprintable() and text not in state.groups and text not in state.producers:
            raise InvalidRequest(
                f"{field}: {text!r} has characters that cannot be printed: give a name without control characters"
            )


def _texts(value: Struct) -> Found:
    finder = _finder_of(type(value))
    return iter(()) if finder is None else finder(value, "")


@cache
def _finder_of(kind: type) -> Finder | None:
    return _finder(inspect.type_info(kind))


def _finder(kind: inspect.Type) -> Finder | None:
    """None if there is nothing to find in values of a type."""
    match kind:
        case inspect.StrType():
            return _text
        case inspect.Metadata():
            return None if TEXT in (kind.extra or {}) else _finder(kind.type)
        case inspect.StructType() | inspect.NamedTupleType():
            return _of_fields([(field.name, _finder(field.type)) for field in kind.fields])
        case inspect.TupleType():
            return _of_places([_finder(item) for item in kind.item_types])
        case inspect.DictType():
            return _of_entries(_finder(kind.key_type), _finder(kind.value_type))
        case inspect.VarTupleType() | inspect.ListType():
            return _of_items(_finder(kind.item_type))
        case inspect.UnionType():  # of one type and None
            return next((found for item in kind.types if (found := _finder(item)) is not None), None)
        case _:
            return None


def _text(value: str | None, field: str) -> Found:
    if value is not None:
        yield field, value


def _of_fields(fields: list[tuple[str, Finder | None]]) -> Finder | None:
    finders = [(name, found) for name, found in fields if found is not None]

    def find(value: Any, field: str) -> Found:
        if value is not None:
            for name, found in finders:
                yield from found(getattr(value, name), name)

    return find if finders else None


def _of_places(items: list[Finder | None]) -> Finder | None:
    finders = [(number, found) for number, found in enumerate(items) if found is not None]

    def find(value: Any, field: str) -> Found:
        for number, found in finders:
            yield from found(value[number], field)

    return find if finders else None


def _of_items(item: Finder | None) -> Finder | None:
    if item is None:
        return None

    def find(value: Any, field: str) -> Found:
        for one in value or ():
            yield from item(one, field)

    return find


def _of_entries(of_key: Finder | None, of_value: Finder | None) -> Finder | None:
    def find(value: Any, field: str) -> Found:
        for key, one in (value or {}).items():
            if of_key is not None:
                yield from of_key(key, field)
            if of_value is not None:
                yield from of_value(one, field)

    return None if of_key is None and of_value is None else find
