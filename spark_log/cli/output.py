"""What commands print: tables for people, JSON for programs, and progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from spark_log.cli.base import Session

Row = Mapping[str, Any]
Progress = Callable[[str, int, int], None]


def emit_rows(session: Session, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Rows under a header, or a JSON list of objects."""
    if session.json:
        emit_json([{name: row.get(name) for name in columns} for row in rows])
        return
    cells = [[_text(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [bool(rows) and all(isinstance(row.get(name), int | float | None) for row in rows) for name in columns]
    for line in ([name.upper() for name in columns], *cells):
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def emit_fields(session: Session, fields: Row) -> None:
    """One thing: a line for each field, or a JSON object."""
    if session.json:
        emit_json(dict(fields))
        return
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name:<{width}}  {_text(value)}".rstrip())


def emit_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def emit_line(session: Session, text: str, fields: Row) -> None:
    """That something was done: a sentence, or a JSON object on one line."""
    click.echo(json.dumps(dict(fields), ensure_ascii=False) if session.json else text)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "-"
    return str(value)


def size_text(count: int) -> str:
    """Bytes for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def age_text(ms: int) -> str:
    """A length of time for people, in its two largest units."""
    parts: list[str] = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms >= size or parts:
            parts.append(f"{ms // size}{unit}")
            ms %= size
    return " ".join(parts[:2]) or "0s"


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """A bar for each kind of work on standard error, if that is a terminal; None otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    bars: dict[str, Any] = {}

    def show(what: str, at: int, total: int) -> None:
        if what not in bars:
            bars[what] = click.progressbar(length=max(total, 1), label=what, file=sys.stderr)
            bars[what].render_progress()
        bars[what].update(at - bars[what].pos)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.render_finish()
