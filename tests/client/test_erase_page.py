"""The page on erasure runs."""

from __future__ import annotations

from pathlib import Path

from tests.blocks import program
from tests.client.logs import log_url

PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "erase.md"


# Promise: tasks/erase.md#erase-the-records-of-a-person
def test_the_python_of_the_page_on_erasure_runs(tmp_path: Path, way: str) -> None:
    """On storage and with a coordinator."""
    exec(compile(program(PAGE).replace("/tmp/pylog-erase/log", log_url(tmp_path)), str(PAGE), "exec"), {})
