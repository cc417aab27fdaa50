"""The main job, on a small part of its events."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_quickstart_ends_as_expected(tmp_path: Path) -> None:
    """Killed in the middle, resumed, and everything is there once."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "quickstart.py"), "--folder", str(tmp_path / "q"), "--rows", "12000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "expected 12,000 = found 12,000, duplicates 0" in done.stdout
    assert "everything is as expected" in done.stdout
