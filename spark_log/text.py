"""Formatting of text for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def counted(count: int, what: str, plural: str = "") -> str:
    """`1 row`, `2,000 rows`; an irregular plural is given."""
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def unknown_brokers(brokers: Sequence[int]) -> str:
    """The message for brokers that are not registered."""
    named = f"{'broker' if len(brokers) == 1 else 'brokers'} {', '.join(map(str, brokers))}"
    return f"unknown {named}: `pylog broker list` shows the registered ones"


def install_extra(extra: str) -> str:
    """The instruction for a package that is missing.  pylog is not on PyPI, so it is installed from a checkout."""
    return f"pip install '/path/to/pylog[{extra}]', with the path of a checkout of pylog"


def type_of(value: object) -> str:
    """The type of a value with its article: `an int`, `a dict`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """The text of a value that may be anything.  Some have none, such as a number with 5,000 digits."""
    try:
        return form(value)
    except Exception as error:  # noqa: BLE001  it is the value's
        return f"<{type_of(value)} that cannot be shown: {type(error).__name__}>"


def is_unicode(value: object) -> bool:
    """Whether it is a str that can be encoded: one with half of a surrogate pair, as in names of files, cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def is_name(value: object) -> bool:
    """Whether it can name something new: not blank, and without control characters, which may act on a terminal."""
    return isinstance(value, str) and value.isprintable() and not value.isspace() and value != ""


def printable_lines(text: str) -> str:
    """Text for a terminal that may have several lines: see `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def printable(text: str) -> str:
    """Text for a terminal: control characters, which may move its cursor or hide text, are escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
