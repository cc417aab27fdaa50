"""`--watch`: rows that are refreshed, with rates per second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click

from spark_log.cli.common.output import echo
from spark_log.cli.common.session import CommandSession

WATCH_SECONDS = 2

Rows = list[dict[str, Any]]

watch_option = click.option("--watch", is_flag=True, help="Refresh every two seconds, with rates, until interrupted.")


def watch_rows(
    session: CommandSession,
    title: str,
    read: Callable[[], Rows],
    show: Callable[[Rows], None],
    *,
    keys: Sequence[str],
    rates: Mapping[str, str],
) -> None:
    """Read and show rows until Ctrl-C: in the same place on a terminal, one after the other elsewhere.

    keys:   columns that identify a row.
    rates:  the growing column, by the name of its rate.
    """
    before: Rows = []
    since = 0.0
    try:
        while True:
            now, rows = time.monotonic(), read()
            shown = with_rates(rows, before, now - since, keys=keys, rates=rates)
            if sys.stdout.isatty() and session.output in ("table", "wide"):
                click.clear()
                clock = datetime.now(tz=timezone.utc).astimezone()
                echo(f"{title}    every {WATCH_SECONDS} s    {clock:%H:%M:%S}    Ctrl-C ends it\n")
            show(shown)
            before, since = rows, now
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return


def with_rates(rows: Rows, before: Rows, seconds: float, *, keys: Sequence[str], rates: Mapping[str, str]) -> Rows:
    """Rows with the growth per second of their columns since `before`; None for a new row."""
    known = {tuple(row[key] for key in keys): row for row in before}

    def rate(row: dict[str, Any], column: str) -> float | None:
        old = known.get(tuple(row[key] for key in keys))
        return None if old is None else round((row[column] - old[column]) / seconds, 1)

    return [{**row, **{name: rate(row, column) for name, column in rates.items()}} for row in rows]
