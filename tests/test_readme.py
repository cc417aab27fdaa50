"""The README's Python runs, block after block, as a newcomer would paste it, without an activated environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """All blocks, in one session, in a folder of the test's own."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    code = "\n".join(blocks).replace("/tmp/pylog-readme", str(tmp_path / "log"))
    check = "\nprint('orders:', spark_log.connect(URL).read('copy').num_rows, spark_log.connect(URL).read('totals').num_rows)\n"
    hidden = ("PATH", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env["PATH"] = os.pathsep.join(["/usr/bin", "/bin", str(Path(shutil.which("java") or "").parent)])
    command = [sys.executable, "-c", code + check]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "orders: 2 2" in done.stdout
