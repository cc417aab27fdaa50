"""The page on frames runs, block after block."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.blocks import program

PAGE = Path(__file__).parents[2] / "docs" / "frames.md"


# Promise: frames.md#read-and-write-frames-pandas-polars-duckdb
def test_the_python_of_the_page_on_frames_runs(tmp_path: Path) -> None:
    """All blocks, in one session."""
    code = program(PAGE).replace("/tmp/pylog-frames", str(tmp_path / "log"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[('apple', 3), ('pear', 1)]" in done.stdout
