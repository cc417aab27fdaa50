"""`--watch`: a screen that is drawn again, or lines one after the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from spark_log.cli.common.watch import with_rates
from tests.cli.commands import ROOT, Pylog, on_terminal

COMMANDS = (["topic", "list"], ["group", "list"], ["group", "lag", "g"])


def test_rates_are_what_a_column_gained() -> None:
    """By the row's keys; a row that is new has none."""
    before = [{"topic": "a", "end": 10}]
    rows = [{"topic": "a", "end": 15}, {"topic": "b", "end": 3}]
    found = with_rates(rows, before, 2.0, keys=["topic"], rates={"appended_per_second": "end"})
    assert [row["appended_per_second"] for row in found] == [2.5, None]


# Promise: command-line.md#watch-groups-and-topics
def test_a_terminal_is_drawn_again(pylog: Pylog) -> None:
    """The screen is cleared, and has a clock and rates."""
    pylog.ok("consume", "orders", "-g", "g", "-n", "3")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda command: check_terminal(pylog, command), COMMANDS))


def check_terminal(pylog: Pylog, command: list[str]) -> None:
    with on_terminal(*command, "--watch", "-u", pylog.url, columns=120, NO_COLOR="1") as (process, lines):
        titles = [next(line for line in lines if "Ctrl-C ends it" in line) for _ in range(2)]
        header = next(line for line in lines if "TOPIC" in line or "GROUP" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert all(re.search(r"\x1b\[2J.*every 2 s    \d\d:\d\d:\d\d", title) for title in titles)
    assert "IN/S" in header


# Promise: command-line.md#watch-groups-and-topics
def test_elsewhere_it_is_appended(pylog: Pylog) -> None:
    """No control characters, and a table each time; the first one has no rates yet."""
    pylog.ok("consume", "orders", "-g", "g", "-n", "3")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda command: check_appended(pylog, command), COMMANDS))


def check_appended(pylog: Pylog, command: list[str]) -> None:
    args = [sys.executable, "-m", "spark_log.cli", *command, "--watch"]
    env = os.environ | {"PYLOG_URL": pylog.url}
    with subprocess.Popen(args, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        orders = (line.split() for line in process.stdout if line.startswith(("orders", "g ")))
        seen = [next(orders) for _ in range(4)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert "\x1b" not in str(seen)
    assert seen[0][-1] == "-" and seen[-1][-1] == "0.0"
