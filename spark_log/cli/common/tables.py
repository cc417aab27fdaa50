"""Tables that fit a width.  Pure: the caller provides the terminal's width and colours."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

GAP = "  "
NARROWEST = 16
"""Minimum width of a text column that is narrowed."""

Paint = Callable[[int, int, str], str]
"""(row, column, padded text) to the coloured text."""


def table_lines(
    lines: Sequence[Sequence[str]], right: Sequence[bool], width: int | None = None, paint: Paint | None = None
) -> Iterator[str]:
    """Aligned lines, the first of which is the header.

    right:  which columns are aligned to the right; they are never narrowed.
    width:  text columns that do not fit are wrapped in their cells; None: no limit.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        widths = _fitted(lines, widths, right, width)
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


def _fitted(lines: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool], width: int) -> list[int]:
    """Column widths that fit if possible: sentences are narrowed first, then names, always the widest column."""
    columns = list(zip(*lines, strict=True))
    sentences = [any(" " in cell for cell in column[1:]) for column in columns]
    fitted = list(widths)
    room = width - len(GAP) * (len(widths) - 1)
    for of_sentences in (True, False):
        candidates = [at for at in range(len(columns)) if not right[at] and sentences[at] == of_sentences]
        while sum(fitted) > room and any(fitted[at] > NARROWEST for at in candidates):
            fitted[max(candidates, key=lambda at: fitted[at])] -= 1
    return fitted


def _wrapped(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_on_hyphens=False) if len(cell) > width else [cell]
