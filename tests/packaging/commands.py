"""Commands of shipped files: parsed as `pylog` parses them, or run with the `pylog` of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

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


def environment(folder: Path) -> dict[str, str]:
    """Variables for a shell in the root of the checkout that finds `pylog`, without the user's settings for it."""
    shim = folder / "bin" / "pylog"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m spark_log.cli "$@"\n')
    shim.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYLOG")}
    return env | {"PATH": f"{shim.parent}{os.pathsep}{env['PATH']}"}
