"""docs/options.md from the table of options in `datasource/pyspark_pylog/options/option_table.py`."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_pylog.options.kafka_client_settings import REFUSED, WITHOUT_EFFECT
from pyspark_pylog.options.option_table import READING, SHARED, WRITING, Option

PAGE = """\
# Options of `format("pylog")`

Generated from `datasource/pyspark_pylog/options/option_table.py` by `make docs`. Names are case-insensitive; an
unknown one is an error that suggests the nearest. The second column says where an option applies: B = batch read,
S = streaming read, W = batch write, T = streaming write.

## Reading

{reading}

## Writing

{writing}

## Both

{shared}

## Settings of Kafka's clients

Any other `kafka.*` option is in one of these lists, or is an error. A setting that is rejected or supported only for
reads has no effect on writes, and vice versa.

### Refused

| option | | instead |
|---|---|---|
{refused}

### Accepted, without effect

A warning in the driver's log names the ones that are set.

| why | options |
|---|---|
{without_effect}
"""


def reference_markdown() -> str:
    """The page `docs/options.md`."""
    refused = (f"| `{setting.name}` | {' '.join(setting.used)} | {setting.instead} |" for setting in REFUSED)
    idle = (f"| {why} | {', '.join(f'`kafka.{name}`' for name in found)} |" for why, found in WITHOUT_EFFECT.items())
    return PAGE.format(
        reading=_table(READING),
        writing=_table(WRITING),
        shared=_table(SHARED),
        refused="\n".join(refused),
        without_effect="\n".join(idle),
    )


def _table(options: Iterable[Option]) -> str:
    rows = (f"| `{one.name}` | {' '.join(one.used)} | {one.default} | {one.meaning} |" for one in options)
    return "\n".join(["| option | | default | meaning |", "|---|---|---|---|", *rows])
