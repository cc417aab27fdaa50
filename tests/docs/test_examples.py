"""The programs in examples/ print what their docstrings say."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_JVM = Path(__file__).parents[1] / "one_jvm.py"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
WITH_SPARK = [program for program in PROGRAMS if "pyspark" in program.read_text(encoding="utf-8")]


def documented(program: Path) -> str:
    """The output that the docstring has."""
    text = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    found = textwrap.dedent(text.partition("Prints:\n")[2]).strip()
    assert found, f"{program.name} says what it prints"
    return found


def output(folder: Path, *command: str) -> str:
    """Of a program that must succeed."""
    command = (sys.executable, *command)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


# Promise: clients.md#asyncio, raft.md#try-it
@pytest.mark.parametrize(
    "program", [one for one in PROGRAMS if one not in WITH_SPARK], ids=lambda program: program.stem
)
def test_an_example_prints_what_it_says(program: Path, tmp_path: Path) -> None:
    """With a separate log."""
    if program.stem == "web" and find_spec("fastapi") is None:
        pytest.skip("fastapi is missing: `make setup` installs it")
    assert output(tmp_path, str(program), str(tmp_path / "log")) == documented(program)


def test_the_examples_with_spark_print_what_they_say(tmp_path: Path) -> None:
    """With separate logs, in one process: a JVM takes longer to start than they run."""
    commands = [f"{program} {tmp_path / program.stem}" for program in WITH_SPARK]
    assert output(tmp_path, str(ONE_JVM), *commands) == "\n".join(map(documented, WITH_SPARK))


def test_every_example_is_in_the_list() -> None:
    """examples/README.md has a row for each, and for no other."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(line.split("(")[1].split(")")[0] for line in text.splitlines() if line.startswith("| [")) == [
        program.name for program in PROGRAMS
    ]
