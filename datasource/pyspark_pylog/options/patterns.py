"""`subscribePattern`: a regular expression in Python's dialect, searched in the names of topics.  Pure.

Kafka's connector uses Java's dialect.  Most patterns mean the same in both.  Others are rejected with Python's
equivalent: Python would read some of them differently, and match other topics without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from spark_log.errors import InvalidRequest

INTERNAL = "__"
"""Prefix of internal topics: no pattern matches them."""

_ESCAPES = (
    (r"\\[pP](?:\{[^}]*\}?|\w)", "write the characters, as in [A-Za-z]"),
    (r"\\[QE]", r"write a \ before each character that is to be taken as it is"),
    (r"\\[hHvVRXGe]|\\c.|\\0[0-7]*|\\x\{\w*\}?", "write the character, or leave it out: no topic's name has it"),
)
_OUTSIDE = (
    *_ESCAPES,
    (r"\\k<\w*>?", "write (?P=name)"),
    (r"\\b\{\w*\}?", r"write \b"),
    (r"\\z", r"write \Z"),
    (r"\(\?<(?![=!])\w*>?", "write (?P<name>…)"),
    (r"\(\?>", "write (?:…)"),
    (r"\(\?[a-zA-Z]*[dU][a-zA-Z]*[:)]", "leave the flag out: names of topics are ASCII, and have no line ends"),
    (r"\(\?[a-zA-Z]*-[a-zA-Z]+\)", "write (?-i:…) around what it is for"),
    (r"(?:[*+?]|\{\d+(?:,\d*)?\})\+", "write it without the last +"),
)
_IN_BRACKETS = (
    *_ESCAPES,
    (r"&&", "write [a-z&&[^b]] as (?!b)[a-z]"),
    (r"--|~~|\|\|", r"write it once, or a \ before each"),
    (r"\[", r"write [a-d[m-p]] as [a-dm-p], and a bracket that is meant as \["),
)
_FORMS = {
    False: [(re.compile(form), cure) for form, cure in _OUTSIDE],
    True: [(re.compile(form), cure) for form, cure in _IN_BRACKETS],
}
"""In brackets or not: syntax that only Java's dialect has, and Python's equivalent."""
_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)")
_OPENING = re.compile(r"\[\^?\]?")
"""In both dialects, a bracket that is closed immediately is literal."""


def parse_pattern(text: str) -> str:
    """Check the pattern of the option.  Raises InvalidRequest, also for syntax that only Java's dialect has."""
    if not text:
        raise InvalidRequest("option subscribePattern: is empty; give a regular expression")
    for found, cure in _only_in_java(text):
        raise InvalidRequest(
            f"option subscribePattern: {found} in {text!r} differs from "
            f"Java's regular expressions: write it in Python's syntax: {cure}"
        )
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequest(
            f"option subscribePattern: {text!r} is not a Python regular expression: {error}"
        ) from error
    return text


def finds(pattern: str, topic: str) -> bool:
    """Whether the pattern matches somewhere in the name of a topic that is not internal."""
    return not topic.startswith(INTERNAL) and re.search(pattern, topic) is not None


def _only_in_java(text: str) -> Iterator[tuple[str, str]]:
    """Syntax that Python lacks or reads differently, and Python's equivalent."""
    at, in_brackets = 0, False
    while at < len(text):
        for form, cure in _FORMS[in_brackets]:
            if found := form.match(text, at):
                yield found[0], cure
        if at and not in_brackets and (found := _FLAGS.match(text, at)):
            yield found[0], f"write {found[0][:-1]}:…) around what it is for, or {found[0]} at the very beginning"
        if text[at] == "\\":
            at += 2
        elif not in_brackets and (found := _OPENING.match(text, at)):
            at, in_brackets = found.end(), True
        else:
            in_brackets = in_brackets and text[at] != "]"
            at += 1
