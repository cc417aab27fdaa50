"""Rows as a table, within a width.  Pure: a terminal's width and colours are the caller's."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

GAP = "  "
NARROWEST = 12
"""No column of text is made narrower."""

Paint = Callable[[int, int, str], str]
"""(row, column, padded text) to the text with colours."""


def table_lines(
    lines: Sequence[Sequence[str]], right: Sequence[bool], width: int | None = None, paint: Paint | None = None
) -> Iterator[str]:
    """Aligned lines, the first of which is the header.

    right:  which columns are aligned to the right; they are never made narrower.
    width:  columns of text that do not fit are wrapped in their cells; None: as wide as it takes.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        widths = _fitted(widths, right, width)
    for number, line in enumerate(lines):
        cells = [_wrapped(cell, size) for cell, size in zip(line, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [
                part.rjust(size) if to_right else part.ljust(size)
                for part, size, to_right in zip(parts, widths, right, strict=True)
            ]
            padded[-1] = padded[-1].rstrip()
            painted = padded if paint is None else [paint(number, at, part) for at, part in enumerate(padded)]
            yield GAP.join(painted).rstrip()


def _fitted(widths: Sequence[int], right: Sequence[bool], width: int) -> list[int]:
    """Widths that fit, as far as that is possible: the widest columns of text give way first."""
    fitted = list(widths)
    room = width - len(GAP) * (len(widths) - 1)
    while sum(fitted) > room:
        widest = max((at for at in range(len(fitted)) if not right[at]), key=lambda at: fitted[at], default=None)
        if widest is None or fitted[widest] <= NARROWEST:
            break
        fitted[widest] -= 1
    return fitted


def _wrapped(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_on_hyphens=False) if len(cell) > width else [cell]
