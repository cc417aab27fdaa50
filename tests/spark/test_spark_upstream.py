"""The gaps of Spark that `docs/upstream` describes.  A failure means that this Spark has closed one: pylog's way around
it can go, and decision 119 says what that is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

UPSTREAM = Path(__file__).parents[2] / "docs" / "upstream"


# Promise: upstream/README.md#arrow-udfs-over-the-arrow-cache, upstream/README.md#columns-and-filters-of-python-sources
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "filters_and_columns.py",
            "a query of one column asks the source for: number, text, asked\n"
            "rows with a filter: 1; rows of the same frame without one, afterwards: 1 of 3\n",
        ),
        (
            "arrow_cache.py",
            "the query failed: java.lang.IndexOutOfBoundsException: index: 0, length: 1 (expected: range(0, 0))\n",
        ),
    ],
)
def test_the_gap_is_still_there(program: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, str(UPSTREAM / program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr[-2000:]


# Promise: upstream/README.md#notes-for-spark
def test_each_program_is_on_the_page() -> None:
    page = (UPSTREAM / "README.md").read_text()
    assert all(f"({path.name})" in page for path in UPSTREAM.glob("*.py"))
