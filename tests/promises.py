"""Promises of the pages, by the tests that fail if one is broken.

A comment above a test names the sections that it keeps, by their paths from docs/:

    # Promise: service.md#groups, clients.md#consumer
    def test_a_silent_member_is_removed() -> None:

    python -m tests.promises service.md        the promises of a page, as tests; without a name, those of all pages
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r" *# Promise: (.+)")
_TEST = re.compile(r" *(?:async )?def (\w+)")


class Promise(NamedTuple):
    """A section that a test keeps."""

    link: str
    """A section, such as `service.md#groups`."""
    test: str
    """A test, such as `tests/client/test_consumer.py::test_a_newer_consumer_takes_the_group`."""

    @property
    def page(self) -> Path:
        return (ROOT / "docs" / self.link.partition("#")[0]).resolve()

    @property
    def anchor(self) -> str:
        return self.link.partition("#")[2]

    def __str__(self) -> str:
        words = self.test.partition("::")[2].removeprefix("test_").replace("_", " ")
        return f"{words} ({self.test})"


def kept() -> list[Promise]:
    """All promises that tests keep."""
    return [promise for file in sorted((ROOT / "tests").rglob("*.py")) for promise in kept_in(file)]


def kept_in(file: Path) -> Iterator[Promise]:
    """Promises of one file.  A mark belongs to the function below it."""
    links = list[str]()
    for line in file.read_text(encoding="utf-8").splitlines():
        if mark := _MARK.fullmatch(line):
            links += mark[1].rstrip(",").split(", ")
        elif links and (function := _TEST.match(line)):
            yield from (Promise(link, f"{file.relative_to(ROOT)}::{function[1]}") for link in links)
            links.clear()


def listing(page: str | None = None) -> str:
    """The promises of a page, or of all, by section."""
    found = sorted(promise for promise in kept() if page in (None, promise.link.partition("#")[0]))
    sections = {promise.link: list[str]() for promise in found}
    for promise in found:
        sections[promise.link].append(f"    {promise}\n")
    return "\n".join(f"{link}\n{''.join(tests)}" for link, tests in sections.items())


if __name__ == "__main__":
    sys.stdout.write(listing(*sys.argv[1:]))
