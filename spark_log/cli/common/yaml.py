"""YAML output of plain values: mappings, lists, strings, numbers, booleans, None.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/_][A-Za-z0-9/_.-]*")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])
"""Strings that YAML 1.1 reads as booleans or null."""


def yaml_lines(value: Any) -> Iterator[str]:
    """In block style; ambiguous strings are quoted."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            nested = list(yaml_lines(item))
            if isinstance(item, Mapping | list | tuple) and item:
                yield f"{_scalar(name)}:"
                yield from (f"  {line}" for line in nested)
            else:
                yield f"{_scalar(name)}: {nested[0]}"
    elif isinstance(value, list | tuple) and value:
        for item in value:
            first, *rest = yaml_lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def flow_text(value: Any) -> str:
    """In flow style, on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_scalar(name)}: {flow_text(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow_text, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case Mapping():
            return "{}"
        case list() | tuple():
            return "[]"
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped)
