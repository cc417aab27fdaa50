"""The units of systemd in conf/: systemd reads them, and `pylog` accepts their commands."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tests.packaging.commands import parse_command
from tests.unit.test_pages import ROOT

UNITS = sorted([*(ROOT / "conf").glob("*.service"), *(ROOT / "conf").glob("*.timer")])
PROGRAM = "/opt/pylog/bin/pylog"


def read(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    parser.read_string(unit.read_text(encoding="utf-8"))
    return parser


# Promise: deployment.md#deploy, operations.md#operate-a-log
def test_pylog_accepts_the_commands_of_the_units() -> None:
    """Each option exists and has a value of its type; `pylog` is the program of all but the check."""
    commands = [read(unit).get("Service", "ExecStart") for unit in UNITS if unit.suffix == ".service"]
    ours = [shlex.split(command)[1:] for command in commands if command.startswith(PROGRAM)]
    assert len(ours) == len(commands) - 1
    for arguments in ours:
        parse_command(arguments)


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse_command(["serve", "--config", "x"])
    with pytest.raises(click.UsageError):
        parse_command(["server"])


def test_a_timer_has_its_service() -> None:
    timers = [unit for unit in UNITS if unit.suffix == ".timer"]
    assert timers and all(timer.with_suffix(".service").exists() for timer in timers)


# Promise: deployment.md#deploy, operations.md#operate-a-log
def test_systemd_reads_the_units(tmp_path: Path) -> None:
    """With a program that exists in place of pylog."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, "/bin/true"))
    units = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run(
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and str(tmp_path) not in done.stderr, done.stderr
