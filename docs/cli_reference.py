"""docs/cli.md from the commands in `spark_log/cli`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from spark_log.cli.common.base import common_options
from spark_log.cli.main import pylog


def verbs(command: click.Command = pylog, path: str = "pylog") -> Iterator[tuple[str, click.Command]]:
    """(usage, command) of all commands that do something, in the order of the help."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, sub in sorted(command.commands.items()):
        yield from verbs(sub, f"{path} {name}")


def example(command: click.Command) -> list[str]:
    """The lines of a command's example."""
    _, _, text = (command.help or "").partition("Example:\n")
    return [line.strip() for line in text.splitlines() if line.strip()]


def description(command: click.Command) -> str:
    """The help of a command without its example, one line per paragraph."""
    text = (command.help or "").partition("\b")[0].strip()
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def reference_markdown() -> str:
    """The page: the common options, then each command with its options and an example."""
    lines = [
        "# The `pylog` command",
        "",
        "Generated from `spark_log/cli` by `make docs`.  Tasks: [command-line.md](command-line.md).",
        "",
    ]
    lines += [description(pylog), "", "```sh", *example(pylog), "```", "", "| | |", "|---|---|", *_contents(), ""]
    lines += ["Options of every command:", "", *_options(common_options())]
    for path, command in verbs():
        lines += ["", f"## {path}", "", description(command), "", "```", _usage(path, command), "```", ""]
        own = _own_options(command)
        lines += [*_options(own), *([""] if own else []), "```sh", *example(command), "```"]
    return "\n".join(lines) + "\n"


def _contents() -> Iterator[str]:
    """A row per section of the help, with links to its commands."""
    paths = [path for path, _ in verbs()]
    for title, names in pylog.sections:
        links = [
            f"[{path.removeprefix('pylog ')}](#{path.replace(' ', '-')})"
            for name in names
            for path in paths
            if path.split()[1] == name
        ]
        yield f"| {title} | {', '.join(links)} |"


def _usage(path: str, command: click.Command) -> str:
    context = click.Context(command)
    arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
    return " ".join([path, *(["[OPTIONS]"] if _own_options(command) else []), *arguments])


def _own_options(command: click.Command) -> list[click.Parameter]:
    shared = {option.name for option in common_options()}
    return [p for p in command.params if isinstance(p, click.Option) and p.name not in shared]


def _options(params: list[click.Parameter]) -> list[str]:
    context = click.Context(pylog)
    records = [record for param in params if (record := param.get_help_record(context))]
    return (
        ["| option | meaning |", "|---|---|", *(f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records)]
        if records
        else []
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
