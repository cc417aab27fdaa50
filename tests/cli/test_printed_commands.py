"""Commands in messages: each exists, and takes the options and arguments that are printed with it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from spark_log.cli.main import pylog

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("spark_log", "datasource", "jobs") for path in sorted((ROOT / folder).rglob("*.py"))]
VALUE = "1"
"""In place of a value that is known at run time only."""


def messages(path: Path) -> Iterator[str]:
    """The string literals of a file, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    apart = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    formatted = [one for one in ast.walk(tree) if isinstance(one, ast.JoinedStr)]
    apart |= {id(part) for one in formatted for part in one.values}
    for one in formatted:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in one.values)
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in apart:
            yield one.value


def printed() -> list[str]:
    """The commands, such as `topic trim 1 -p 1`, without the word pylog."""
    found = {" ".join(text.split()) for path in SOURCES for one in messages(path) for text in commands_in(one)}
    return sorted(found)


def commands_in(text: str) -> list[str]:
    return re.findall(r"`pylog ([^`]+)`", text.replace("…", VALUE))


def check(words: list[str], command: click.Command, context: click.Context) -> None:
    """Raises click.UsageError if the command does not take these words.  A command alone is its name."""
    if isinstance(command, click.Group):
        while words and words[0].startswith("-"):
            words = words[2:]  # `-u URL`
        name, *words = words
        inner = command.get_command(context, name)
        if inner is None:
            raise click.UsageError(f"there is no command {name}")
        if words or not isinstance(inner, click.Group):
            check(words, inner, click.Context(inner, parent=context, info_name=name))
        return
    parser = command.make_parser(context)
    try:
        given, left, _ = parser.parse_args(list(words))
    except click.BadOptionUsage:
        given, left, _ = parser.parse_args([*words, VALUE])  # `--every`: the option is named, without a value
    if left:
        raise click.UsageError(f"{left} is too much")
    there = {
        name for name, value in given.items() if isinstance(value, str | tuple | list | bool | int) and value != ()
    }
    lacking = [one.name for one in command.params if one.required and one.name not in there]
    if words and lacking:  # a command alone is its name
        raise click.UsageError(f"{lacking} is missing")


def test_commands_are_found() -> None:
    assert len(printed()) > 80


@pytest.mark.parametrize("text", printed())
def test_a_printed_command_is_taken(text: str) -> None:
    check(shlex.split(text), pylog, click.Context(pylog, info_name="pylog"))


@pytest.mark.parametrize(
    "text",
    [
        "recover 1",
        "topic trimm",
        "topic trim 1 --until 1",
        "topic list 1",
        "mirror run --catch-up",
        "topic trim 1 -p 0",
    ],
)
def test_a_command_that_is_not_taken_is_found(text: str) -> None:
    with pytest.raises(click.UsageError):
        check(shlex.split(text), pylog, click.Context(pylog, info_name="pylog"))


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
JOB = re.compile(r"`(?:python -m spark_log\.jobs\.|(?:spark-submit )?jobs/)(\w+)(?:\.py)?([^`]*)`")
JOBS = ROOT / "datasource" / "pyspark_pylog" / "jobs"
OF_OTHERS = {"--packages", "--port", "--folder", "--part"}
"""Options of spark-submit, of a test's broker, and of jobs/quickstart.py."""


def options_of(command: click.Command, context: click.Context) -> set[str]:
    """The options of a command, and of those in it."""
    found = {name for param in command.get_params(context) for name in (*param.opts, *param.secondary_opts)}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= options_of(inner, click.Context(inner, parent=context, info_name=name))
    return found


def named_options(path: Path) -> set[str]:
    """The options that the messages of a file name."""
    return {name for text in messages(path) for name in OPTION.findall(text)}


def test_options_in_messages_exist() -> None:
    """Each is an option of some command or job; those of Kafka's tools are named where they are refused."""
    known = options_of(pylog, click.Context(pylog, info_name="pylog")) | OF_OTHERS
    known |= {name for file in JOBS.glob("*.py") for name in re.findall(r'"(--[a-z-]+)"', file.read_text())}
    found = {path: named_options(path) - known for path in SOURCES if path.name != "kafka_flags.py"}
    assert not {str(path): names for path, names in found.items() if names}


def test_jobs_in_messages_exist() -> None:
    """With the options that are printed with them."""
    found = {job for path in SOURCES for text in messages(path) for job in JOB.findall(text)}
    assert len(found) > 5
    for name, rest in sorted(found):
        assert (ROOT / "jobs" / f"{name}.py").exists(), name
        texts = "".join(file.read_text() for file in JOBS.glob("*.py"))
        assert not [one for one in OPTION.findall(rest) if f'"{one}"' not in texts], (name, rest)


def test_make_targets_in_messages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = {name for path in SOURCES for text in messages(path) for name in re.findall(r"`make ([a-z-]+)`", text)}
    assert not [name for name in found if f"\n{name}:" not in makefile]
