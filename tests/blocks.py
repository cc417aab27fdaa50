"""The Python on the pages: which blocks there are, and which of them say why they are not run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(
    r"(?: *<!-- not run: (?P<reason>[^>]+) -->\n)?(?P<indent> *)```python\n(?P<code>.*?)\n *```", re.DOTALL
)


class Block(NamedTuple):
    """A block of Python on a page."""

    code: str
    reason: str | None
    """Why it is not run; None: a test runs it."""


def blocks(page: Path) -> list[Block]:
    """In their order. `<!-- not run: reason -->` on the line before a block keeps it from being run."""
    return [Block(found["code"], found["reason"]) for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def program(page: Path) -> str:
    """The blocks that are run, as one program."""
    return "\n".join(block.code for block in blocks(page) if block.reason is None)
