"""`jobs/maintain.py`: wrong arguments are refused before Spark starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["file:///x", "--every", "10x"], "as in 10m"),
        (["file:///x", "--storage-option", "key"], "KEY=VALUE"),
        ([], "url"),
    ],
)
def test_wrong_arguments(args: list[str], said: str) -> None:
    """Exit status 2 and a sentence."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import runpy, sys; sys.argv[0] = 'maintain.py'; runpy.run_path('jobs/maintain.py', run_name='__main__')",
            *args,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
