"""The pages of docs/tasks run, block after block, each with a separate log."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.blocks import program

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tasks").glob("*.md"))


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_task_page_runs(classic: SparkSession, url: str, tmp_path: Path, page: Path) -> None:
    """With `spark`, `URL` and `CHECKPOINTS` as the page says; what it asserts holds."""
    (tmp_path / "checkpoints").mkdir()
    names = {"spark": classic, "URL": url, "CHECKPOINTS": str(tmp_path / "checkpoints")}
    exec(compile(program(page), str(page), "exec"), names)
