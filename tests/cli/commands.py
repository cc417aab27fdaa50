"""Run `pylog` within the test's process, or in a separate process on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from spark_log.cli.main import pylog

ROOT = Path(__file__).parents[2]


@contextmanager
def on_terminal(
    *args: str, columns: int = 80, typed: str | None = None, **env: str
) -> Iterator[tuple[subprocess.Popen[bytes], Iterator[str]]]:
    """A process whose standard output is a terminal of so many columns, and the lines that it shows.

    typed:  what a person types there; None: standard input is that of this process.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    left_out = ("COLUMNS", "LINES", "NO_COLOR", "PYLOG_OUTPUT", "PYLOG_PROFILE")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-m", "spark_log.cli", *args]
    stdin = None if typed is None else follower
    with subprocess.Popen(
        command, cwd=ROOT, env=inherited | env, stdin=stdin, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        os.write(leader, (typed or "").encode())
        try:
            yield process, _lines(leader)
        finally:
            process.kill()
            os.close(leader)


def _lines(leader: int) -> Iterator[str]:
    rest = b""
    try:
        while data := os.read(leader, 4096):
            *lines, rest = (rest + data).split(b"\r\n")
            yield from (line.decode() for line in lines)
    except OSError:  # the process has closed its side
        return


class Pylog:
    """The command with a log."""

    def __init__(self, url: Path | str) -> None:
        self.url = str(url)

    def run(self, *args: str, stdin: str | bytes | None = None, url: bool = True, **more: str | None) -> Result:
        """Its result, whether it succeeds or not.

        more:  variables of the environment.
        """
        env = {"PYLOG_OUTPUT": None, "PYLOG_PROFILE": None, "PYLOG_URL": self.url if url else None, **more}
        return CliRunner().invoke(pylog, list(args), input=stdin, env=env, prog_name="pylog")

    def ok(self, *args: str, stdin: str | bytes | None = None, **more: str | None) -> str:
        """Its output; it must succeed."""
        result = self.run(*args, stdin=stdin, **more)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *args: str, stdin: str | bytes | None = None) -> Any:
        """Its output with `--output json`."""
        return json.loads(self.ok(*args, "--output", "json", stdin=stdin))

    def refused(self, *args: str, stdin: str | bytes | None = None) -> str:
        """The one sentence on standard error with which it is refused."""
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("pylog: ")
        assert "Traceback" not in result.output
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr

    def wrong(self, *args: str, stdin: str | bytes | None = None, url: bool = True) -> str:
        """Its message about wrong usage."""
        result = self.run(*args, stdin=stdin, url=url)
        assert result.exit_code == 2, result.output
        return result.stderr
