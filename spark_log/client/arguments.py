"""Public calls refuse an odd argument with InvalidRequest, wherever in pylog it makes them fail.

Nothing is checked before a call.  Only when a call fails with an error that is not pylog's, its arguments are compared
with its annotations.  If they are right, the fault is in pylog, or in a function that the caller gave: that error
continues as it is.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import wraps
from itertools import islice
from numbers import Integral, Real
from types import SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from spark_log.errors import InvalidRecord, InvalidRequest, SparkLogError
from spark_log.text import is_unicode, shown

Given = ParamSpec("Given")
Returned = TypeVar("Returned")
Owner = TypeVar("Owner")

LONG_MAX = 2**63 - 1
"""Numbers of the log and of Arrow have 64 bits."""
SHOWN_MAX = 200
"""Characters of a value in a message."""
DEPTH_MAX = 50
"""Values inside of one another that are looked into."""
CONTAINERS = (list, tuple, set, frozenset, Mapping)
"""Others are not walked through: an iterator would be used up, and a frame is large."""


def refuses_odd_arguments(unguarded: str = "") -> Callable[[type[Owner]], type[Owner]]:
    """Guard the public methods of a class.

    unguarded:  a method for which one more call in Python is too slow.  It checks its own arguments.
    """

    def guard(owner: type[Owner]) -> type[Owner]:
        for name, method in list(vars(owner).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name != unguarded:
                setattr(owner, name, guarded(method))
        return owner

    return guard


def guarded(call: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """The call.  It raises InvalidRequest when an odd argument makes it fail with an error that is not pylog's."""

    @wraps(call)
    def guarded_call(*given: Given.args, **named: Given.kwargs) -> Returned:
        try:
            return call(*given, **named)
        except SparkLogError as error:
            refused = _refusal_in_place_of(error, call, given, named)
            if refused is None:
                raise
            raise refused from error
        except Exception as error:
            refused = _refusal(call, given, named)
            if refused is None:
                raise
            raise refused from error

    return guarded_call


def _refusal_in_place_of(
    error: SparkLogError, call: Callable[..., object], given: tuple[Any, ...], named: Mapping[str, Any]
) -> InvalidRequest | None:
    """The error that names the argument, for one of pylog's that does not: it is about a field of a command, or about
    the first character of a text that was given for several values.
    """
    if isinstance(error.__cause__, msgspec.ValidationError | UnicodeEncodeError | TypeError | OverflowError):
        refused = _refusal(call, given, named)
        return InvalidRecord(str(refused)) if refused is not None and isinstance(error, InvalidRecord) else refused
    if not isinstance(error, InvalidRequest | LookupError):
        return None
    refused = _refusal(call, given, named, is_odd=_is_text_of_several)
    return None if refused is None or any(shown(one) in str(error) for one in (*given, *named.values())) else refused


def _is_text_of_several(value: object, hint: Any) -> bool:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return isinstance(value, str | bytes) and any(map(get_args, kinds)) and not any(_fits(value, one) for one in kinds)


def _refusal(
    call: Callable[..., object],
    given: tuple[Any, ...],
    named: Mapping[str, Any],
    is_odd: Callable[[object, Any], bool] | None = None,
) -> InvalidRequest | None:
    """The error that names the first odd argument; None if all are right, or Python itself has refused them.

    is_odd:  whether an argument is odd, by its value and type; None: it is, or one of its parts.
    """
    try:
        arguments = inspect.signature(call).bind(*given, **named)
    except TypeError:
        return None
    texts = inspect.get_annotations(call)
    for name, value in _each(arguments):
        hint = _hint(call, texts.get(name, "Any"))
        odds = _odd_parts(value, hint, DEPTH_MAX) if is_odd is None else [value] if is_odd(value, hint) else []
        for odd in odds:
            expected = _expected(odd, texts.get(name, "Any"))
            return InvalidRequest(f"{call.__name__}: invalid value {_text(odd)} for {name}: expected {expected}")
    return None


def _each(arguments: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    """Each value with the name of its parameter: `*topics` and `**settings` have several."""
    for name, value in arguments.arguments.items():
        kind = arguments.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((name, one) for one in value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from ((name, one) for one in value.values())
        else:
            yield name, value


def _hint(call: Callable[..., object], text: str) -> Any:
    """The type of an annotation; anything, if it names an import for type checkers only."""
    with suppress(NameError):
        return get_type_hints(SimpleNamespace(__annotations__={"it": text}), vars(sys.modules[call.__module__]))["it"]
    return Any


def _expected(odd: object, annotation: str) -> str:
    words = "a value" if annotation in ("Any", "object") else annotation
    if isinstance(odd, str) and not is_unicode(odd):
        return f"{words}, with text that can be encoded as UTF-8"
    if isinstance(odd, int) and not _is_long(odd):
        return f"{words}, with numbers of 64 bits"
    return words if _has_text(odd) else f"{words}, whose repr() raises no error"


def _text(odd: object) -> str:
    text = shown(odd)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _odd_parts(value: object, hint: Any, depth: int) -> Iterator[object]:
    """The parts of a value that its annotation excludes, or that no call can take."""
    if get_origin(hint) in (Union, UnionType):
        # The first of each: a dict with itself in it, twice, has too many.
        found = [list(islice(_odd_parts(value, one, depth), 1)) for one in get_args(hint)]
        if all(found):
            yield next((odd for (odd,) in found if odd is not value), value)
    elif depth == 0 or not _fits(value, hint) or not _is_usable(value):
        yield value
    else:
        for part, its_hint in _parts(value, hint):
            yield from _odd_parts(part, its_hint, depth - 1)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value has the type of an annotation, whatever is inside."""
    kind = get_origin(hint) or hint
    if kind is Literal:
        return value in get_args(hint)
    if kind is int:
        return isinstance(value, Integral)  # also those of NumPy
    if kind is float:
        return isinstance(value, Real) and value == value
    if kind is Any or not isinstance(kind, type):
        return True
    if isinstance(value, str | bytes) and get_args(hint):
        return False  # iterating over "abc" would give the names a, b and c
    return isinstance(value, kind)


def _is_usable(value: object) -> bool:
    """Whether a call that takes anything could take this value."""
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, int):
        return _is_long(value)
    return isinstance(value, CONTAINERS) or _has_text(value)


def _is_long(number: int) -> bool:
    return abs(number) <= LONG_MAX


def _has_text(value: object) -> bool:
    try:
        return repr(value) is not None
    except Exception:  # noqa: BLE001  it is the value's
        return False


def _parts(value: object, hint: Any) -> Iterator[tuple[object, Any]]:
    """The values inside of a value, with their annotations."""
    inside = get_args(hint) or (Any, Any)
    if is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        yield from ((getattr(value, name), its_hint) for name, its_hint in _fields(type(value)).items())
    elif isinstance(value, Mapping):
        yield from ((key, inside[0]) for key in value)
        yield from ((one, inside[-1]) for one in value.values())
    elif isinstance(value, tuple) and get_origin(hint) is tuple and Ellipsis not in inside:
        yield from zip(value, inside, strict=False)
    elif isinstance(value, CONTAINERS):
        yield from ((one, inside[0]) for one in value)


def _fields(kind: type) -> Mapping[str, Any]:
    """Annotations of a named tuple or dataclass."""
    with suppress(NameError):
        return get_type_hints(kind)
    return {}
