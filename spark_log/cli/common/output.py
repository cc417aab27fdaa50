"""Output of commands: tables for people; JSON, YAML and CSV for programs; progress on standard error."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import click

from spark_log.cli.common.session import CommandSession
from spark_log.cli.common.yaml import yaml_lines
from spark_log.display.units import TITLES, human
from spark_log.text import json_text, printable, printable_bytes, printable_lines

Row = Mapping[str, Any]
Progress = Callable[[str, int, int], None]

COLOURS = {
    ("state", "Stable"): "green",
    ("state", "PreparingRebalance"): "yellow",
    ("state", "CompletingRebalance"): "yellow",
    ("state", "Dead"): "red",
    ("healthy", "true"): "green",
    ("healthy", "false"): "red",
}
"""Colours by column and text."""


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text.  It may have names of others, so everything but line breaks is escaped: see `printable`."""
    click.echo(printable_lines(text), err=err, nl=nl)


class RecordOutput:
    """Standard output for data of records: as it is for programs, and without control characters on a terminal."""

    def __init__(self) -> None:
        self._out = sys.stdout.buffer
        self._to_terminal = sys.stdout.isatty()

    def writelines(self, parts: Iterable[bytes]) -> None:
        self._out.writelines(map(printable_bytes, parts) if self._to_terminal else parts)

    def flush(self) -> None:
        self._out.flush()


def emit_rows(session: CommandSession, columns: Sequence[str], rows: Sequence[Row], wide: Sequence[str] = ()) -> None:
    """Print rows under a header, or as a list of objects.

    wide:  additional columns, which a table shows with -o wide only.
    """
    every = [*columns, *wide]
    if session.structured:
        emit_value(session, _objects(Table(columns, rows, wide)))
    elif session.output == "csv":
        _emit_csv(every, rows)
    else:
        _emit_table(session, every if session.output == "wide" else columns, rows)


def _objects(table: Table) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in (*table.columns, *table.wide)} for row in table.rows]


def emit_fields(session: CommandSession, fields: Row) -> None:
    """Print one entity: a line per field, an object, or a row."""
    if session.structured:
        emit_value(session, dict(fields))
    elif session.output == "csv":
        _emit_csv(list(fields), [fields])
    else:
        shown = {_title(session, name): _text(_shown(session, name, value)) for name, value in fields.items()}
        width = max(map(len, shown), default=0)
        for name, text in shown.items():
            echo(f"{name:<{width}}  {text}".rstrip())


class Table(NamedTuple):
    """Rows of one kind, with the arguments of `emit_rows`."""

    columns: Sequence[str]
    rows: Sequence[Row]
    wide: Sequence[str] = ()


def emit_parts(session: CommandSession, fields: Row, parts: Mapping[str, Table], main: str = "") -> None:
    """Print one entity with lists, by name: an object, or its fields and a table for each list that is not empty.

    main:  the only list that is printed as CSV; by default the last one.
    """
    if session.structured:
        emit_value(session, {**fields, **{name: _objects(part) for name, part in parts.items()}})
    elif session.output == "csv":
        emit_rows(session, *parts[main or list(parts)[-1]])
    else:
        emit_fields(session, fields)
        for part in parts.values():
            if part.rows:
                echo()
                emit_rows(session, *part)


def emit_value(session: CommandSession, value: Any) -> None:
    """Print nested objects and lists, as JSON or YAML."""
    if session.output == "yaml":
        echo("\n".join(yaml_lines(value)))
    else:
        echo(json_text(value, indent=2))


def emit_line(session: CommandSession, text: str, fields: Row) -> None:
    """Report an action: a sentence, or its fields as an object or a row."""
    if session.output == "json":
        echo(json_text(dict(fields)))
    elif session.output in ("yaml", "csv"):
        emit_fields(session, fields)
    else:
        echo(text)


def _emit_csv(columns: Sequence[str], rows: Sequence[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(row.get(name)) for name in columns] for row in rows)
    echo(text.getvalue(), nl=False)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple | bool):
        return json_text(value)
    return printable_lines(value) if isinstance(value, str) else value


def _emit_table(session: CommandSession, columns: Sequence[str], rows: Sequence[Row]) -> None:
    cells = [[_text(_shown(session, name, row.get(name))) for name in columns] for row in rows]
    header = [_title(session, name).upper() for name in columns]
    right = [bool(rows) and all(isinstance(row.get(name), int | float | None) for row in rows) for name in columns]

    def paint(line: int, column: int, text: str) -> str:
        if line == 0:
            return click.style(text, bold=True)
        colour = COLOURS.get((columns[column], text.strip()))
        return text if colour is None else click.style(text, fg=colour)

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and session.output != "wide" else None
    for line in table_lines([header, *cells], right, width, paint if has_colours() else None):
        click.echo(line)


def has_colours() -> bool:
    """Whether standard output is a terminal and NO_COLOR is not set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _title(session: CommandSession, name: str) -> str:
    return name if session.exact else TITLES.get(name, name)


def _shown(session: CommandSession, name: str, value: Any) -> Any:
    return value if session.exact else human(name, value)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return printable(", ".join(f"{name}={item}" for name, item in value.items())) or "-"
    return printable(str(value))


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """A progress bar for each kind of work on standard error, if that is a terminal; None otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    bars: dict[str, Any] = {}

    def show(what: str, at: int, total: int) -> None:
        if what not in bars:
            bars[what] = click.progressbar(length=max(total, 1), label=printable(what), file=sys.stderr)
            bars[what].render_progress()
        bars[what].update(at - bars[what].pos)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.render_finish()


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
