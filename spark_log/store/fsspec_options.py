"""Storage options with the types that fsspec's file systems require.

Spark's options are all text.  The type of an option is that of the file system's parameter, so that a secret made of
digits stays text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from spark_log.errors import InvalidRequest

TRUE = ("true", "1", "yes")
FALSE = ("false", "0", "no")
INTEGERS = frozenset(("default_block_size", "timeout", "requests_timeout"))
"""Parameters that are numbers, although neither their default nor an annotation shows it."""
BOOL_OR_TEXT = frozenset(("requester_pays",))
"""A parameter of Google's: true, or the project that pays."""


def typed_options(filesystem: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with text converted to bools and integers.  Raises InvalidRequest with the option's name."""
    kinds = _kinds(filesystem)
    return {name: _typed(name, value, kinds.get(name, frozenset())) for name, value in given.items()}


def _kinds(filesystem: type) -> dict[str, frozenset[str]]:
    """Names of the types that each parameter takes, by its default and annotation."""
    kinds: dict[str, frozenset[str]] = {}
    for made in (vars(base)["__init__"] for base in reversed(filesystem.__mro__[:-1]) if "__init__" in vars(base)):
        for name, parameter in inspect.signature(made).parameters.items():
            annotated = re.findall(r"\w+", inspect.formatannotation(parameter.annotation))
            kinds[name] = frozenset((type(parameter.default).__name__, *annotated))
    return kinds


def parse_json(name: str, given: Any) -> Any:
    """Parse a text that begins like a JSON object; other values are returned unchanged."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return given
    try:
        return json.loads(given)
    except json.JSONDecodeError as error:
        # The message omits the text, which may hold a secret.
        raise InvalidRequest(f"storage option {name} is not JSON: {error}") from None


def _typed(name: str, given: Any, kinds: frozenset[str]) -> Any:
    if not isinstance(given, str):
        return given
    if given.lower() in ("true", "false") or ("bool" in kinds and name not in BOOL_OR_TEXT):
        return _bool(name, given)
    if "int" in kinds or name in INTEGERS:
        return _int(name, given)
    return given


def _bool(name: str, given: str) -> bool:
    if given.lower() not in TRUE + FALSE:
        raise InvalidRequest(f"storage option {name}: {given!r} is neither true nor false")
    return given.lower() in TRUE


def _int(name: str, given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise InvalidRequest(f"storage option {name}: {given!r} is not a whole number") from None
