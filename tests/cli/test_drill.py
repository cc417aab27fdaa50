"""The drill of docs/operations.md, as the page has it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.packaging.commands import environment
from tests.unit.test_pages import ROOT


def test_the_drill_of_the_page_ends_with_every_record(tmp_path: Path) -> None:
    """Checkpoints, an object and then the whole log are lost; the mirror has all 1,000 records."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("## Drill")[2]
    block = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    assert block is not None
    script = block[1].replace("/tmp/drill", str(tmp_path / "drill"))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "has been replaced" in done.stdout and done.stdout.split()[-1] == "1000"
