"""Running `pylog` within the test's process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from spark_log.cli.main import pylog


class Pylog:
    """The command with a log."""

    def __init__(self, url: Path | str) -> None:
        self.url = str(url)

    def run(self, *args: str, stdin: str | bytes | None = None, url: bool = True) -> Result:
        """Whatever becomes of it."""
        env = {"PYLOG_URL": self.url if url else None}
        return CliRunner().invoke(pylog, list(args), input=stdin, env=env, prog_name="pylog")

    def ok(self, *args: str, stdin: str | bytes | None = None) -> str:
        """What it prints; it must succeed."""
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *args: str, stdin: str | bytes | None = None) -> Any:
        """What it prints with `--output json`."""
        return json.loads(self.ok(*args, "--output", "json", stdin=stdin))

    def refused(self, *args: str, stdin: str | bytes | None = None) -> str:
        """The one sentence on standard error with which it is refused."""
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("pylog: ")
        assert "Traceback" not in result.output
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr

    def wrong(self, *args: str, url: bool = True) -> str:
        """What is said about wrong usage."""
        result = self.run(*args, url=url)
        assert result.exit_code == 2, result.output
        return result.stderr
