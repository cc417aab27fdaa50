"""A Python without pyspark: the log works, and the rest names the packages that it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = "import sys; sys.modules['pyspark'] = None; import spark_log; "


@pytest.mark.parametrize(
    "call",
    [
        "spark_log.register(None)",
        "spark_log.sink('/none')",
        "spark_log.where('offset > 1')",
        "import pyspark_pylog.jobs.export",
    ],
)
def test_what_needs_pyspark_names_the_packages(call: str, tmp_path: Path) -> None:
    """Its error has the command that installs them."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + call], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "needs pyspark" in done.stderr and "pip install" in done.stderr
