"""The main job, on a small part of its events."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quickstart") / "q"


@pytest.fixture(scope="module")
def said(folder: Path) -> str:
    """The output of the job."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "quickstart.py"), "--folder", str(folder), "--rows", "12000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert [line[:17] for line in done.stderr.splitlines()] == ["created a new log"], "Spark's log is in a file"
    return done.stdout


# Promise: ../README.md#install
def test_the_quickstart_ends_as_expected(said: str) -> None:
    """Killed in the middle, resumed, and everything is there once."""
    assert "expected 12,000 = found 12,000, duplicates 0" in said
    assert "everything is as expected" in said


# Promise: ../README.md#install
def test_what_to_try_next_works(said: str, folder: Path) -> None:
    """The commands that it prints at its end run on the log that it leaves."""
    _, _, following = said.partition("Try next, on the log that this left:\n")
    lines = [line.strip() for line in following.splitlines() if line.startswith("  ")]
    assert len([line for line in lines if line.startswith("pylog ")]) == 6
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines)],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "departures" in done.stdout and '"carrier":' in done.stdout
