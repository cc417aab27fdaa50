"""The page on clients runs, block after block."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.client.logs import log_url

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


# Promise: clients.md#python-clients
def test_the_python_of_the_page_on_clients_runs(tmp_path: Path, way: str) -> None:
    """All blocks, in one session, with a log on storage and with a coordinator."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 10
    code = "\n".join(blocks).replace("/tmp/pylog-clients", log_url(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "written at 1" in done.stdout and "assigned" in done.stdout
