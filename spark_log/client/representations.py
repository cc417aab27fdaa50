"""Objects of the API at a prompt and in a notebook: one line of text, or a table.

Neither reads the storage, raises, or shows a secret: a password or a signature inside a URL is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from spark_log.positions import format_timestamp_ms
from spark_log.text import counted, printable, shown

if TYPE_CHECKING:
    from spark_log.journal.journal import Journal

Key = TypeVar("Key")
Value = TypeVar("Value")
Described = TypeVar("Described")

ITEMS_MAX = 8
"""Items of a collection in a line; only the number of a longer one is shown."""
ROWS_MAX = 200
"""Rows of a table; the last row has the number of the others."""

_PASSWORD = re.compile(r"(://[^:/@\s]*):\S*@")
_QUERY = re.compile(r"(://[^?\s]*)\?[^\s'\"]*")


def without_secrets(text: str) -> str:
    """The text; passwords and queries of the URLs in it are replaced by `***`."""
    return _QUERY.sub(r"\1?***", _PASSWORD.sub(r"\1:***@", text))


def one_line(who: object, facts: Callable[[], Iterable[str]]) -> str:
    """`<Producer at 's3://bucket/log', open>`: the kind of an object, and facts about it.

    facts:  may fail, because the object is half made, or another thread changes it; then only the kind is shown.
    """
    name = type(who).__name__
    try:
        return without_secrets(f"<{name} {', '.join(facts())}>")
    except Exception:  # noqa: BLE001  a debugger shows objects in any state
        return f"<{name}>"


def log_facts(journal: Journal) -> Iterator[str]:
    """The URL of a log, and as much of its state as this process has."""
    view = journal.view
    yield f"at {shown(journal.metadata.url)}"
    yield f"version {view.state.version}"
    if view.held is None:
        yield counted(len(view.state.names), "topic")
    if view.state.coordinator.address:
        yield f"coordinator {shown(view.state.coordinator.address)}"


def brief(values: Iterable[object]) -> str:
    """The first items of a collection, as a list."""
    found = list(islice(values, ITEMS_MAX + 1))
    return f"[{', '.join(map(shown, found[:ITEMS_MAX]))}{', …' if len(found) > ITEMS_MAX else ''}]"


class HtmlDict(dict[Key, Value]):
    """A dict that a notebook shows as a table: the key, then the fields of the value."""

    def _repr_html_(self) -> str:
        return _table([{**_cells("", key), **_cells("value", value)} for key, value in _first(self.items())], len(self))


def described(kind: type[Described]) -> type[Described]:
    """Give a named tuple, a dataclass or a message its line, with numbers for its longer parts, and its table."""
    setattr(kind, "__repr__", _line)  # noqa: B010  mypy refuses to assign a method
    setattr(kind, "_repr_html_", _html)  # noqa: B010
    return kind


def _line(value: Any) -> str:
    fields = [f"{name}={_short(getattr(value, name))}" for name in _fields(value)]
    return without_secrets(f"{type(value).__name__}({', '.join(fields)})")


def _html(value: Any) -> str:
    parts = {name: getattr(value, name) for name in _fields(value)}
    tables = [
        _table([_cells(name, one) for one in _first(part)], len(part)) for name, part in parts.items() if _rows(part)
    ]
    plain = {name: part for name, part in parts.items() if not _rows(part)}
    return _table([{"": name, type(value).__name__: part} for name, part in plain.items()], len(plain)) + "".join(
        tables
    )


def _fields(value: Any) -> Sequence[str]:
    found = (getattr(value, name, ()) for name in ("_fields", "__dataclass_fields__", "__struct_fields__"))
    return tuple(next(filter(None, found), ()))


def _rows(part: object) -> bool:
    """Whether it is a list of values with fields."""
    return isinstance(part, list | tuple) and bool(part) and not _fields(part) and all(map(_fields, part))


def _cells(name: str, value: object) -> dict[str, object]:
    """The columns of a row: one for each field of a value, or one with the value."""
    found = {field: getattr(value, field) for field in _fields(value)} or {name: value}
    if isinstance(created := found.get("created_ms"), int):
        found["created_ms"] = format_timestamp_ms(created)
    return found


def _short(value: object) -> str:
    if isinstance(value, list | tuple | set | dict) and (len(value) > ITEMS_MAX or _rows(value)):
        return f"<{len(value):,}>"
    return shown(value)


def _first(rows: Iterable[Value]) -> Iterator[Value]:
    return islice(rows, ROWS_MAX)


def _table(rows: Sequence[Mapping[str, object]], count: int) -> str:
    """
    count:  of the rows that there are.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{_cell(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(one, ''))}</td>" for one in names) + "</tr>" for row in rows)
    more = f"<tr><td>… {count - len(rows):,} more</td></tr>" if count > len(rows) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>"


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else _short(value)
    return escape(printable(without_secrets(text)))
