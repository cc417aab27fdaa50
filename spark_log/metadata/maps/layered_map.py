"""A persistent map in two layers: many rows that never change, and the changes since then.

The interface is that of `immutables.Map`.  A row in the map of changes takes some 300 bytes and 1 µs to make; the base
may keep its rows in any other form, and makes a value when it is asked for it (`column_map.py`).
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from enum import Enum
from typing import Any, Final, TypeVar, cast, overload

from immutables import Map

Key = TypeVar("Key")
Value = TypeVar("Value")
Default = TypeVar("Default")


class Removal(Enum):
    """The value of a key of the base that was removed, in the map of changes."""

    REMOVED = "removed"


REMOVED: Final = Removal.REMOVED
_ABSENT: Any = object()
_NO_BASE: dict[Any, Any] = {}


class LayeredMap(Mapping[Key, Value]):
    """A value: `set`, `delete` and `update` give another map.  No value is None."""

    __slots__ = ("_size", "base", "changes")

    base: Mapping[Key, Value]
    """Never changed; other maps have it too."""
    changes: Map[Key, Value | Removal]
    """Takes precedence over the base.  Only keys of the base are removed in it."""

    def __init__(self, rows: Mapping[Key, Value] | Iterable[tuple[Key, Value]] = ()) -> None:
        self.base, self.changes = _NO_BASE, Map(rows)
        self._size = len(self.changes)

    @classmethod
    def over(
        cls, base: Mapping[Key, Value], rows: Iterable[tuple[Key, Value]] = (), removed: Iterable[Key] = ()
    ) -> LayeredMap[Key, Value]:
        """`base` with other rows, and without some of its keys."""
        new, gone = Map[Key, Value | Removal](rows), dict.fromkeys(removed, REMOVED)
        size = len(base) - len(gone) + sum(key not in base for key in new)
        return _made(base, new.update(gone), size)

    def __getitem__(self, key: Key) -> Value:
        value = self.changes.get(key, _ABSENT)
        if value is _ABSENT:
            return self.base[key]
        if value is REMOVED:
            raise KeyError(key)
        return cast(Value, value)

    @overload
    def get(self, key: Key, /) -> Value | None: ...
    @overload
    def get(self, key: Key, /, default: Value | Default) -> Value | Default: ...
    def get(self, key: Key, /, default: Any = None) -> Any:
        value = self.changes.get(key, _ABSENT)
        if value is _ABSENT:
            return self.base.get(key, default)
        return default if value is REMOVED else value

    def __contains__(self, key: object) -> bool:
        value = self.changes.get(cast(Key, key), _ABSENT)
        return key in self.base if value is _ABSENT else value is not REMOVED

    def __len__(self) -> int:
        return self._size

    def set(self, key: Key, value: Value) -> LayeredMap[Key, Value]:
        return _made(self.base, self.changes.set(key, value), self._size + (key not in self))

    def delete(self, key: Key) -> LayeredMap[Key, Value]:
        if key not in self:
            raise KeyError(key)
        changes = self.changes.set(key, REMOVED) if key in self.base else self.changes.delete(key)
        return _made(self.base, changes, self._size - 1)

    def without(self, keys: Iterable[Key]) -> LayeredMap[Key, Value]:
        """The map without those of the keys that are in it."""
        changes, size = self.changes.mutate(), self._size
        for key in keys:
            if key in self.base:
                size -= changes.get(key, _ABSENT) is not REMOVED
                changes[key] = REMOVED
            else:
                size -= changes.pop(key, _ABSENT) is not _ABSENT
        return _made(self.base, changes.finish(), size)

    def update(self, rows: Mapping[Key, Value]) -> LayeredMap[Key, Value]:
        return _made(self.base, self.changes.update(rows), self._size + sum(key not in self for key in rows))

    def rebased(self, before: LayeredMap[Key, Value], after: LayeredMap[Key, Value]) -> LayeredMap[Key, Value]:
        """An equal map over the base of `after`, which has the rows of `before`, from which this one was made by
        changes.

        The map itself if it was not: it has another base.  Looks at the changes only.
        """
        if self.base is not before.base:
            return self
        changes = after.changes
        for key in {*before.changes, *self.changes}:
            value = self.changes.get(key, REMOVED)  # in neither layer: added before, and removed since
            if value is before.changes.get(key, _ABSENT):
                continue
            if value is not REMOVED or key in after.base:
                changes = changes.set(key, value)
            elif key in changes:
                changes = changes.delete(key)
        return _made(after.base, changes, self._size)

    def changed(self) -> Iterator[tuple[Key, Value]]:
        """The rows that are new or differ from those of the base."""
        return ((key, value) for key, value in self.changes.items() if not isinstance(value, Removal))

    def removed(self) -> Iterator[Key]:
        """The keys of the base that are gone."""
        return (key for key, value in self.changes.items() if value is REMOVED)

    def __iter__(self) -> Iterator[Key]:
        yield from (key for key in self.base if key not in self.changes)
        yield from (key for key, _ in self.changed())

    def items(self) -> ItemsView[Key, Value]:
        return _Items(self)

    def values(self) -> ValuesView[Value]:
        return _Values(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping) or len(self) != len(other):
            return False if isinstance(other, Mapping) else NotImplemented
        if isinstance(other, LayeredMap) and (self.base is other.base or self.base == other.base):
            return self.changes == other.changes or all(
                self.get(key) == other.get(key) for key in (*self.changes, *other.changes)
            )
        return all(self.get(key) == value for key, value in other.items())

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        return f"LayeredMap({dict(self.items())!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return LayeredMap, (dict(self.items()),)


def _made(base: Mapping[Key, Value], changes: Map[Key, Value | Removal], size: int) -> LayeredMap[Key, Value]:
    new = LayeredMap[Key, Value].__new__(LayeredMap)
    new.base, new.changes, new._size = base, changes, size
    return new


def _rows(of: LayeredMap[Key, Value]) -> Iterator[tuple[Key, Value]]:
    """Rows of the base are made one after the other and not kept."""
    changes = of.changes
    yield from (row for row in of.base.items() if row[0] not in changes)
    yield from of.changed()


class _Items(ItemsView[Key, Value]):
    _mapping: LayeredMap[Key, Value]

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        return _rows(self._mapping)


class _Values(ValuesView[Value]):
    _mapping: LayeredMap[Any, Value]

    def __iter__(self) -> Iterator[Value]:
        return (value for _, value in _rows(self._mapping))
