"""The drill of docs/operations.md, as the page has it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.packaging.commands import environment
from tests.processes import free_port
from tests.unit.test_pages import ROOT


# Promise: operations.md#drill
def test_the_drill_of_the_page_ends_with_every_record(tmp_path: Path) -> None:
    """Checkpoints, an object and then the whole log are lost; the mirror has all 1,000 records.  With the coordinator
    that leads, no record is lost.
    """
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("## Drill")[2]
    block = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    assert block is not None
    script = block[1].replace("/tmp/drill", str(tmp_path / "drill"))
    for port in ("9570", "9580"):
        script = script.replace(port, str(free_port()))
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=500)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    assert "has been replaced" in out and re.findall(r"^ *(\d+)$", out, re.MULTILINE) == ["1000", "3000"]
