"""The page on tests of jobs runs, as files of pytest."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import spark_log
from spark_log import testing
from spark_log.testing import fixtures
from tests.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "test-your-jobs.md"


# Promise: test-your-jobs.md#a-spark-job, test-your-jobs.md#a-flow, test-your-jobs.md#test-your-jobs
def test_the_files_of_the_page_pass(tmp_path: Path) -> None:
    """Each block is the file that its comment names; all of them run in one process of pytest."""
    found = blocks(PAGE)
    for block in found:
        assert block.reason is not None and " runs it with pytest, as " in block.reason
        (tmp_path / block.reason.rpartition(" ")[2].strip()).write_text(block.code, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "4 passed" in done.stdout


# Promise: test-your-jobs.md#in-memory
def test_a_name_in_memory_is_one_log() -> None:
    """The log is in this process, until that ends."""
    with spark_log.connect("memory://test-your-jobs") as one:
        one.append("orders", [{"value": b"3"}])
    with spark_log.connect("memory://test-your-jobs") as same, spark_log.connect("memory://another") as other:
        assert list(same.topics()) == ["orders"] and not other.topics()


# Promise: test-your-jobs.md#a-log-for-each-test
def test_the_fixtures_are_those_of_the_page() -> None:
    """Each has a row."""
    text = PAGE.read_text(encoding="utf-8")
    assert {name for name in vars(fixtures) if name.startswith("pylog_")} == set(
        re.findall(r"^\| `(pylog_\w+)`", text, re.M)
    )


# Promise: clients.md#what-is-public
def test_each_tool_is_on_the_page() -> None:
    """A tool that an application cannot use belongs to the tests of pylog, in `simulation/harness`."""
    text = PAGE.read_text(encoding="utf-8")
    modules = {one.name for one in pkgutil.iter_modules(testing.__path__, "spark_log.testing.")}
    assert modules and {name for name in modules if name not in text} == set()
