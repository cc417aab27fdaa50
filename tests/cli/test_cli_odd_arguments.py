"""An odd value of an option or argument of any command is accepted, or refused in a few lines, and harms nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from spark_log import connect
from spark_log.cli.main import pylog
from spark_log.recovery.verify import verify
from tests.cli.commands import Pylog

ODD = ("", "\udcff", "a\x1b[2J", "nan", "9" * 400, "-1", "a\nb", "~" + "x" * 3000)
RUNNING = {"serve", "gateway", "console", "bench"}
"""They run until they are stopped, with most values."""
USAGE_LINES = 5
"""The usage, a hint and the error."""
PLAIN = {
    "IntParamType": "1",
    "IntRange": "1",
    "Long": "1",
    "DurationType": "1s",
    "RateType": "1MB",
    "PositionType": "0",
}


def commands(
    command: click.Command = pylog, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from commands(inner, (*path, name))
    elif path[0] not in RUNNING:
        yield path, command


def plain(param: click.Parameter) -> str:
    """A value that the command may accept."""
    if isinstance(param.type, click.Choice):
        return str(param.type.choices[0])
    if "KEY=VALUE" in str(param.make_metavar(click.Context(pylog))):
        return "a=b"
    return PLAIN.get(type(param.type).__name__, "orders")


def lines_with(path: tuple[str, ...], command: click.Command, target: click.Parameter, odd: str) -> list[str]:
    """A command line with an odd value of one parameter, as a dry run where there is one."""
    params = [*getattr(command, "own_params", command.params), target]
    line = [*path, *(["-n", "1", "--timeout", "1s"] if path == ("consume",) else [])]
    line += ["--dry-run"] if any("--dry-run" in param.opts for param in params) else []
    for param in dict.fromkeys(params):
        if isinstance(param, click.Option) and (param is target or param.required):
            line.append(f"{param.opts[-1]}={odd if param is target else plain(param)}")
    named = [
        one for one in dict.fromkeys(params) if isinstance(one, click.Argument) and (one is target or one.required)
    ]
    return [*line, "--", *(odd if param is target else plain(param) for param in named)]


def targets() -> Iterator[tuple[tuple[str, ...], click.Command, click.Parameter]]:
    """The options and arguments that take a value.  Common options are tried with one command."""
    for path, command in commands():
        is_any = path == ("topic", "list")
        for param in command.params if is_any else getattr(command, "own_params", command.params):
            if isinstance(param, click.Argument) or (not param.is_flag and param.opts[-1].startswith("--")):
                yield path, command, param


# Promise: cli.md#the-pylog-command
def test_an_odd_value_is_accepted_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, and no control character of it on the terminal.  The log is whole, with its records."""
    monkeypatch.chdir(tmp_path)  # relative paths are values, too
    log = Pylog(tmp_path / "log")
    log.ok("topic", "create", "orders", "-p", "1")
    log.ok("produce", "orders", stdin="first\n")
    env = {"PYLOG_OUTPUT": None, "PYLOG_PROFILE": None, "PYLOG_URL": log.url}
    found, runner = list(targets()), CliRunner()
    assert len({path for path, _, _ in found}) > 55
    for path, command, param in found:
        for odd in ODD:
            line = lines_with(path, command, param, odd)
            ran = runner.invoke(pylog, line, env=env, prog_name="pylog", input="v\n")
            assert ran.exception is None or isinstance(ran.exception, SystemExit), (line, ran.exception)
            assert ran.exit_code in (0, 1, 2), line
            assert "\x1b" not in ran.output, line
            assert not ran.exit_code or len(ran.stderr.strip().split("\n")) <= USAGE_LINES, (line, ran.stderr)
    with connect(log.url) as opened:
        assert verify(opened, deep=True) == []
        assert opened.read("orders").column("value").to_pylist()[0] == b"first"
