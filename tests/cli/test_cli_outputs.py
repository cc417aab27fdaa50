"""Each command ends with a sentence, or silently, if its output cannot be written: never with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from spark_log.cli.main import pylog as root
from tests.cli.commands import ROOT, Pylog, on_terminal

PROGRAM = textwrap.dedent(
    """
    import json, os, sys, tempfile
    from spark_log.cli.main import main
    commands, kind = json.load(sys.stdin)
    found = []
    for command in commands:
        errors = tempfile.TemporaryFile()
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            if kind == "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            elif kind == "pipe":
                reader, writer = os.pipe()
                os.close(reader)
                os.dup2(writer, 1)
            sys.argv = ["pylog", *command]
            status = 0
            try:
                main()
            except SystemExit as end:
                status = end.code or 0
            try:
                sys.stdout.flush()
            except BaseException as error:
                os.write(2, f"Traceback at the end: {error!r}".encode())
            os._exit(status)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        found.append((os.waitstatus_to_exitcode(status), errors.read().decode()))
    json.dump(found, sys.stdout)
    """
)
READS = (
    *("topic list", "topic describe orders", "topic offsets orders", "topic schema typed", "topic erasures"),
    *("consume orders", "consume orders --latest", "consume orders -g g", "group list", "group describe old"),
    *("group lag old", "cluster info", "cluster health", "config describe", "broker list", "reassign list"),
    *("producer list", "transaction list", "maintain --dry-run", "gc --dry-run", "verify", "repair --dry-run"),
    *("plan orders", "metadata dump", "completion bash", "quorum random-id", "--version"),
)
CHANGES = ("topic create new", "topic alter orders -c retention.ms=7d", "merge", "checkpoint", "maintain", "gc --yes")


def verbs(group: click.Group = root, *names: str) -> Iterator[list[str]]:
    """All commands and groups of commands."""
    yield list(names)
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, *names, name)
        else:
            yield [*names, name]


def ended(url: str, commands: list[list[str]], kind: str) -> list[tuple[int, str]]:
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYLOG_")} | {"PYLOG_URL": url}
    given = json.dumps([commands, kind])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=given, env=env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [(status, errors) for status, errors in json.loads(done.stdout)]


@pytest.mark.parametrize("kind", ["full", "pipe"])
def test_each_verb_ends_in_order_if_its_output_cannot_be_written(pylog: Pylog, url: str, kind: str) -> None:
    """`> /dev/full` is an error with a sentence; a reader that leaves, as `head -1` does, is none."""
    pylog.ok("consume", "orders", "-g", "old")
    pylog.ok("topic", "create", "typed", "--schema", "id BIGINT")
    commands = [[*verb, "--help"] for verb in verbs()] + [line.split() for line in (*READS, *CHANGES)]
    assert len(commands) > 90
    wrong = [
        (command, status, errors)
        for command, (status, errors) in zip(commands, ended(url, commands, kind), strict=True)
        if not (status == 1 and FULL in errors if kind == "full" else status in (0, 1, 141) and not errors)
    ]
    assert wrong == []


FULL = "pylog: the output cannot be written: No space left on device"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed_is_empty(pylog: Pylog, url: str, closed: str) -> None:
    """Cron may call the command with such a stream."""
    for command in ("topic list", "consume orders", "produce more", "topic delete orders", "gc"):
        line = f"{sys.executable} -m spark_log.cli -u {url} {command} {closed}"
        done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False, input="x\n")
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr, f"{command}: {done.stderr}"


def test_produce_prompts_on_a_terminal(url: str, pylog: Pylog, tmp_path: Path) -> None:
    """It says how to end, as there is nothing else to see; not if lines come from a pipe."""
    with on_terminal("-u", url, "produce", "orders", typed="one\ntwo\n\x04") as (process, lines):
        shown = list(lines)
        assert process.wait(60) == 0
    assert any("each line is a record of topic orders; Ctrl-D ends" in line for line in shown)
    assert any("> " in line for line in shown)
    assert "2 records appended to orders" in shown[-1]
    result = pylog.run("produce", "orders", stdin="three\n")
    assert result.exit_code == 0 and result.stderr == ""
