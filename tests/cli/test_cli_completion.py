"""The shell's suggestions after TAB."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spark_log import connect
from tests.cli.commands import ROOT, Pylog


def completed(words: str, **env: str) -> list[str]:
    """The names that bash gets for the last word.  Nothing is ever printed beside them."""
    asked = {"_PYLOG_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYLOG")}
    done = subprocess.run(
        [sys.executable, "-m", "spark_log.cli"],
        env=inherited | asked | env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


# Promise: cli.md#pylog-completion
def test_verbs_and_options(pylog: Pylog) -> None:
    """Choices of an option as well."""
    assert completed("pylog topic de") == ["delete", "describe"]
    assert completed("pylog topic list --out") == ["--output"]
    assert completed("pylog topic list --output ") == ["table", "wide", "json", "yaml", "csv"]


# Promise: command-line.md#turn-on-completion
@pytest.mark.parametrize(
    "words",
    [
        "pylog topic describe o",
        "pylog consume o",
        "pylog produce o",
        "pylog plan o",
        "pylog config describe --topic o",
        "pylog group seek billing --topic o",
    ],
)
def test_topics_of_the_log(pylog: Pylog, words: str) -> None:
    pylog.ok("topic", "create", "audit")
    assert completed(words, PYLOG_URL=pylog.url) == ["orders"]


# Promise: command-line.md#turn-on-completion
def test_groups_of_the_log(pylog: Pylog) -> None:
    pylog.ok("consume", "orders", "-g", "billing", "-n", "1")
    pylog.ok("consume", "orders", "-g", "audit", "-n", "1")
    assert completed("pylog group lag ", PYLOG_URL=pylog.url) == ["audit", "billing"]
    assert completed("pylog consume orders -g b", PYLOG_URL=pylog.url) == ["billing"]
    assert completed(f"pylog -u {pylog.url} group describe b") == ["billing"]


# Promise: command-line.md#turn-on-completion
def test_topics_of_a_profile(pylog: Pylog, tmp_path: Path) -> None:
    """And the names of profiles themselves."""
    (tmp_path / "pylog").mkdir()
    (tmp_path / "pylog" / "config.ini").write_text(f"[prod]\nurl = {pylog.url}\n[test]\nurl = x\n")
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert completed("pylog topic list --profile p", **home) == ["prod"]
    assert completed("pylog --profile prod topic describe o", **home) == ["orders"]


# Promise: command-line.md#turn-on-completion
def test_without_a_log_nothing_is_offered(tmp_path: Path) -> None:
    """No URL, a URL without a log, a damaged log, a profile that is not there."""
    assert completed("pylog topic describe o") == []
    assert completed("pylog topic describe o", PYLOG_URL=str(tmp_path / "none")) == []
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "format").write_bytes(b"something else")
    assert completed("pylog topic describe o", PYLOG_URL=str(tmp_path)) == []
    assert completed("pylog topic describe o", PYLOG_PROFILE="none", XDG_CONFIG_HOME=str(tmp_path)) == []


# Promise: command-line.md#turn-on-completion
def test_a_coordinator_that_does_not_answer_is_not_waited_for() -> None:
    """It accepts the connection and says nothing, for longer than a client would wait."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        assert completed("pylog topic describe o", PYLOG_URL=f"pylog://{host}:{port}") == []


# Promise: command-line.md#turn-on-completion
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(pylog: Pylog, shell: str) -> None:
    """It calls the command with the shell's own variable."""
    assert f"_PYLOG_COMPLETE={shell}_complete" in pylog.ok("completion", shell)


# Promise: cli.md#pylog-completion, command-line.md#turn-on-completion
def test_bash_takes_the_script(pylog: Pylog) -> None:
    """As `eval "$(pylog completion bash)"` has it, with the command on the path."""
    script = 'eval "$(pylog completion bash)"; COMP_WORDS=(pylog topic describe o); COMP_CWORD=3; _pylog_completion pylog; echo "${COMPREPLY[@]}"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"PATH": path, "PYLOG_URL": pylog.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("orders\n", "")
    assert connect(pylog.url).admin.list_topics() == ["orders"]
