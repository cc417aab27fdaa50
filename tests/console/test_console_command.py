"""`pylog console` as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import spark_log
from tests.cli.commands import ROOT


# Promise: cli.md#pylog-console, console.md#the-console
def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    """It prints an address with a token, with which it answers, and ends on SIGTERM."""
    url = str(tmp_path / "log")
    with spark_log.connect(url, durability="os") as log:
        log.append("orders", [{"value": "x"}])
    command = [sys.executable, "-m", "spark_log.cli", "console", "-u", url, "--listen", "0"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("#token=")
        try:
            asked = urllib.request.Request(f"{address}api/topics", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=20) as found:
                assert [row["topic"] for row in json.loads(found.read())["topics"]] == ["orders"]
        finally:
            process.terminate()
        assert process.wait(30) == 0
    assert len(list((tmp_path / "state" / "pylog" / "console").glob("*.samples"))) == 1
