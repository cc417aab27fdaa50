"""Formatting of text for people."""

from __future__ import annotations

import base64
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

TIMES_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


def counted(count: int, what: str, plural: str = "") -> str:
    """`1 row`, `2,000 rows`; an irregular plural is given."""
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def duration_text(ms: int) -> str:
    """`350 ms`, `12 s`, `3 h 5 min`: the two largest units."""
    if 0 < ms < 1000:
        return f"{ms} ms"
    parts: list[str] = []
    for unit, size in TIMES_MS:
        count, ms = divmod(ms, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, parts[:2])) or "0 s"


def texts_by_heading(table: str) -> dict[str, str]:
    """The texts of a table: each has a heading in a line, and indented lines below it, which become one."""
    parts = (part.split("\n") for part in re.split(r"\n(?! )", table.strip()))
    return {heading: " ".join(line.strip() for line in lines) for heading, *lines in parts}


def unknown_brokers(brokers: Sequence[int]) -> str:
    """The message for brokers that are not registered."""
    named = f"{'broker' if len(brokers) == 1 else 'brokers'} {', '.join(map(str, brokers))}"
    return f"unknown {named}: `pylog broker list` shows the registered ones"


def install_extra(extra: str) -> str:
    """The command that installs the packages of an extra.

    It names the packages and this Python: installing pylog again would replace an editable install, and the `pip` of
    the shell may be another Python's.
    """
    from importlib.metadata import PackageNotFoundError, requires  # slow, and rarely used

    try:
        wanted = [line.partition(";") for line in requires("spark-log") or ()]
    except PackageNotFoundError:
        return (
            f"pip install '/path/to/pylog[{extra}]', with the path of a checkout of pylog, or "
            f"pip install 'spark-log[{extra}] @ git+https://…', with the URL of its Git repository"
        )
    names = [name.strip() for name, _, when in wanted if re.search(rf"extra == ['\"]{extra}['\"]", when)]
    return f"{sys.executable or 'python'} -m pip install {' '.join(map(shlex.quote, names))}"


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


def is_printable(value: object) -> bool:
    """Whether it is a text without control characters, which may act on a terminal."""
    return isinstance(value, str) and value.isprintable()


def is_name(value: object) -> bool:
    """Whether it can name something new: not blank, and without control characters."""
    return is_printable(value) and not str(value).isspace() and value != ""


def printable_lines(text: str) -> str:
    """Text for a terminal that may have several lines: see `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def printable(text: str) -> str:
    """Text for a terminal: control characters, which may move its cursor or hide text, are escaped."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def first_bytes(data: bytes) -> str:
    """How a file begins that is not what it should be."""
    return f"it starts with {data[:16]!r}" if data else "it is empty"


def label_value(text: str) -> str:
    """The value of a label in the text formats of Prometheus and OpenMetrics."""
    return printable_lines(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def printable_bytes(data: bytes) -> bytes:
    """Data for a terminal: see `printable`.  Lines and tabs stay, and what is not UTF-8 is escaped."""
    text = data.decode("utf-8", "backslashreplace")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n")).encode()


def printable_json(text: str) -> str:
    """JSON in which strings have what `printable` escapes as `\\uXXXX`: it stays JSON of the same value."""
    return "\n".join(
        line if line.isprintable() else "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)
        for line in text.split("\n")
    )


def json_text(value: object, indent: int | None = None) -> str:
    """A value as JSON that a terminal can show; letters of all scripts stay as they are."""
    return printable_json(json.dumps(value, indent=indent, ensure_ascii=False))


def json_bytes(value: bytes | None) -> Any:
    """A string if it is UTF-8; otherwise {"base64": …}."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
