"""A process that does without pandas."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from spark_log.runtime.without_pandas import leave_out_pandas
leave_out_pandas()
import pyarrow as pa
assert pa.array([1, None, 3], pa.int64()).to_pylist() == [1, None, 3]
assert "pandas" not in sys.modules
"""


def test_arrow_makes_arrays_without_pandas() -> None:
    """With its first array it imports pandas, if it can: a server would stop for half a second."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
