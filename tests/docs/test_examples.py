"""The programs in examples/ print what their docstrings say."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_prints_what_it_says(program: Path, tmp_path: Path) -> None:
    """With a separate log."""
    documented = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    expected = textwrap.dedent(documented.partition("Prints:\n")[2]).strip()
    assert expected, f"{program.name} says what it prints"
    command = [sys.executable, str(program), str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == expected


def test_every_example_is_in_the_list() -> None:
    """examples/README.md has a row for each, and for no other."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(line.split("(")[1].split(")")[0] for line in text.splitlines() if line.startswith("| [")) == [
        program.name for program in PROGRAMS
    ]
