"""The README's Python runs, block after block, as a newcomer would paste it, without an activated environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.blocks import blocks, program

README = Path(__file__).parents[1] / "README.md"


# Promise: ../README.md#python, ../README.md#spark, spark.md#how-spark-finds-it
def test_the_python_of_the_readme_runs(bare: Path, tmp_path: Path) -> None:
    """All blocks, in one session; Spark's last table is the one on the page, and nobody had to register the source.
    The path has another python3, without pylog.
    """
    assert len([block for block in blocks(README) if block.reason is None]) == 2
    hidden = ("PATH", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env["PATH"] = os.pathsep.join([str(bare), "/usr/bin", "/bin", str(Path(shutil.which("java") or "").parent)])
    command = [sys.executable, "-c", program(README).replace("/tmp/pylog-readme", str(tmp_path / "log"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (table,) = re.findall(r"^```\n(\+-.*?)```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert table in done.stdout
    assert "{'offset': 0, 'value': b'12.50'}" in done.stdout
    assert "replaced" not in done.stderr, "a second registration of the source"
