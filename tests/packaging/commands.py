"""Commands of shipped files, parsed as `pylog` parses them, and not run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_log.cli.main import pylog


def parse_command(arguments: Sequence[str]) -> click.Context:
    """The command of these arguments, with its options.  Raises click.UsageError."""
    command: click.Command = pylog
    context, rest = click.Context(command, info_name="pylog"), list(arguments)
    while isinstance(command, click.Group):
        _, rest, _ = command.make_parser(context).parse_args(rest)
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, parent=context)
    return command.make_context(command.name, rest, parent=context.parent)
