"""The command as a whole: help, usage, errors, the page of the manual."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from docs.cli_reference import description, example, reference_markdown, verbs
from spark_log.cli.common.base import JOBS
from spark_log.cli.main import pylog as root
from tests.cli.commands import Pylog

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "spark_log.cli"]


def spawn(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The real thing."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYLOG")}
    return subprocess.run(
        [*COMMAND, *args], env=inherited | env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(("path", "command"), list(verbs()), ids=[path for path, _ in verbs()])
def test_every_verb_has_help_and_an_example(path: str, command: click.Command) -> None:
    """The example calls the verb itself, and every option says what it does."""
    assert description(command).endswith(".")
    assert any(path in line for line in example(command))
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert all(option.help for option in options)


# Promise: cli.md#the-pylog-command
@pytest.mark.parametrize(("path", "command"), list(verbs()), ids=[path for path, _ in verbs()])
def test_defaults_in_the_help_are_those_that_hold(path: str, command: click.Command) -> None:
    """click writes them.  A text that names its default is that of an option whose default is computed."""
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_flag:
            continue
        has_default = isinstance(option.default, str | int)
        assert bool(option.show_default) == has_default, option.name
        assert not (has_default and "[default:" in (option.help or "")), option.name


# Promise: cli.md#the-pylog-command
def test_the_manual_is_up_to_date() -> None:
    """docs/cli.md is what the commands say; `make docs` writes it."""
    assert (ROOT / "docs" / "cli.md").read_text() == reference_markdown()


VERBS = {
    "bench": "consume produce",
    "broker": "add alter describe drain fence forget-root list remove replace unfence",
    "checkpoint": "",
    "cluster": "health info release reset-clock upgrade",
    "completion": "",
    "config": "alter describe",
    "console": "",
    "consume": "",
    "elect": "preferred unclean",
    "flow": "",
    "gateway": "",
    "gc": "",
    "group": "delete describe lag list remove-members seek",
    "maintain": "",
    "merge": "",
    "metadata": "dump shell",
    "mirror": "run set status",
    "move": "",
    "plan": "",
    "produce": "",
    "producer": "list",
    "quorum": "add-voter adopt describe init random-id remove-voter restore transfer",
    "reassign": "cancel execute generate list verify",
    "recover": "",
    "repair": "",
    "replicate": "",
    "segment": "dump",
    "serve": "",
    "storage": "info",
    "topic": "alter create delete describe erase erasures list offsets schema trim",
    "transaction": "abort describe list",
    "verify": "",
}


def test_the_verbs_are_those_of_this_version() -> None:
    """A verb of a later version is absent until it works."""
    there = [path.removeprefix("pylog ") for path, _ in verbs()]
    assert there == [f"{noun} {verb}".strip() for noun, some in VERBS.items() for verb in some.split() or [""]]


# Promise: ../README.md#command-line, command-line.md#using-the-command-line, replicas.md#replicas
@pytest.mark.parametrize(
    "page",
    [
        *("service.md", "clients.md", "spark.md", "storage.md", "from-kafka.md", "troubleshooting.md", "faq.md"),
        *("performance.md", "command-line.md", "tasks/replay.md", "tasks/backfill.md", "tasks/dead-letters.md"),
        *("replicas.md", "operations.md", "deployment.md", "copies.md", "storage-failures.md", "retention.md"),
        *("failures.md", "monitoring.md", "security.md", "spark-read.md", "spark-streams.md"),
    ],
)
def test_commands_on_the_pages_are_there(page: str) -> None:
    """Each `pylog noun verb` in a block of commands, or between backticks, names a verb, or a group of verbs."""
    known = {path.removeprefix("pylog ") for path, _ in verbs()}
    text = (ROOT / "docs" / page).read_text()
    blocks = "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
    verb_of = r"pylog (?:-u \S+ )?([a-z]+)(?: ([a-z-]+))?"
    calls = re.findall(rf"(?:^|\| ){verb_of}", blocks, re.MULTILINE) + re.findall(f"`{verb_of}", text)
    assert calls, "the page shows commands"
    for noun, verb in calls:
        assert noun in known or f"{noun} {verb}" in known or any(path.startswith(f"{noun} ") for path in known), noun
        if any(path.startswith(f"{noun} ") for path in known) and verb:
            assert f"{noun} {verb}" in known, f"pylog {noun} {verb}"


def test_help_brings_no_arrow() -> None:
    """`pylog --help` is fast because it imports neither Arrow nor Spark."""
    code = (
        "import sys\nfrom spark_log.cli.main import pylog\npylog(['--help'], standalone_mode=False)\n"
        "assert not {'pyarrow', 'numpy', 'fsspec', 'pyspark'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_a_url(pylog: Pylog) -> None:
    """It says how to give one; an option before the noun or at the end will do."""
    assert "-u URL" in pylog.wrong("topic", "list", url=False)
    assert pylog.run("-u", pylog.url, "topic", "list", url=False).exit_code == 0
    assert pylog.run("topic", "list", "-u", pylog.url, url=False).exit_code == 0


# Promise: service.md#running-it
def test_the_file_of_a_coordinator_names_the_log(tmp_path: Path) -> None:
    """Whatever PYLOG_URL says; -u takes precedence.  These are no URLs to serve, so nothing is started."""
    pylog, file = Pylog("pylog://environment:1"), tmp_path / "coordinator.ini"
    file.write_text("[coordinator]\nurl = pylog://file:1\n")
    assert "pylog://file:1 is a coordinator's address" in pylog.refused("serve", "--conf", str(file))
    assert "pylog://flag:1 is" in pylog.refused("serve", "--conf", str(file), "-u", "pylog://flag:1")
    assert "pylog://environment:1 is" in pylog.refused("serve")


def test_a_coordinator_that_cannot_start_says_whether_it_is_the_address_or_the_storage(tmp_path: Path) -> None:
    """The storage's error is not one of listening."""
    pylog, file = Pylog(tmp_path / "log"), tmp_path / "file"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        said = pylog.refused("serve", "--listen", listen)
    assert f"cannot listen on {listen}: Address already in use" in said and "--listen" in said
    file.touch()
    said = Pylog(file / "log").refused("serve", "--listen", listen)
    assert said.startswith(f"pylog: {file}") and "a file is in the way" in said


def test_a_topic_that_is_not_there_is_not_deleted(pylog: Pylog) -> None:
    """The error does not suggest to create it."""
    assert pylog.refused("topic", "delete", "nope", "--yes").endswith(
        "topic 'nope' does not exist; `pylog topic list` shows the topics\n"
    )


def test_no_log_is_made_by_looking(tmp_path: Path) -> None:
    """A URL without a log is refused with the cure, and nothing is created."""
    pylog = Pylog(tmp_path / "none")
    assert "pylog -u file://" in pylog.refused("topic", "list")
    assert not (tmp_path / "none").exists()


# Promise: cli.md#the-pylog-command
def test_wrong_usage(pylog: Pylog) -> None:
    """Exit status 2 with the usage: unknown verb, option or position."""
    assert "No such command 'lst'" in pylog.wrong("topic", "lst")
    assert "No such option" in pylog.wrong("topic", "list", "--nope")
    assert "expected earliest" in pylog.wrong("consume", "orders", "-o", "soon")
    assert "the form of the output is --output json here" in pylog.wrong("consume", "orders", "-o", "json")
    assert "KEY=VALUE" in pylog.wrong("topic", "list", "--storage-option", "x")
    assert "'xml'" in pylog.wrong("topic", "list", "--output", "xml")


@pytest.mark.parametrize("option", ["-u", "--profile"])
def test_an_empty_name_of_a_log_is_not_that_of_the_environment(pylog: Pylog, option: str) -> None:
    """An unset variable of a script, as in `-u "$LOG"`, must not lead to another log."""
    assert "it is empty" in pylog.wrong(option, "", "topic", "delete", "orders", "--yes")
    assert "it is empty" in pylog.wrong("topic", "delete", "orders", "--yes", option, "")
    assert [row["topic"] for row in pylog.json("topic", "list")] == ["orders"]


# Promise: cli.md#the-pylog-command
def test_errors_are_a_sentence_in_a_real_process(pylog: Pylog) -> None:
    """Standard output stays empty, standard error has one line; PYLOG_DEBUG=1 shows where it came from."""
    done = spawn("topic", "describe", "order", PYLOG_URL=pylog.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pylog: topic 'order' does not exist; did you mean orders?\n"
    done = spawn("topic", "describe", "order", PYLOG_URL=pylog.url, PYLOG_DEBUG="1")
    assert "Traceback" in done.stderr


def test_another_kind_of_folder_is_refused(tmp_path: Path) -> None:
    """A file of somebody else in the place of ours is named."""
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "format").write_bytes(b"something else")
    assert "not pylog's" in Pylog(tmp_path).refused("topic", "list")


# Promise: command-line.md#choose-the-output
def test_a_broken_pipe_is_silent(pylog: Pylog) -> None:
    """`pylog consume | head` prints no complaint."""
    pylog.ok("produce", "orders", stdin="".join(f"line {n}\n" for n in range(50_000)))
    done = subprocess.run(
        f"{sys.executable} -m spark_log.cli consume orders -p 1 -o earliest | head -1; "
        f"{sys.executable} -m spark_log.cli consume orders | head -1",
        shell=True,
        env=os.environ | {"PYLOG_URL": pylog.url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


def test_a_refusal_does_not_wait_for_more_input(pylog: Pylog) -> None:
    """An open standard input, for example a terminal, neither blocks the command nor aborts it at its end."""
    command = [*COMMAND, "produce", "orders", "-p", "9", "-u", pylog.url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None and running.stderr is not None
        running.stdin.write(b"one line\n")
        running.stdin.flush()
        assert running.wait(60) == 1
        assert running.stderr.read().count(b"\n") == 1


# Promise: command-line.md#using-the-command-line
def test_the_help_has_sections(pylog: Pylog) -> None:
    """Every command is in one of them, with its whole first sentence, and the help names all nouns and verbs."""
    shown = pylog.ok("--help")
    assert [title for title, _ in root.sections] == re.findall(
        r"^([A-Z][a-z ]+):$", shown.partition("Options:")[0], re.M
    )
    assert sorted(name for _, names in root.sections for name in names) == sorted(root.commands)
    assert "..." not in shown.partition("Options:")[0].partition("\n")[2]


@pytest.mark.parametrize(("path", "command"), list(verbs()), ids=[path for path, _ in verbs()])
def test_help_is_in_sentences(path: str, command: click.Command) -> None:
    """Each option's text begins with a capital and ends with a full stop, a default or a variable."""
    for option in command.params:
        text = getattr(option, "help", None)
        if text:
            assert re.match(r"[A-Z]", text) and re.search(r"(\.|\]|possible)$", text.rstrip()), (path, text)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_is_typed_as_a_command_is_named(pylog: Pylog, name: str) -> None:
    """With the command of the job, whose file exists."""
    assert name not in root.commands
    shown = pylog.wrong(name, "--list")
    assert f"There is no command {name}: " in shown
    (job,) = re.findall(r"python -m spark_log\.jobs\.(\w+)", " ".join(shown.split()))
    assert (ROOT / "jobs" / f"{job}.py").exists()
